// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans over NCCL, with the stand-in and emulated devices: the bits and the counts of host memory (section 5.3).
#include "tests/distributed/nccl/nccl_ranks.hpp"

namespace tree_attn::test {
namespace {

/// Algorithms with a plan.
std::vector<const Algorithm*> planned_algorithms() {
  std::vector<const Algorithm*> planned;
  for (const Algorithm& algorithm : algorithms()) {
    if (std::holds_alternative<PlanOf>(algorithm.exchange)) planned.push_back(&algorithm);
  }
  return planned;
}

/// Cuts of n keys at multiples of 64: even, and uneven with empty shards.
std::vector<std::vector<KeyRange>> cuts(int p, std::int64_t n) {
  std::vector<std::int64_t> uneven(static_cast<std::size_t>(p), 0);
  uneven[static_cast<std::size_t>(p / 2)] = n;
  if (p > 2) uneven[0] = 64, uneven[static_cast<std::size_t>(p / 2)] = n - 64;
  return {coarse_ranges(n, p, kLeafKeys), ranges_of_lengths(uneven)};
}

void check_same(const std::vector<RankResult>& over_nccl, const std::vector<RankResult>& over_threads) {
  for (std::size_t rank = 0; rank < over_nccl.size(); ++rank) {
    CHECK(same_bits(over_nccl[rank].output, over_threads[rank].output));
    const Traffic &ours = over_nccl[rank].traffic, &theirs = over_threads[rank].traffic;
    CHECK(ours.messages == theirs.messages);
    CHECK(ours.bytes == theirs.bytes);
    CHECK(ours.bytes_between_nodes == theirs.bytes_between_nodes);
    CHECK(ours.merge_steps == theirs.merge_steps);
    CHECK(ours.collectives == theirs.collectives);
  }
}

}  // namespace

TEST_CASE("nccl: every plan has the bits and counts of host memory, canonical ones the bits of one rank") {
  constexpr std::int64_t kKeys = 500;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const auto workload = normal_workload(
        5, {.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = kKeys, .dtype = dtype},
        std::vector<std::int64_t>{kKeys, 130});
    ThreadGroup alone(1);
    const DecodeOutput one =
        decode(alone, find_algorithm("gather"), *workload, {Topology::pretend(1, 1), {{0, kKeys}}}, emulated::backend())[0]
            .output;
    for (const int p : dtype == DType::F32 ? std::vector{1, 2, 3, 4, 5, 6, 7, 8} : std::vector{3, 8}) {
      NcclGroup over_nccl(p);
      ThreadGroup over_threads(p);
      for (const std::vector<KeyRange>& ranges : cuts(p, kKeys)) {
        const Layout layout{mixed_grouping(p), ranges};
        for (const Algorithm* algorithm : planned_algorithms()) {
          INFO(algorithm->name << ", " << name_of(dtype) << ", " << layout.text());
          const std::vector<RankResult> results = decode(over_nccl, *algorithm, *workload, layout, emulated::backend());
          check_same(results, decode(over_threads, *algorithm, *workload, layout, emulated::backend()));
          for (const RankResult& rank : results) {
            CHECK(same_bits(rank.output, results[0].output));
            if (algorithm->keeps_bits) CHECK(same_bits(rank.output, one));
          }
        }
      }
    }
  }
}

}  // namespace tree_attn::test
