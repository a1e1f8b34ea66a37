// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ring computes while the next shard is in flight, and keeps its memory; needs a transport that can be looked
/// into, so threads only.
#include <algorithm>
#include <atomic>
#include <set>
#include <vector>

#include "tests/support/decoding.hpp"
#include "distributed/transport/thread_transport.hpp"

namespace tree_attn::test {

TEST_CASE("ring: the next shard is in flight while this one is computed, at every hop but the last") {
  for (const int p : {1, 2, 3, 8}) {
    const auto problem = normal_problem(1300, {.n_keys = 70 * p});
    const std::vector<Run> runs = even_runs(70 * p, p, 1);
    std::atomic<int> n_overlapped = 0, n_alone = 0, n_without_progress = 0;
    run_threads(Topology::pretend(p, p), 60, [&](ThreadTransport& transport) {
      const auto decode = [&](const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                              const std::function<void()>& progress, int lift) {
        ++(transport.in_flight() == 4 ? n_overlapped : n_alone);
        const std::int64_t before = transport.n_progress();
        Forest<float> forest = decode_shard(q, shard, lengths, scale, progress, lift);
        n_without_progress += transport.n_progress() == before;
        return forest;
      };
      const Backend watching{"watching", nullptr, decode};
      const Run mine = runs[static_cast<std::size_t>(transport.rank())];
      find_algorithm("ring").run(transport, watching,
                                 {problem->query(0), problem->shard(mine, 0), problem->lengths(), problem->scale, runs});
    });
    // Keys and values, to the right and from the left.
    CHECK(n_overlapped == p * (p - 1));
    CHECK(n_alone == p);
    CHECK(n_without_progress == 0);
  }
}

/// Fresh memory at every step costs a page fault for each 4 KiB that arrives: more than computing on it.
TEST_CASE("ring: from the second step on, shards arrive in the two places of the first") {
  for (const int p : {2, 3, 8}) {
    const auto problem = normal_problem(1301, {.n_keys = 70 * p});
    const std::vector<Run> runs = even_runs(70 * p, p, 1);
    const std::int64_t shard_bytes = 70 * problem->shape().bytes_per_position();
    std::atomic<int> n_places = 0, n_fresh = 0;
    run_threads(Topology::pretend(p, p), 60, [&](ThreadTransport& transport) {
      const Run mine = runs[static_cast<std::size_t>(transport.rank())];
      std::set<const std::byte*> places, before;
      std::vector<std::vector<std::byte>> squatters;
      for (int t = 0; t < 4; ++t) {
        const Backend watching{"watching", nullptr,
                               [&](const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths,
                                   double scale, const std::function<void()>& progress, int lift) {
                                 if (shard.begin != mine.begin) places.insert(shard.k.data);
                                 return decode_shard(q, shard, lengths, scale, progress, lift);
                               }};
        find_algorithm("ring").run(transport, watching,
                                   {problem->query(0), problem->shard(mine, 0), problem->lengths(), problem->scale, runs});
        if (t == 0) before = places;
        // Whatever the ring gave back is taken by others before the next step.
        for (const std::int64_t n_bytes :
             {shard_bytes, shard_bytes / 2, shard_bytes / 2, shard_bytes / 2, shard_bytes / 2}) {
          squatters.emplace_back(static_cast<std::size_t>(n_bytes));
        }
      }
      n_places += static_cast<int>(before.size());
      n_fresh += static_cast<int>(places.size() - before.size());
    });
    CHECK(n_places.load() == p * std::min(p - 1, 2));
    CHECK(n_fresh.load() == 0);
  }
}

}  // namespace tree_attn::test
