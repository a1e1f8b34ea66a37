// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Steps of ranks that are threads, for a program that looks at an exchange between them (section 6).
#pragma once

#include "distributed/exchange/decoder.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/platform/launch.hpp"
#include "tests/bench/time_ladder/program.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tree_attn::exchange {

namespace device = TREE_ATTN_PLATFORM;

/// Number of queries that take turns: prime, so that no query always meets the same half of a window.
inline constexpr int kQueries = 7;

inline WorkloadShape shape_of(std::int64_t n_keys) {
  const std::int64_t heads = device::kIsHostMemory ? 2 : 16, dim = device::kIsHostMemory ? 32 : 128;
  return {{.dtype = DType::BF16,
           .value_dtype = DType::BF16,
           .batch = 1,
           .heads = heads,
           .kv_heads = heads,
           .head_dim = dim,
           .value_dim = dim},
          n_keys,
          {},
          LeafOrder::kContiguous};
}

/// The keys and values of a range on this thread's part of the device, and the queries of all steps.
struct Rank {
  WorkloadShape shape;
  std::vector<std::int64_t> lengths;
  std::unique_ptr<Workload> workload;
  OpenShard shard;

  Rank(std::int64_t n_keys, KeyRange range)
      : shape(shape_of(n_keys)),
        lengths{n_keys},
        workload(make_workload(shape, 41, kQueries)),
        shard(open_shard(device::backend(), shape, range, 1 / std::sqrt(static_cast<double>(shape.head_dim)))) {
    fill(*shard.cache, *workload, lengths);
  }
  TensorView query(int step) { return workload->query(step % kQueries); }
};

/// Request of the command line.
struct Asked {
  Asked(const Options& options, double seconds)
      : counts(options.numbers<int>("--parts", {2, 4, 8})),
        n_steps(options.number("--steps", device::kIsHostMemory ? 20 : 100'000)),
        n_timed(options.number("--timed", device::kIsHostMemory ? 3 : 2000)),
        n_keys(options.number<std::int64_t>("--keys", device::kIsHostMemory ? 1024 : 65536)),
        timeout(options.number("--timeout", seconds)) {}
  std::vector<int> counts;  ///< numbers of ranks
  int n_steps, n_timed;
  std::int64_t n_keys;
  double timeout;
};

/// Function that every rank runs.
using Body = std::function<void(const ThreadRanks&, ThreadTransport&)>;

/// Some ranks, each a thread.
struct Ranks {
  int n;
  const Asked& asked;
  /// Puts a thread on the device of its rank, or on its part of one, until the end of what it returns.
  std::function<std::shared_ptr<void>(int rank)> enter;

  std::vector<KeyRange> ranges() const { return even_ranges(asked.n_keys, n, kLeafKeys); }
  KeyRange range(const Transport& transport) const { return transport.topology().range_of(transport.rank(), ranges()); }
  void run(double timeout, const Body& body) const {
    run_threads(Topology::pretend(n, n), timeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      const std::shared_ptr<void> entered = enter(ranks.rank());
      body(ranks, transport);
    });
  }
};

/// The outputs of `gather` for every query, on the whole device.
inline std::vector<DecodeOutput> outputs_of_gather(std::int64_t n_keys) {
  std::vector<DecodeOutput> outputs;
  run_threads(Topology::pretend(1, 1), 600, [&](ThreadTransport& transport) {
    const std::vector<KeyRange> whole{{0, n_keys}};
    Rank rank(n_keys, whole[0]);
    const auto decoder = find_algorithm("gather").open(transport, rank.shard, whole);
    for (int i = 0; i < kQueries; ++i) outputs.push_back(decoder->step({rank.query(i), rank.lengths}).copy());
  });
  return outputs;
}

/// Tests whether a bit of the output of a step is not that of `gather`.
inline bool differs(const std::vector<DecodeOutput>& want, int t, std::span<const float> out, std::span<const float> lse) {
  const auto same_bits = [](std::span<const float> a, std::span<const float> b) {
    return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
  };
  const DecodeOutput& right = want[static_cast<std::size_t>(t % kQueries)];
  return !same_bits(out, right.out) || !same_bits(lse, right.lse);
}

/// Steps of `one-shot` in a row. @returns outputs that differ, over all ranks
inline std::int64_t count_differences(const Ranks& ranks, int n_steps, const PlanOptions& options,
                                      const std::vector<DecodeOutput>& want) {
  std::atomic<std::int64_t> n_wrong = 0;
  ranks.run(ranks.asked.timeout, [&](const ThreadRanks&, ThreadTransport& transport) {
    Rank rank(ranks.asked.n_keys, ranks.range(transport));
    const auto decoder = find_algorithm("one-shot").open(transport, rank.shard, ranks.ranges(), options);
    for (int t = 0; t < n_steps; ++t) {
      const OutputView output = decoder->step({rank.query(t), rank.lengths});
      n_wrong += differs(want, t, output.out, output.lse);
    }
  });
  return n_wrong;
}

}  // namespace tree_attn::exchange
