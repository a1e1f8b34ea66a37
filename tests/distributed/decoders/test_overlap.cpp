// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ring computes while the next shard is in flight; needs a transport that can be looked into, so threads only.
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <vector>

namespace tree_attn::test {

namespace {

/// A transport that notes what is in flight whenever a decode lets messages advance.
class WatchedTransport : public Transport {
 public:
  WatchedTransport(const Ranks& ranks, ThreadTransport& inner)
      : Transport(inner.topology(), inner.rank()), ranks_(ranks), inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  void progress() override { ++n_calls[inner_.in_flight()]; }

  std::map<std::size_t, int> n_calls;  ///< of progress(), by messages in flight

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { inner_.send(bytes, to); }
  void start_receive(std::span<std::byte> bytes, int from) override { inner_.receive(bytes, from); }
  void finish_messages() override { inner_.wait(); }
  void tell_all(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    ranks_.all_gather(mine, all, what);
  }

 private:
  const Ranks& ranks_;
  ThreadTransport& inner_;
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

}  // namespace tree_attn::test
