// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Steps of ranks that are threads, for programs that time an exchange between them (section 6).
#pragma once

#include "distributed/exchange/decoder.hpp"
#include "distributed/program/measure.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/platform/launch.hpp"
#include "tests/bench/time_ladder/program.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tree_attn::exchange {

namespace device = TREE_ATTN_PLATFORM;
using Clock = std::chrono::steady_clock;

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

/// Times of steps that begin when the last rank does, and end when the last one has.
class Together {
 public:
  Together(int n_ranks, int n_steps)
      : n_steps_(n_steps), begin_(n_steps + kWarmUp, std::vector<Clock::time_point>(n_ranks)), end_(begin_) {}
  /// On every rank, once. @param step called with the number of the step
  template <class Step>
  void run(const ThreadRanks& ranks, const Step& step) {
    for (int t = 0; t < n_steps_ + kWarmUp; ++t) {
      ranks.barrier();
      begin_[t][ranks.rank()] = Clock::now();
      step(t);
      end_[t][ranks.rank()] = Clock::now();
    }
  }
  Latency latency() const {
    std::vector<double> microseconds;
    for (int t = kWarmUp; t < n_steps_ + kWarmUp; ++t) {
      const auto last = [](const auto& times) { return *std::ranges::max_element(times); };
      microseconds.push_back(std::chrono::duration<double, std::micro>(last(end_[t]) - last(begin_[t])).count());
    }
    return latency_of(std::move(microseconds));
  }

 private:
  static constexpr int kWarmUp = 2;  ///< the second step records the graph
  int n_steps_;
  std::vector<std::vector<Clock::time_point>> begin_, end_;
};

/// @param body called on every rank, with the times that it takes
template <class TimedBody>
void time_steps(const Ranks& ranks, const char* what, const TimedBody& body) {
  Together times(ranks.n, ranks.asked.n_timed);
  ranks.run(ranks.asked.timeout, [&](const ThreadRanks& threads, ThreadTransport& transport) {
    Rank rank(ranks.asked.n_keys, ranks.range(transport));
    body(threads, transport, rank, times);
  });
  const auto [median, p10, p90] = times.latency();
  JsonLine line("time");
  line.add("parts", ranks.n).add("what", what);
  line.add("median_us", median).add("p10_us", p10).add("p90_us", p90);
}
inline void time_one_shot(const Ranks& ranks) {
  time_steps(ranks, "one-shot", [&](const ThreadRanks& threads, ThreadTransport& transport, Rank& rank, Together& times) {
    const auto decoder = find_algorithm("one-shot").open(transport, rank.shard, ranks.ranges());
    times.run(threads, [&](int t) { decoder->step({rank.query(t), rank.lengths}); });
  });
}
inline void time_decode(const Ranks& ranks) {
  time_steps(ranks, "decode", [&](const ThreadRanks& threads, ThreadTransport&, Rank& rank, Together& times) {
    times.run(threads, [&](int t) {
      rank.shard.session->decode({rank.query(t), rank.lengths});
      device::synchronise({});
    });
    if (threads.rank() == 0) JsonLine("kernel").add("parts", ranks.n).add("what", rank.shard.session->describe());
  });
}

/// Steps of which the last rank leaves one out. @param body sets `left` when it does
/// @returns what the others say, which is printed with the time that it took them
inline std::string line_without_last(const Ranks& ranks, double timeout, const Clock::time_point& left, const Body& body) {
  std::string line = "no error";
  try {
    ranks.run(timeout, body);
  } catch (const std::exception& error) {
    line = error.what();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - left).count();
  JsonLine("missing").add("parts", ranks.n).add("seconds", seconds).add("limit", timeout).add("line", line);
  return line;
}

}  // namespace tree_attn::exchange
