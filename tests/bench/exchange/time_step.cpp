// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A decode step of one rank on the host's clock, split: what it takes beyond its kernel (section 6).
///
/// Run: time_step [--keys N,N] [--timed N]
/// A step waits for the step before, writes its input where an upload reads it, launches a graph of the upload and the
/// kernels, and ends when the device has. Prints, for each number of keys, medians in microseconds: of these four parts; of
/// steps of which only the last is waited for; and, by themselves, of an upload of as many bytes as a query has, queued and
/// in a graph, with the wait for it.
///
/// It is compiled twice, for a GPU and for the emulator, whose times mean nothing.
#include "tests/bench/exchange/rank_steps.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <vector>

namespace tree_attn::exchange {
namespace {

using Clock = std::chrono::steady_clock;

double median_of(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}
double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

/// Calls run() n times after two more. @returns the median of what it takes
template <class Run>
double time_of(int n, const Run& run) {
  std::vector<double> times;
  for (int t = -2; t < n; ++t) {
    const Clock::time_point begin = Clock::now();
    run();
    if (t >= 0) times.push_back(microseconds(begin, Clock::now()));
  }
  return median_of(times);
}

void time_steps_of(std::int64_t n_keys, int n_timed) {
  Rank rank(n_keys, {0, n_keys});
  DecodeSession& session = *rank.shard.session;
  std::array<std::vector<double>, 4> parts;
  for (int t = -2; t < n_timed; ++t) {
    // The session reports where it has written its input, and where it has launched.
    std::vector<Clock::time_point> marks{Clock::now()};
    session.decode({rank.query(t + 2), rank.lengths}, [&] { marks.push_back(Clock::now()); });
    marks.push_back(Clock::now());
    device::synchronise({});
    marks.push_back(Clock::now());
    if (t < 0) continue;
    parts[0].push_back(microseconds(marks.front(), marks[1])), parts[1].push_back(microseconds(marks[1], marks[2]));
    parts[2].push_back(microseconds(marks[2], marks.back())), parts[3].push_back(microseconds(marks.front(), marks.back()));
  }
  const Clock::time_point begin = Clock::now();
  for (int t = 0; t < n_timed; ++t) session.decode({rank.query(t), rank.lengths});
  device::synchronise({});
  const double in_a_row = microseconds(begin, Clock::now()) / n_timed;

  const std::int64_t n_bytes = rank.shape.heads * rank.shape.head_dim * 2;
  const device::OwnedStream stream;
  device::DeviceBuffer<unsigned char> on_device(n_bytes);
  device::HostBuffer<unsigned char> on_host(n_bytes);
  const auto upload = [&] { on_device.queue_upload(stream, on_host.elements()); };
  const double queued = time_of(n_timed, [&] { upload(), device::synchronise(stream); });
  device::Graph graph(stream, upload);
  const double replayed = time_of(n_timed, [&] { graph.replay(stream), device::synchronise(stream); });

  JsonLine line("host step");
  line.add("shape", "BF16, " + std::to_string(rank.shape.heads) + " heads, " + std::to_string(n_keys) + " keys");
  line.add("kernel", session.describe());
  line.add("input_us", median_of(parts[0])).add("launch_us", median_of(parts[1])).add("wait_us", median_of(parts[2]));
  line.add("step_us", median_of(parts[3])).add("in_a_row_us", in_a_row);
  line.add("upload_us", queued).add("upload_in_graph_us", replayed);
}

int run_all(const Options& options) {
  const bool is_emulated = device::kIsHostMemory;
  const auto keys = options.numbers<std::int64_t>(
      "--keys", is_emulated ? std::vector<std::int64_t>{256} : std::vector<std::int64_t>{512, 8192, 65536});
  for (const std::int64_t n_keys : keys) time_steps_of(n_keys, options.number("--timed", is_emulated ? 2 : 500));
  return 0;
}

}  // namespace
}  // namespace tree_attn::exchange

int main(int argc, char** argv) {
  return tree_attn::run_program(argc, argv, "time_step [--keys N,N] [--timed N]", tree_attn::exchange::run_all);
}
