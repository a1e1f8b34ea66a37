// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that share one device, each with a part of it: the bits of `one-shot` over many steps, its time, and a rank
/// that is missing (section 6).
///
/// Run: exchange_on_parts [--parts 2,4,8] [--steps N] [--timed N] [--keys N] [--timeout SECONDS]
/// The ranks are threads; their kernels run at the same time and exchange states through windows in the memory of the one
/// device. So this shows the protocol, and what an exchange costs beside its link: packing, polling in the cache, merging.
/// It shows neither the latency nor the rate of NVLink. First every rank makes a few steps by itself: those that wait for
/// others would give up where loading a kernel takes long. Then every step is one replay of a graph, by several queries in
/// turn, and its output on every rank is compared with that of `gather`, also with windows in pinned memory of the host; the
/// counter of steps wraps on the way. At last steps are timed that all ranks begin together: `one-shot`; `one-shot` of every
/// rank by itself, which is the same kernel without an exchange; the decode alone; the decode, followed by kernels that
/// merge as many states; and an empty graph. Steps of the same kernel with stamps say where the time of an exchange goes.
/// What it prints is one line of JSON per result.
///
/// It is compiled twice, for a GPU and for the emulator, whose times mean nothing. It has run on parts of one H200.
#include "tree_attn/tests/gpu/exchange/device_parts.hpp"
#include "tree_attn/tests/gpu/exchange/rank_steps.hpp"
#include "tree_attn/tests/gpu/exchange/stamped_rank.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn::exchange {
namespace {

struct Asked {
  std::vector<int> parts{2, 4, 8};
  int n_steps = device::kIsHostMemory ? 20 : 100'000, n_timed = device::kIsHostMemory ? 3 : 2000;
  std::int64_t n_keys = device::kIsHostMemory ? 1024 : 65536;
  double timeout = device::kIsHostMemory ? 10 : 3;
};

/// What every rank does, on its part of the device.
using Body = std::function<void(const ThreadRanks&, ThreadTransport&)>;
void run_on(const device::DeviceParts& parts, double timeout, const Body& body) {
  run_threads(Topology::pretend(parts.size(), parts.size()), timeout,
              [&](const ThreadRanks& ranks, ThreadTransport& transport) {
                const device::DeviceParts::Entered entered(parts, ranks.rank());
                body(ranks, transport);
              });
}

/// `one-shot` of a rank by itself: the kernel of the exchange, which waits for no other rank.
class Alone {
 public:
  /// @param n_keys as many as the rank has in the exchange, but from the first position on
  Alone(std::int64_t n_keys, double timeout)
      : network_(1, timeout), transport_(network_, topology_, 0), ranges_{{0, n_keys}}, rank_(n_keys, ranges_[0]) {
    decoder_ = find_algorithm("one-shot").open(transport_, rank_.shard, ranges_);
  }
  void step(int t) { decoder_->step({rank_.query(t), rank_.lengths}); }

 private:
  ThreadNetwork network_;
  Topology topology_ = Topology::pretend(1, 1);
  ThreadTransport transport_;
  std::vector<KeyRange> ranges_;
  Rank rank_;
  std::unique_ptr<Decoder> decoder_;
};

/// Steps of every rank by itself, before any rank waits for another. The first loads the kernel, the second records the
/// graph, the third replays it.
void step_alone(const device::DeviceParts& parts, const Asked& asked) {
  constexpr int kSteps = 3;
  const std::vector<KeyRange> ranges = ranges_of(asked.n_keys, parts.size());
  std::vector<double> first(ranges.size()), last(first);
  run_on(parts, asked.timeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    Alone alone(range_of(transport, ranges).size(), asked.timeout);
    for (int t = 0; t < kSteps; ++t) {
      const Clock::time_point begin = Clock::now();
      alone.step(t);
      (t == 0 ? first : last)[ranks.rank()] = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    }
  });
  JsonLine line("alone");
  line.add("parts", parts.size()).add("steps", kSteps);
  line.add("first_us", std::ranges::max(first)).add("last_us", std::ranges::max(last));
}

/// Steps of `one-shot` in a row. The counter of steps wraps halfway: it begins at 2^32 - n_steps / 2.
/// @param n_steps at least 8: a new window is full of zeros, so both of its halves have to be written before step 0
/// @returns outputs that differ, over all ranks
std::int64_t count_differences(const device::DeviceParts& parts, const Asked& asked, int n_steps, bool windows_on_host,
                               const std::vector<DecodeOutput>& want) {
  std::atomic<std::int64_t> n_wrong = 0;
  const PlanOptions options{.windows_on_host = windows_on_host, .steps_done = 0U - static_cast<unsigned>(n_steps / 2)};
  run_on(parts, asked.timeout, [&](const ThreadRanks&, ThreadTransport& transport) {
    const std::vector<KeyRange> ranges = ranges_of(asked.n_keys, parts.size());
    Rank rank(asked.n_keys, range_of(transport, ranges));
    const auto decoder = find_algorithm("one-shot").open(transport, rank.shard, ranges, options);
    for (int t = 0; t < n_steps; ++t) {
      const OutputView output = decoder->step({rank.query(t), rank.lengths});
      const DecodeOutput& right = want[static_cast<std::size_t>(t % kQueries)];
      n_wrong += !same_bits(output.out, right.out) || !same_bits(output.lse, right.lse);
    }
  });
  return n_wrong;
}

