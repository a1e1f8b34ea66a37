// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times the parts of a launch of the library kernels, by stamps of their blocks and warps (section 6).
///
/// Run: time_stamps [--quick] [--shape NAME;NAME] [--raw LAUNCHES]
/// Steps of the kernel `equal-runs`, alone on the device, each between two events. Prints one line of JSON per shape,
/// medians over steps of: the time until the last block has started, counted from the first; the walk of the median block;
/// from the end of the last walk to the first block of the launch that combines that has waited for it, and to the end of
/// the last one; from the first start to the last end; and between the events. What the events see beyond the stamps is the
/// launch itself, the first instructions of a block, and its exit.
///
/// With --raw, every block of the walks of so many steps instead: its multiprocessor, and nanoseconds since the first start
/// at which its warps began and ended their walks; and when each block that combines had waited for them, and ended. A time
/// that never came is -1. Where the launch leaves multiprocessors idle, every other one runs while blocks that only wait
/// hold as many of them: so blocks come to other multiprocessors, and the stamps show which of the two it is that ends late
/// each time.
#include "gpu/backend/workspace.hpp"
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/program.hpp"
#include "tests/bench/time_ladder/shapes.hpp"
#include "tests/bench/time_ladder/stamped_runs.cuh"

#include <functional>
#include <string>
#include <vector>

namespace tree_attn::cuda {
namespace {

constexpr int kLaunches = 51;

/// Takes a multiprocessor for itself until it is told to end, or 10 ms have passed.
__global__ void hold(const unsigned* is_over) {
  const std::uint64_t begin = nanoseconds();
  wait_until([&] { return load_acquire(is_over) != 0 || nanoseconds() - begin > 10'000'000; });
}

/// The stamps of the blocks that had work, and what follows from them, in seconds.
struct Launched {
  std::vector<BlockStamps> blocks, combining;
  double event = 0;

  static std::uint64_t ended_walk(const BlockStamps& block) { return *std::ranges::max_element(block.walked); }
  std::uint64_t first_start() const {
    return std::ranges::min(blocks, {}, [](auto& b) { return b.started[0]; }).started[0];
  }
  std::uint64_t last_end() const { return std::ranges::max_element(combining, {}, &BlockStamps::done)->done; }
  double start() const {
    return seconds(first_start(), std::ranges::max(blocks, {}, [](auto& b) { return b.started[0]; }).started[0]);
  }
  double walk() const {
    std::vector<double> walks;
    for (const BlockStamps& block : blocks) walks.push_back(seconds(block.started[0], ended_walk(block)));
    return median(walks);
  }
  std::uint64_t last_walk() const { return ended_walk(std::ranges::max(blocks, {}, ended_walk)); }
  double handover() const { return seconds(last_walk(), std::ranges::min(combining, {}, &BlockStamps::waited).waited); }
  double end() const { return seconds(last_walk(), last_end()); }
  double kernel() const { return seconds(first_start(), last_end()); }

