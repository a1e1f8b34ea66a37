// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Steps of ranks that are threads, for programs that time an exchange between them (section 6).
#pragma once

#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/distributed/measure/measure.hpp"
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/tests/gpu/time_ladder/json_line.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn::exchange {

namespace device = TREE_ATTN_PLATFORM;
using Clock = std::chrono::steady_clock;

/// That take turns: prime, so that no query always meets the same half of a window.
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

inline std::vector<KeyRange> ranges_of(std::int64_t n_keys, int n) { return even_ranges(n_keys, n, kLeafKeys); }
inline KeyRange range_of(const Transport& transport, const std::vector<KeyRange>& ranges) {
  return transport.topology().range_of(transport.rank(), ranges);
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// The outputs of `gather` for every query, on the whole device.
inline std::vector<DecodeOutput> outputs_of_gather(std::int64_t n_keys) {
  std::vector<DecodeOutput> outputs;
  run_threads(Topology::pretend(1, 1), 600, [&](ThreadTransport& transport) {
    const std::vector<KeyRange> ranges = ranges_of(n_keys, 1);
    Rank rank(n_keys, ranges[0]);
    const auto decoder = find_algorithm("gather").open(transport, rank.shard, ranges);
    for (int i = 0; i < kQueries; ++i) outputs.push_back(decoder->step({rank.query(i), rank.lengths}).copy());
  });
  return outputs;
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

/// @param ranks what the line calls their number
inline void print_time(const char* ranks, int n, const char* what, const Together& times) {
  const auto [median, p10, p90] = times.latency();
  JsonLine line("time");
  line.add(ranks, n).add("what", what);
  line.add("median_us", median).add("p10_us", p10).add("p90_us", p90);
}

/// @throws std::invalid_argument if it is no number greater than 0
template <class Number>
Number number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value > 0))
    throw std::invalid_argument("'" + text + "' is no number greater than 0");
  return value;
}

/// "2,4,8". @throws std::invalid_argument
inline std::vector<int> numbers(const std::string& text) {
  std::vector<int> values;
  std::istringstream list(text);
  for (std::string each; std::getline(list, each, ',');) values.push_back(number<int>(each));
  return values;
}

/// The main() of a program whose options all have a value.
/// @param usage its name, then its options @param options what to do with the value of each
/// @returns the status of `run`; 2 for a wrong option or value, 1 for an error, with a line that says why
inline int run_program(int argc, char** argv, const std::string& usage,
                       const std::map<std::string, std::function<void(const std::string&)>>& options,
                       const std::function<int()>& run) {
  const auto say = [&](const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", usage.substr(0, usage.find(' ')).c_str(), error.what());
  };
  try {
    for (int i = 1; i < argc; i += 2) {
      const auto option = options.find(argv[i]);
      if (option == options.end()) throw std::invalid_argument("Run: " + usage);
      option->second(i + 1 < argc ? argv[i + 1] : "");
    }
  } catch (const std::invalid_argument& error) {
    say(error);
    return 2;
  }
  try {
    return run();
  } catch (const std::exception& error) {
    say(error);
    return 1;
  }
}

}  // namespace tree_attn::exchange
