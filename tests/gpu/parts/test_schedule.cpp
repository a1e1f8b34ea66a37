// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The schedule of equal runs: every position of every strip once, and no block with more than its share (section 5.3).
#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "gpu/parts/schedule.hpp"

namespace tree_attn::test {
namespace {

DeviceProblem problem_over(const std::vector<std::int64_t>& lengths, std::int64_t kv_heads, std::int64_t group, Run shard) {
  DeviceProblem problem;
  problem.lengths = lengths.data();
  problem.batch = static_cast<std::int64_t>(lengths.size());
  problem.kv_heads = kv_heads, problem.group = group;
  problem.begin = shard.begin, problem.end = shard.end;
  return problem;
}

/// More positions than cells that 32 bits can count.
constexpr std::int64_t kLong = std::int64_t{1} << 40;

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("schedule: blocks cover every strip, in order, with runs that differ by one piece at most") {
  const std::vector<std::vector<std::int64_t>> batches{{1000}, {0}, {0, 1, 64, 65, 1000, 5}, {100000, 3, 3}, {kLong, 3, kLong + 65}};
  for (const std::vector<std::int64_t>& lengths : batches) {
    for (const Run shard : {Run{0, 100000}, Run{0, 2 * kLong}, Run{37, 900}, Run{64, 128}, Run{50, 60}, Run{500, 500}}) {
      for (const int n_rows : {1, 8}) {
        for (const std::int64_t n_blocks : {1, 2, 7, 64, 132, 5000}) {
          const DeviceProblem problem = problem_over(lengths, 2, 12, shard);
          const Schedule schedule(problem, n_rows, n_blocks);
          CAPTURE(shard.begin);
          CAPTURE(n_blocks);

          // Follow all blocks; note where each strip has got to, and who had part of it.
          std::map<std::int64_t, std::int64_t> reached, n_parts;
          std::int64_t most = 0, least = schedule.n_cells();
          bool right = true;
          for (std::int64_t block = 0; block < n_blocks; ++block) {
            const std::int64_t begin = schedule.begin_of(block), end = schedule.begin_of(block + 1);
            if (begin < end) most = std::max(most, end - begin), least = std::min(least, end - begin);
            for (std::int64_t cell = begin; cell < end;) {
              const Segment segment = schedule.segment_at(problem, cell, end);
              right = right && schedule.block_of(cell) == block;
              if (!reached.contains(segment.strip)) reached[segment.strip] = segment.whole.begin;
              right = right && segment.run.begin == reached[segment.strip] && segment.run.begin <= segment.run.end;
              right = right && segment.line == segment.strip / ((12 + n_rows - 1) / n_rows);
              reached[segment.strip] = segment.run.end;
              ++n_parts[segment.strip];
              right = right && segment.first == cell && segment.last <= end && segment.last > cell;
              cell = segment.last;
            }
          }
          CHECK(right);
          CHECK(most - least <= 1);
          CHECK(reached.size() == lengths.size() * 2 * static_cast<std::size_t>((12 + n_rows - 1) / n_rows));
          bool complete = true;
          for (const auto& [strip, position] : reached)
            complete = complete && position == problem.padded(strip / ((12 + n_rows - 1) / n_rows)).end;
          CHECK(complete);
        }
      }
    }
  }
}

}  // namespace tree_attn::test
