// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that share one device, each with a part of it: the bits of `one-shot` over many steps, where the time of an
/// exchange goes, and a rank that is missing (section 6).
///
/// Run: exchange_on_parts [--parts 2,4,8] [--steps N] [--timed N] [--keys N] [--timeout SECONDS]
/// The ranks are threads; their kernels run at the same time and exchange states through windows in the memory of the one
/// device. So this shows the protocol, and what an exchange costs beside its link: packing, polling in the cache, merging.
/// It shows neither the latency nor the rate of NVLink. First every rank makes a few steps by itself: those that wait for
/// others would give up where loading a kernel takes long. Then every step is one replay of a graph, by several queries in
/// turn, and its output on every rank is compared with that of `gather`; the counter of steps wraps on the way. At last
/// steps of the same kernel with stamps say where the time of an exchange goes. It prints one line of JSON per result.
///
/// It is compiled twice, for a GPU and for the emulator, whose times mean nothing. It has run on parts of one H200.
#include "distributed/program/measure.hpp"
#include "tests/bench/exchange/device_parts.hpp"
#include "tests/bench/exchange/rank_steps.hpp"
#include "tests/bench/exchange/stamped_rank.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace tree_attn::exchange {
namespace {

using Clock = std::chrono::steady_clock;

/// `one-shot` of a rank by itself: the kernel of the exchange, which waits for no other rank.
class Alone {
 public:
  /// @param n_keys as many as the rank has in the exchange, but from the first position on
  Alone(std::int64_t n_keys, double timeout)
      : network_(1, timeout),
        ranks_(network_, topology_, 0),
        transport_(ranks_, topology_),
        ranges_{{0, n_keys}},
        rank_(n_keys, ranges_[0]) {
    decoder_ = find_algorithm("one-shot").open(transport_, rank_.shard, ranges_);
  }
  void step(int t) { decoder_->step({rank_.query(t), rank_.lengths}); }

 private:
  ThreadNetwork network_;
  Topology topology_ = Topology::pretend(1, 1);
  ThreadRanks ranks_;
  ThreadTransport transport_;
  std::vector<KeyRange> ranges_;
  Rank rank_;
  std::unique_ptr<Decoder> decoder_;
};

/// Steps of every rank by itself, before any rank waits for another. The first loads the kernel, the second records the
/// graph, the third replays it.
void step_alone(const Ranks& parts) {
  constexpr int kSteps = 3;
  std::vector<double> first(static_cast<std::size_t>(parts.n)), last(first);
  parts.run(parts.asked.timeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    Alone alone(parts.range(transport).size(), parts.asked.timeout);
    for (int t = 0; t < kSteps; ++t) {
      const Clock::time_point begin = Clock::now();
      alone.step(t);
      (t == 0 ? first : last)[ranks.rank()] = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    }
  });
  JsonLine line("alone");
  line.add("parts", parts.n).add("steps", kSteps);
  line.add("first_us", std::ranges::max(first)).add("last_us", std::ranges::max(last));
}

/// Steps of `one-shot`. The counter of steps wraps halfway: it begins at 2^32 - n_steps / 2.
/// @returns whether all outputs have the bits of `gather`
bool compare_bits(const Ranks& parts, const std::vector<DecodeOutput>& want) {
  // At least 8: a new window is full of zeros, so both of its halves have to be written before step 0.
  const int n_steps = std::max(8, parts.asked.n_steps);
  const std::int64_t n_wrong =
      count_differences(parts, n_steps, {.steps_done = 0U - static_cast<unsigned>(n_steps / 2)}, want);
  JsonLine line("bits");
  line.add("parts", parts.n).add("steps", n_steps).add("before_wrap", n_steps / 2).add("wrong", n_wrong);
  return n_wrong == 0;
}

/// Times the parts of an exchange: steps of the kernel with stamps, seen from the rank that has joined last, whose waits
/// are for packets and not for keys of another. @returns whether the bits are those of `gather`, and the stamps in order
bool stamp_steps(const Ranks& parts, const std::vector<DecodeOutput>& want) {
  const Asked& asked = parts.asked;
  const std::vector<KeyRange> ranges = parts.ranges();
  std::vector<device::DeviceBuffer<Packet>> windows(ranges.size());
  std::vector<std::vector<StepStamps>> stamps(static_cast<std::size_t>(asked.n_timed),
                                              std::vector<StepStamps>(ranges.size()));
  std::atomic<std::int64_t> n_wrong = 0;
  parts.run(asked.timeout, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    Rank rank(asked.n_keys, parts.range(transport));
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
      const DecodeOutput output = stamped.output();
      n_wrong += differs(want, t, output.out, output.lse);
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
  line.add("parts", parts.n).add("steps", asked.n_timed).add("wrong", n_wrong.load()).add("disordered", n_disordered);
  if (!device::kIsHostMemory) {
    line.add("sent_us", latency_of(std::move(sent)).median).add("first_us", latency_of(std::move(first)).median);
    line.add("last_us", latency_of(std::move(last)).median).add("merged_us", latency_of(std::move(merged)).median);
  }
  return n_wrong == 0 && n_disordered == 0;
}

/// The last rank leaves after a few steps: the others end within the time limit, with a line that names it.
/// @returns whether that was so, but for the time
bool miss_a_rank(const Ranks& parts) {
  constexpr int kUntil = 5;
  const int missing = parts.n - 1;
  const double limit = std::min(parts.asked.timeout, 3.0);
  std::string line = "no error";
  Clock::time_point left;
  try {
    parts.run(limit, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
      Rank rank(parts.asked.n_keys, parts.range(transport));
      const auto decoder = find_algorithm("one-shot").open(transport, rank.shard, parts.ranges());
      for (int t = 0; t < kUntil + (ranks.rank() == missing ? 0 : 1); ++t) decoder->step({rank.query(t), rank.lengths});
      if (ranks.rank() == missing) left = Clock::now();
    });
  } catch (const std::exception& error) {
    line = error.what();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - left).count();
  JsonLine("missing").add("parts", parts.n).add("seconds", seconds).add("limit", limit).add("line", line);
  return line.find("no states from rank " + std::to_string(missing) + ",") != std::string::npos;
}

/// @returns the exit status: 1 if anything is wrong
int run_all(const Asked& asked) {
  const std::vector<DecodeOutput> want = outputs_of_gather(asked.n_keys);
  bool all_right = true;
  for (const int n : asked.counts) {
    std::unique_ptr<device::DeviceParts> of_device;
    try {
      of_device = std::make_unique<device::DeviceParts>(n);
    } catch (const DeviceError& error) {
      JsonLine("parts").add("parts", n).add("note", error.what());
      continue;
    }
    JsonLine("parts")
        .add("parts", n)
        .add("device", device::device().name)
        .add("n_multiprocessors", of_device->n_multiprocessors());
    const Ranks parts{n, asked, [&](int rank) { return std::make_shared<device::DeviceParts::Entered>(*of_device, rank); }};
    step_alone(parts);
    all_right = compare_bits(parts, want) && all_right;
    all_right = stamp_steps(parts, want) && all_right;
    if (n == asked.counts.front()) all_right = miss_a_rank(parts) && all_right;
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
  return tree_attn::run_program(argc, argv,
                                "exchange_on_parts [--parts 2,4,8] [--steps N] [--timed N] [--keys N] [--timeout SECONDS]",
                                [](const tree_attn::Options& options) {
                                  return run_all({options, device::kIsHostMemory ? 10.0 : 3.0});
                                });
}
