// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Seconds that a launch takes, alone between two events and in a CUDA graph; a kernel that only reads, for no decode
/// step of batch 1 can take less time than it does on the same number of bytes.
#pragma once

#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

namespace tree_attn::cuda {

/// Keeps the stream busy until the host has queued what follows: times by events then hold no time of the host.
static __global__ void wait_for(long long n_nanoseconds) {
  long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < n_nanoseconds);
}

/// A mark on a stream, with its time.
class TimedEvent {
 public:
  TimedEvent() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  ~TimedEvent() { cudaEventDestroy(event_); }
  void record(Stream stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Seconds since another event; waits for both.
  double since(const TimedEvent& begin) const {
    float milliseconds = 0;
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Tests whether the environment asks for a rehearsal, on a GPU in software: the smallest shapes, and nothing repeated.
inline bool is_rehearsal() { return std::getenv("TREE_ATTN_REHEARSAL") != nullptr; }

inline double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

/// Seconds a launch: alone between two events, and one after the other in a graph.
struct Times {
  double event = 0, graph = 0;
};

/// Seconds of a launch, roughly: once to load the kernel, once to see how long it takes.
template <class Run>
double guess_of(Stream stream, int n_sets, const Run& run) {
  TimedEvent begin, end;
  run(0);
  begin.record(stream), run(n_sets - 1), end.record(stream);
  return std::max(1e-6, end.since(begin));
}
/// Repetitions of n_launches that take half a second, or a part of it; one in a rehearsal.
inline int n_times_of(double guess, int n_launches, double n_most, double seconds) {
  return is_rehearsal() ? 1 : static_cast<int>(std::clamp(seconds / (guess * n_launches), 3.0, n_most));
}

/// Seconds of a launch in a graph: there launches follow each other without the host; the start of the graph is spread over
/// them.
/// @param guess of guess_of() @param seconds that it may take
template <class Run>
double time_in_graph(Stream stream, int n_sets, const Run& run, double guess, double seconds = 0.5) {
  const int n_rounds = guess > 5e-3 ? 1 : (20 + n_sets - 1) / n_sets, n_launches = n_rounds * n_sets;
  Graph graph(stream, [&] {
    for (int i = 0; i < n_launches; ++i) run(i % n_sets);
  });
  graph.replay(stream);
  TimedEvent begin, end;
  std::vector<double> each;
  for (int i = n_times_of(guess, n_launches, 50, seconds); i > 0; --i) {
    begin.record(stream), graph.replay(stream), end.record(stream);
    each.push_back(end.since(begin) / n_launches);
  }
  return median(each);
}

/// @param n_sets inputs that take turns
/// @param run launches on input i
template <class Run>
Times time_of(Stream stream, int n_sets, const Run& run) {
  const double guess = guess_of(stream, n_sets, run);
  const int n_times = n_times_of(guess, 1, 100, 0.5);
  std::vector<TimedEvent> begins(static_cast<std::size_t>(n_times)), ends(static_cast<std::size_t>(n_times));
  launch(wait_for, {}, stream, 20'000LL * n_times);
  for (int i = 0; i < n_times; ++i) {
    begins[static_cast<std::size_t>(i)].record(stream);
    run(i % n_sets);
    ends[static_cast<std::size_t>(i)].record(stream);
  }
  std::vector<double> each;
  for (int i = 0; i < n_times; ++i)
    each.push_back(ends[static_cast<std::size_t>(i)].since(begins[static_cast<std::size_t>(i)]));
  return {median(each), time_in_graph(stream, n_sets, run, guess)};
}

/// Reads 16 bytes a thread, eight reads in flight, and does nothing with them that could be left out.
static __global__ void __launch_bounds__(1024) read_all(const Bytes16* from, std::int64_t n, std::uint32_t* sink) {
  constexpr int kInFlight = 8;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  std::uint32_t all = 0;
  for (; at + (kInFlight - 1) * step < n; at += kInFlight * step) {
    Bytes16 bytes[kInFlight];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kInFlight; ++i) bytes[i] = load16_global(from + at + i * step);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kInFlight; ++i) all ^= bytes[i].word[0] ^ bytes[i].word[1] ^ bytes[i].word[2] ^ bytes[i].word[3];
  }
  for (; at < n; at += step) all ^= load16_global(from + at).word[0];
  if (all == 0xDEADBEEF) *sink = all;
}

/// Seconds that a launch in a graph takes to read n_bytes: the best of some shapes of the grid.
/// @param from i -> the first byte of input i; n_sets inputs take turns @param seconds that each shape may take
template <class From>
double time_of_read(std::int64_t n_bytes, int n_sets, const From& from, Stream stream, double seconds = 0.5) {
  DeviceBuffer<std::uint32_t> sink(1);
  double best = std::numeric_limits<double>::infinity();
  for (const unsigned n_threads : {256u, 512u, 1024u}) {
    for (const unsigned n_blocks : {1u, 2u, 4u}) {
      if (n_threads * n_blocks > 2048) continue;
      const Launch config{.grid = {n_blocks * static_cast<unsigned>(device().n_multiprocessors)}, .block = {n_threads}};
      const auto run = [&](int i) {
        launch(read_all, config, stream, reinterpret_cast<const Bytes16*>(from(i)), n_bytes / 16, sink.data());
      };
      best = std::min(best, time_in_graph(stream, n_sets, run, guess_of(stream, n_sets, run), seconds));
    }
  }
  return best;
}

/// Bytes of the L2 cache of the current device.
inline std::int64_t l2_bytes() {
  int id = 0, n_bytes = 0;
  check(cudaGetDevice(&id), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&n_bytes, cudaDevAttrL2CacheSize, id), "cudaDeviceGetAttribute");
  return n_bytes;
}

/// Inputs that take turns so that the L2 cache holds none of them when its turn comes: four times the cache in all.
inline int n_sets_past_l2(std::int64_t n_bytes) {
  return static_cast<int>(std::max<std::int64_t>(1, (4 * l2_bytes() + n_bytes - 1) / n_bytes));
}
/// Tests whether an input that takes no turns should fit in the L2 cache. The time of a read shows whether it does.
inline bool fits_in_l2(std::int64_t n_bytes) { return n_bytes <= l2_bytes() / 4 * 3; }

}  // namespace tree_attn::cuda
