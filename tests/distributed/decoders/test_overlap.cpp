// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ring computes while the next shard is in flight, and keeps its memory; needs a transport that can be looked
/// into, so threads only.
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <vector>

namespace tree_attn::test {

namespace {

/// A transport that notes what is in flight whenever a decode lets messages advance, and where keys arrive.
class WatchedTransport : public Transport {
 public:
  WatchedTransport(const Ranks& ranks, ThreadTransport& inner)
      : Transport(inner.topology(), inner.rank()), ranks_(ranks), inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  void progress() override { ++n_calls[inner_.in_flight()]; }

  std::map<std::size_t, int> n_calls;  ///< of progress(), by messages in flight
  std::set<const std::byte*> places;   ///< where the first message between two waits was received

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { inner_.send(bytes, to); }
  void start_receive(std::span<std::byte> bytes, int from) override {
    if (n_received_++ == 0) places.insert(bytes.data());
    inner_.receive(bytes, from);
  }
  void finish_messages() override {
    inner_.wait();
    n_received_ = 0;
  }
  void tell_all(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    ranks_.all_gather(mine, all, what);
  }

 private:
  const Ranks& ranks_;
  ThreadTransport& inner_;
  int n_received_ = 0;
};

/// The shard of one rank.
OpenShard shard_of(const Transport& transport, TensorWorkload& workload, std::span<const KeyRange> ranges) {
  const KeyRange mine = ranges[static_cast<std::size_t>(transport.rank())];
  return open_shard(cpu_backend(), workload.query(0), workload.shard(mine), workload.lengths(), workload.scale);
}

}  // namespace

TEST_CASE("ring: the next shard is in flight while this one is computed, at every hop but the last") {
  // Every shard has the same leaves, so every decode lets messages advance equally often.
  constexpr int kLeavesOfShard = 2, kKvHeads = 2;
  for (const int p : {1, 2, 3, 8}) {
    const auto workload = normal_workload(1300, {.kv_heads = kKvHeads, .n_keys = kLeavesOfShard * kLeafKeys * p});
    const std::vector<KeyRange> ranges = even_ranges(kLeavesOfShard * kLeafKeys * p, p, kLeafKeys);
    std::atomic<int> n_overlapped = 0, n_alone = 0, n_others = 0;
    run_threads(Topology::pretend(p, p), 60, [&](const ThreadRanks& threads, ThreadTransport& inner) {
      WatchedTransport transport(threads, inner);
      OpenShard shard = shard_of(transport, *workload, ranges);
      find_algorithm("ring").open(transport, shard, ranges)->step({workload->query(0), workload->lengths()});
      // Keys and values, to the right and from the left.
      for (const auto& [in_flight, n] : transport.n_calls)
        (in_flight == 4 ? n_overlapped : in_flight == 0 ? n_alone : n_others) += n;
    });
    CHECK(n_overlapped == kLeavesOfShard * kKvHeads * p * (p - 1));
    CHECK(n_alone == kLeavesOfShard * kKvHeads * p);
    CHECK(n_others == 0);
  }
}

/// Fresh memory at every step costs a page fault for each 4 KiB that arrives: more than computing on it.
TEST_CASE("ring: from the second step on, shards arrive in the two places of the first") {
  for (const int p : {2, 3, 8}) {
    const auto workload = normal_workload(1301, {.n_keys = 70 * p});
    const std::vector<KeyRange> ranges = even_ranges(70 * p, p, 1);
    const std::int64_t shard_bytes = 70 * workload->shape().bytes_per_position();
    std::atomic<int> n_places = 0, n_fresh = 0;
    run_threads(Topology::pretend(p, p), 60, [&](const ThreadRanks& threads, ThreadTransport& inner) {
      WatchedTransport transport(threads, inner);
      OpenShard shard = shard_of(transport, *workload, ranges);
      const std::unique_ptr<Decoder> decoder = find_algorithm("ring").open(transport, shard, ranges);
      std::size_t before = 0;
      std::vector<std::vector<std::byte>> squatters;
      for (int t = 0; t < 4; ++t) {
        decoder->step({workload->query(0), workload->lengths()});
        if (t == 0) before = transport.places.size();
        // Whatever the ring gave back is taken by others before the next step.
        for (const std::int64_t n_bytes :
             {shard_bytes, shard_bytes / 2, shard_bytes / 2, shard_bytes / 2, shard_bytes / 2}) {
          squatters.emplace_back(static_cast<std::size_t>(n_bytes));
        }
      }
      n_places += static_cast<int>(before);
      n_fresh += static_cast<int>(transport.places.size() - before);
    });
    CHECK(n_places.load() == p * std::min(p - 1, 2));
    CHECK(n_fresh.load() == 0);
  }
}

}  // namespace tree_attn::test