void time_steps(const device::DeviceParts& parts, const Asked& asked) {
  const int n = parts.size();
  const auto time = [&](const char* what, const auto& body) {
    Together times(n, asked.n_timed);
    run_on(parts, asked.timeout,
           [&](const ThreadRanks& ranks, ThreadTransport& transport) { body(ranks, transport, times); });
    print_time("parts", n, what, times);
  };
  const std::vector<KeyRange> ranges = ranges_of(asked.n_keys, n);
  time("one-shot", [&](const ThreadRanks& ranks, ThreadTransport& transport, Together& times) {
    Rank rank(asked.n_keys, range_of(transport, ranges));
    const auto decoder = find_algorithm("one-shot").open(transport, rank.shard, ranges);
    times.run(ranks, [&](int t) { decoder->step({rank.query(t), rank.lengths}); });
  });

  time("one-shot of each", [&](const ThreadRanks& ranks, ThreadTransport& transport, Together& times) {
    Alone alone(range_of(transport, ranges).size(), asked.timeout);
    times.run(ranks, [&](int t) { alone.step(t); });
  });
  time("decode", [&](const ThreadRanks& ranks, ThreadTransport& transport, Together& times) {
    Rank rank(asked.n_keys, range_of(transport, ranges));
    times.run(ranks, [&](int t) {
      rank.shard.session->decode({rank.query(t), rank.lengths});
      device::synchronise({});
    });
    if (ranks.rank() == 0) JsonLine("kernel").add("parts", n).add("what", rank.shard.session->describe());
  });

  // A block of states per rank, of which the own one is new in every step.
  time("decode, merge", [&](const ThreadRanks& ranks, ThreadTransport& transport, Together& times) {
    Rank rank(asked.n_keys, range_of(transport, ranges));
    const std::int64_t n_rows = rank.shape.n_rows(), size = n_rows * state_size(rank.shape.value_dim), z = n * size,
                       lse = z + n_rows * rank.shape.value_dim;
    const auto blocks = device::make_blocks(lse + n_rows, rank.shape.value_dim);
    std::vector<DeviceBlocks::Pair> pairs;
    for (int i = 0; i < n; ++i) {
      blocks->set_empty(i * size, n_rows);
      if (i > 0) pairs.push_back({0, i * size});
    }
    std::vector<float> output(static_cast<std::size_t>(lse + n_rows - z));
    times.run(ranks, [&](int t) {
      const States& states = rank.shard.session->decode({rank.query(t), rank.lengths});
      blocks->stream().follow_default();
      blocks->take(0, states.device(), size);
      blocks->merge(pairs, n_rows);
      blocks->finish({0, 0}, z, lse, n_rows);
      blocks->download(z, output);
    });
  });
  time("empty graph", [&](const ThreadRanks& ranks, ThreadTransport&, Together& times) {
    const device::OwnedStream stream;
    device::Graph graph(stream, [] {});
    times.run(ranks, [&](int) { graph.replay(stream), device::synchronise(stream); });
  });
}

/// Where the time of an exchange goes: steps of the kernel with stamps, seen from the rank that has joined last, whose waits
/// are for packets and not for keys of another. @returns whether the bits are those of `gather`, and the stamps in order
bool stamp_steps(const device::DeviceParts& parts, const Asked& asked, const std::vector<DecodeOutput>& want) {
  const std::vector<KeyRange> ranges = ranges_of(asked.n_keys, parts.size());
  std::vector<device::DeviceBuffer<Packet>> windows(ranges.size());
  std::vector<std::vector<StepStamps>> stamps(static_cast<std::size_t>(asked.n_timed),
                                              std::vector<StepStamps>(ranges.size()));
  std::atomic<std::int64_t> n_wrong = 0;
  run_on(parts, asked.timeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    Rank rank(asked.n_keys, range_of(transport, ranges));
    const auto me = static_cast<std::size_t>(ranks.rank());
    StampedRank stamped(rank, ranges, ranks.rank(), asked.timeout);
    windows[me] = stamped.make_window();
    ranks.barrier();
    stamped.connect(windows);
    for (int t = 0; t < asked.n_timed; ++t) {
      stamped.stage(t);
      ranks.barrier();
      stamped.step();
      stamps[static_cast<std::size_t>(t)][me] = stamped.stamps();
      const DecodeOutput output = stamped.output(), &right = want[static_cast<std::size_t>(t % kQueries)];
      n_wrong += !same_bits(output.out, right.out) || !same_bits(output.lse, right.lse);
    }
    ranks.barrier();
  });

  std::int64_t n_disordered = 0;
  std::vector<double> sent, first, last, merged;
  for (const std::vector<StepStamps>& of_step : stamps) {
    const StepStamps& slowest = *std::ranges::max_element(of_step, {}, &StepStamps::joined);
    const auto since_joined = [&slowest](std::uint64_t time) {
      return 1e-3 * static_cast<double>(static_cast<std::int64_t>(time - slowest.joined));
    };
    sent.push_back(since_joined(slowest.sent)), merged.push_back(since_joined(slowest.merged));
    first.push_back(since_joined(slowest.first)), last.push_back(since_joined(slowest.last));
    n_disordered += std::ranges::count(of_step, false, &StepStamps::is_ordered);
  }
  JsonLine line("stamps");
  line.add("parts", parts.size()).add("steps", asked.n_timed).add("wrong", n_wrong.load()).add("disordered", n_disordered);
  if (!device::kIsHostMemory) {
    line.add("sent_us", latency_of(std::move(sent)).median).add("first_us", latency_of(std::move(first)).median);
    line.add("last_us", latency_of(std::move(last)).median).add("merged_us", latency_of(std::move(merged)).median);
  }
  return n_wrong == 0 && n_disordered == 0;
}