 private:
  static double seconds(std::uint64_t from, std::uint64_t to) {
    return 1e-9 * static_cast<double>(static_cast<std::int64_t>(to - from));
  }
};

void print_raw(const Shape& shape, int number, int n_held, const Launched& launched) {
  const auto all = [&](const std::vector<BlockStamps>& blocks, auto&& times) {
    std::vector<std::int64_t> list;
    for (const BlockStamps& block : blocks) {
      for (const std::uint64_t time : times(block))
        list.push_back(time == 0 ? -1 : static_cast<std::int64_t>(time - launched.first_start()));
    }
    return list;
  };
  std::vector<std::int64_t> multiprocessors;
  for (const BlockStamps& block : launched.blocks)
    multiprocessors.push_back(static_cast<std::int64_t>(block.multiprocessor));
  JsonLine line("raw stamps");
  line.add("shape", shape.name).add("step", kEqualRuns.name).add("launch", number);
  line.add("event_seconds", launched.event).add("held", n_held).add("smid", multiprocessors);
  line.add("started", all(launched.blocks, [](auto& b) { return std::vector(std::begin(b.started), std::end(b.started)); }));
  line.add("walked", all(launched.blocks, [](auto& b) { return std::vector(std::begin(b.walked), std::end(b.walked)); }));
  line.add("waited", all(launched.combining, [](auto& b) { return std::vector{b.waited}; }));
  line.add("combined", all(launched.combining, [](auto& b) { return std::vector{b.done}; }));
}

/// @param n_raw steps that are printed as they are; 0: medians
void time_step(const Shape& shape, int n_raw, Stream stream) {
  const int n_sets = n_sets_past_l2(shape.n_bytes());
  const Input input(shape, n_sets, stream);
  const DecodeParams& first = input.params.front();
  const LaunchPlan plan = kEqualRuns.plan(first, shape.dtype, {});
  const DeviceWorkspace workspace(plan);
  const DeviceBuffer<float> out(first.n_rows() * first.d_v), lse(first.n_rows());
  const dim3 combining = launch_of_combine(first, {}, plan, 1).grid;
  DeviceBuffer<BlockStamps> stamps(plan.n_blocks + std::int64_t{combining.x} * combining.y);

  const OwnedStream other;
  DeviceBuffer<unsigned> is_over(1);
  std::vector<Launched> all;
  for (int i = 0; i <= (is_rehearsal() ? (n_raw > 0 ? 2 : 1) : n_raw > 0 ? n_raw : kLaunches); ++i) {
    stamps.fill(0), is_over.fill(0);
    check(cudaDeviceSynchronize(), "clearing the stamps");
    const int n_held = n_raw > 0 && i % 2 == 0 ? std::max(0, device().n_multiprocessors - plan.n_blocks) : 0;
    if (n_held > 0) {
      const Launch config{.grid = {static_cast<unsigned>(n_held)}, .block = {32}, .shared_bytes = device().shared_bytes};
      launch(hold, config, other, is_over.data());
    }
    TimedEvent before, after;
    launch(wait_for, {}, stream, 20'000LL);
    before.record(stream);
    run_stamped(input.params[static_cast<std::size_t>(i % n_sets)], shape.dtype, {.out = out.data(), .lse = lse.data()},
                plan, workspace.get(), stamps.data(), stream);
    after.record(stream);
    is_over.fill(1, stream);
    synchronise(stream), synchronise(other);
    const std::vector<BlockStamps> blocks = stamps.download();
    const auto walks_end = blocks.begin() + plan.n_blocks;
    Launched launched{{blocks.begin(), walks_end}, {walks_end, blocks.end()}, after.since(before)};
    std::erase_if(launched.blocks, [](const BlockStamps& block) { return block.started[0] == 0; });
    if (i == 0) continue;  // it has loaded the kernel
    if (n_raw > 0) print_raw(shape, i, n_held, launched);
    all.push_back(std::move(launched));
  }
  if (n_raw > 0) return;
  JsonLine line("stamps");
  line.add("shape", shape.name).add("step", kEqualRuns.name).add("n_blocks", plan.n_blocks);
  const auto add = [&](const char* name, const auto& of) {
    std::vector<double> times;
    for (const Launched& launched : all) times.push_back(std::invoke(of, launched));
    line.add(name, median(times));
  };
  add("start_seconds", &Launched::start), add("walk_seconds", &Launched::walk), add("handover_seconds", &Launched::handover);
  add("end_seconds", &Launched::end);
  add("kernel_seconds", &Launched::kernel), add("event_seconds", &Launched::event);
}

int time_all(const Options& asked) {
  const OwnedStream stream;
  const int n_raw = asked.number("--raw", 0);
  for (const Shape& shape : shapes_of(asked))
    if (shape.dtype != DType::F8_E4M3) time_step(shape, n_raw, stream);
  return 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  return tree_attn::run_program(argc, argv, "time_stamps [--quick] [--shape NAME;NAME] [--raw LAUNCHES]",
                                tree_attn::cuda::time_all);
}
