// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times the primitives that the ends of kernels consist of (section 6).
///
/// Run: time_primitives
/// One line of JSON per primitive, with nanoseconds of one: loads from L2, by multiprocessor, and from memory; a fence after
/// 1, 8 and 64 stores of a warp; an atomic with release and acquire, and one without; a word from block to block, by release
/// and acquire; a barrier of a cluster; a word from block to block of a cluster by st.async; from the end of the last block
/// of a launch to the first load of the next one; and an empty node of a graph. So they say whether a join is a launch of
/// its own, messages between blocks, or neither.
#include "tests/bench/on_a_card/primitives.cuh"
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/program.hpp"

#include <string>
#include <vector>

namespace tree_attn::cuda {
namespace {

int n_rounds() { return is_rehearsal() ? 3 : 1000; }

/// Nanoseconds of a round: of the median block, of the fastest and of the slowest.
void print(const std::string& name, std::vector<Took> took, double n_of_round = 1) {
  std::ranges::sort(took, {}, &Took::nanoseconds);
  const auto one = [&](std::uint64_t all) { return static_cast<double>(all) / (n_rounds() * n_of_round); };
  JsonLine("primitive")
      .add("name", name)
      .add("ns", one(took[took.size() / 2].nanoseconds))
      .add("least_ns", one(took.front().nanoseconds))
      .add("most_ns", one(took.back().nanoseconds))
      .add("cycles", one(took[took.size() / 2].cycles));
}

/// A launch whose blocks have a multiprocessor each.
Launch alone(int n_blocks, unsigned n_threads) {
  return {.grid = {static_cast<unsigned>(n_blocks)}, .block = {n_threads}, .shared_bytes = device().shared_bytes};
}

/// Runs twice, the first time to load the kernel. @returns what the second has measured
template <class Run>
std::vector<Took> twice(int n_blocks, Stream stream, const Run& run) {
  DeviceBuffer<Took> took(n_blocks);
  for (int i = 0; i < 2; ++i) run(took.data()), synchronise(stream);
  return took.download();
}

void time_loads(Stream stream) {
  // Lines of 128 bytes, each naming the one that comes next.
  const auto chain = [](std::int64_t n_lines, std::int64_t step) {
    std::vector<unsigned> next(static_cast<std::size_t>(32 * n_lines));
    for (std::int64_t line = 0; line < n_lines; ++line)
      next[static_cast<std::size_t>(32 * line)] = static_cast<unsigned>(32 * ((line + step) % n_lines));
    DeviceBuffer<unsigned> on_device(std::ssize(next));
    on_device.upload(next);
    return on_device;
  };
  const DeviceBuffer<unsigned> small = chain(2048, 37), large = chain(is_rehearsal() ? 2048 : 1 << 21, 100'003);
  const int n = device().n_multiprocessors;
  const std::vector<Took> took =
      twice(n, stream, [&](Took* to) { launch(chase, alone(n, 1), stream, small.data(), n_rounds(), to); });
  print("load from L2, all multiprocessors at once", took);
  std::vector<std::int64_t> numbers, picoseconds;
  for (const Took& of : took) {
    numbers.push_back(static_cast<std::int64_t>(of.multiprocessor));
    picoseconds.push_back(static_cast<std::int64_t>(1000 * of.nanoseconds) / n_rounds());
  }
  JsonLine("primitive by multiprocessor").add("name", "load from L2").add("smid", numbers).add("ps", picoseconds);
  print("load from memory",
        twice(1, stream, [&](Took* to) { launch(chase, alone(1, 1), stream, large.data(), n_rounds(), to); }));
}

void time_fences(Stream stream) {
  const DeviceBuffer<float> memory(64 * 128);
  for (const int n_stores : {0, 1, 8, 64}) {
    for (const bool fences : {false, true}) {
      if (n_stores == 0 && !fences) continue;
      print(std::to_string(n_stores) + (n_stores == 1 ? " store" : " stores") + (fences ? " and a fence" : ""),
            twice(1, stream, [&](Took* to) {
              launch(store_and_fence, alone(1, kWarp), stream, memory.data(), n_stores, fences, n_rounds(), to);
            }));
    }
  }
}

void time_atomics(Stream stream) {
  DeviceBuffer<unsigned> counter(1);
  counter.fill(0), synchronise({});
  for (const int n_blocks : {1, 16}) {
    for (const bool with_fences : {false, true}) {
      print(std::string("atomic") + (with_fences ? " with release and acquire" : "") +
                (n_blocks > 1 ? ", 16 multiprocessors on one counter" : ""),
            twice(n_blocks, stream, [&](Took* to) {
              launch(count, alone(n_blocks, 1), stream, counter.data(), with_fences, n_rounds(), to);
            }));
    }
  }
}

void time_messages(Stream stream) {
  const int n = device().n_multiprocessors;
  DeviceBuffer<unsigned> flags(64);
  for (const int partner : {1, 2, 17, 66, n - 1}) {
    if (partner >= n) continue;
    print("word to another multiprocessor, block " + std::to_string(partner),
          twice(1, stream,
                [&](Took* to) {
                  flags.fill(0, stream);
                  Launch config = alone(n, 1);
                  config.is_cooperative = true;
                  launch(exchange_flags, config, stream, flags.data(), partner, n_rounds(), to);
                }),
          2);
  }
  if (device().major < 9) return;
  for (const int n_blocks : {2, 4, 8}) {
    const Launch config{
        .grid = {static_cast<unsigned>(n_blocks)}, .block = {128}, .shared_bytes = 1024, .cluster = n_blocks};
    print("barrier of a cluster of " + std::to_string(n_blocks),
          twice(n_blocks, stream, [&](Took* to) { launch(meet_cluster, config, stream, n_rounds(), to); }));
    print("st.async in a cluster of " + std::to_string(n_blocks),
          twice(1, stream, [&](Took* to) { launch(exchange_async, config, stream, n_rounds(), to); }), 2);
  }
}

void time_dependents(Stream stream) {
  const int n = device().n_multiprocessors;
  for (const int n_blocks : {1, 16, n, 4 * n}) {
    for (const bool overlaps : {false, true}) {
      DeviceBuffer<std::uint64_t> ends(n), times(2 * n_blocks);
      std::vector<double> waited, loaded, all_loaded;
      for (int i = 0; i < (is_rehearsal() ? 2 : 21); ++i) {
        launch(wait_for, {}, stream, 20'000LL);  // until all is queued
        launch(note_ends, alone(n, 32), stream, ends.data());
        Launch config{.grid = {static_cast<unsigned>(n_blocks)}, .block = {256}};
        config.overlaps = overlaps;
        launch(note_first_loads, config, stream, ends.data(), times.data());
        synchronise(stream);
        const std::uint64_t end = std::ranges::max(ends.download());
        std::uint64_t first_wait = ~std::uint64_t{0}, first_load = first_wait, last_load = 0;
        const std::vector<std::uint64_t> found = times.download();
        for (std::size_t block = 0; block < found.size(); block += 2) {
          first_wait = std::min(first_wait, found[block]), first_load = std::min(first_load, found[block + 1]);
          last_load = std::max(last_load, found[block + 1]);
        }
        if (i == 0) continue;  // it has loaded the kernels
        for (const auto& [list, time] : {std::pair{&waited, first_wait}, {&loaded, first_load}, {&all_loaded, last_load}})
          list->push_back(static_cast<double>(static_cast<std::int64_t>(time - end)));
      }
      JsonLine("primitive")
          .add("name", std::string("end of the last block to the first load of a ") + (overlaps ? "dependent" : "plain") +
                           " launch of " + std::to_string(n_blocks) + " blocks")
          .add("ns", median(loaded))
          .add("waited_ns", median(waited))
          .add("last_ns", median(all_loaded));
    }
  }
}

void time_nodes(Stream stream) {
  for (const int n_blocks : {1, device().n_multiprocessors}) {
    for (const std::size_t shared : {std::size_t{0}, device().shared_bytes}) {
      for (const bool overlaps : {false, true}) {
        const Launch config{
            .grid = {static_cast<unsigned>(n_blocks)}, .block = {128}, .shared_bytes = shared, .overlaps = overlaps};
        const auto run = [&](int) { launch(empty, config, stream); };
        JsonLine("primitive")
            .add("name", "empty node of " + std::to_string(n_blocks) + (n_blocks == 1 ? " block" : " blocks") +
                             (shared > 0 ? " with all shared memory" : "") + (overlaps ? ", overlapped" : ""))
            .add("ns", 1e9 * time_in_graph(stream, 1, run, guess_of(stream, 1, run), 0.1));
      }
    }
  }
}

int time_all(const Options&) {
  const OwnedStream stream;
  for (const auto& time : {time_loads, time_fences, time_atomics, time_messages, time_dependents, time_nodes}) time(stream);
  return 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) { return tree_attn::run_program(argc, argv, "time_primitives", tree_attn::cuda::time_all); }