/// The last rank leaves after a few steps: the others end within the time limit, with a line that names it.
/// @returns whether that was so, but for the time
bool miss_a_rank(const device::DeviceParts& parts, const Asked& asked) {
  constexpr int kUntil = 5;
  const int missing = parts.size() - 1;
  const double timeout = std::min(asked.timeout, 3.0);
  std::string line = "no error";
  Clock::time_point left;
  try {
    run_on(parts, timeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      const std::vector<KeyRange> ranges = ranges_of(asked.n_keys, parts.size());
      Rank rank(asked.n_keys, range_of(transport, ranges));
      const auto decoder = find_algorithm("one-shot").open(transport, rank.shard, ranges);
      for (int t = 0; t < kUntil + (ranks.rank() == missing ? 0 : 1); ++t) decoder->step({rank.query(t), rank.lengths});
      if (ranks.rank() == missing) left = Clock::now();
    });
  } catch (const std::exception& error) {
    line = error.what();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - left).count();
  JsonLine("missing").add("parts", parts.size()).add("seconds", seconds).add("limit", timeout).add("line", line);
  return line.find("no states from rank " + std::to_string(missing) + ",") != std::string::npos;
}

/// @returns the exit status: 1 if anything is wrong
int run_all(const Asked& asked) {
  const std::vector<DecodeOutput> want = outputs_of_gather(asked.n_keys);
  bool all_right = true;
  for (const int n : asked.parts) {
    std::unique_ptr<device::DeviceParts> parts;
    try {
      parts = std::make_unique<device::DeviceParts>(n);
    } catch (const DeviceError& error) {
      JsonLine("parts").add("parts", n).add("note", error.what());
      continue;
    }
    JsonLine("parts")
        .add("parts", n)
        .add("device", device::device().name)
        .add("n_multiprocessors", parts->n_multiprocessors());
    step_alone(*parts, asked);
    // Memory of the host is far from every multiprocessor: packets arrive later there, and in another order.
    for (const bool on_host : {false, true}) {
      const int n_steps = std::max(8, on_host ? asked.n_steps / 10 : asked.n_steps);
      const std::int64_t n_wrong = count_differences(*parts, asked, n_steps, on_host, want);
      JsonLine line("bits");
      line.add("parts", n).add("windows", on_host ? "host" : "device").add("steps", n_steps);
      line.add("before_wrap", n_steps / 2).add("wrong", n_wrong);
      all_right = all_right && n_wrong == 0;
    }
    time_steps(*parts, asked);
    all_right = stamp_steps(*parts, asked, want) && all_right;
    if (n == asked.parts.front()) all_right = miss_a_rank(*parts, asked) && all_right;
  }
  return all_right ? 0 : 1;
}

}  // namespace
}  // namespace tree_attn::exchange

int main(int argc, char** argv) {
  using namespace tree_attn::exchange;
  // Before the first call of CUDA. Kernels that wait for each other need connections of their own, and must not wait until
  // one of them is loaded.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  Asked asked;
  using Value = const std::string&;
  return run_program(argc, argv, "exchange_on_parts [--parts 2,4,8] [--steps N] [--timed N] [--keys N] [--timeout SECONDS]",
                     {{"--parts", [&](Value value) { asked.parts = numbers(value); }},
                      {"--steps", [&](Value value) { asked.n_steps = number<int>(value); }},
                      {"--timed", [&](Value value) { asked.n_timed = number<int>(value); }},
                      {"--keys", [&](Value value) { asked.n_keys = number<std::int64_t>(value); }},
                      {"--timeout", [&](Value value) { asked.timeout = number<double>(value); }}},
                     [&] { return run_all(asked); });
}
