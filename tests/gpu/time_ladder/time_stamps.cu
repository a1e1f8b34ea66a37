// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the time of a launch of the library kernels goes, by stamps of their blocks (section 6).
///
/// Run: time_stamps [--quick]
/// Launches of the kernel `equal-runs`, and of the library kernel where that merges in clusters, alone on the device, each
/// between two events. Prints one line of JSON per shape, medians over launches of: the time until the last block has
/// started, counted from the first; the walk of the median block; from the end of the last walk to the end of the last
/// block; from the first start to the last end; and between the events. What the events see beyond the stamps is the launch
/// itself, the first instructions of a block, and its exit.
#include "tree_attn/gpu/backend/workspace.hpp"
#include "tree_attn/tests/gpu/time_ladder/clocks.cuh"
#include "tree_attn/tests/gpu/time_ladder/program.hpp"
#include "tree_attn/tests/gpu/time_ladder/shapes.hpp"
#include "tree_attn/tests/gpu/time_ladder/stamped_runs.cuh"

#include <string>
#include <vector>

namespace tree_attn::cuda {
namespace {

constexpr int kLaunches = 51;

/// @param with_clusters whether the plan must have clusters; else it must have none
void time_step(const LadderStep& step, bool with_clusters, const Shape& shape, Stream stream) {
  const int n_sets = n_sets_past_l2(shape.n_bytes());
  const Input input(shape, n_sets, stream);
  const DecodeParams& first = input.params.front();
  const LaunchPlan plan = step.plan(first, shape.dtype, {});
  if ((plan.cluster > 0) != with_clusters) return;
  const DeviceWorkspace workspace(plan);
  const DeviceBuffer<float> out(first.n_rows() * first.d_v), lse(first.n_rows());
  DeviceBuffer<std::uint64_t> stamps(std::int64_t{plan.n_blocks} * kStamps);

  std::vector<double> start, walk, end, kernel, event;
  for (int i = 0; i <= (is_rehearsal() ? 1 : kLaunches); ++i) {
    stamps.fill(0);
    check(cudaDeviceSynchronize(), "clearing the stamps");
    TimedEvent before, after;
    launch(wait_for, {}, stream, 20'000LL);
    before.record(stream);
    run_stamped(input.params[static_cast<std::size_t>(i % n_sets)], shape.dtype, {.out = out.data(), .lse = lse.data()},
                plan, workspace.get(), stamps.data(), stream);
    after.record(stream);
    const double between = after.since(before);
    if (i == 0) continue;  // it has loaded the kernel
    const std::vector<std::uint64_t> times = stamps.download();
    std::uint64_t first_start = ~std::uint64_t{0}, last_start = 0, last_walk = 0, last_end = 0;
    std::vector<double> walks;
    for (std::size_t block = 0; block < times.size(); block += kStamps) {
      const std::uint64_t* const at = times.data() + block;
      if (at[kStarted] == 0) continue;
      first_start = std::min(first_start, at[kStarted]), last_start = std::max(last_start, at[kStarted]);
      last_walk = std::max(last_walk, at[kWalked]), last_end = std::max(last_end, at[kDone]);
      walks.push_back(1e-9 * static_cast<double>(at[kWalked] - at[kStarted]));
    }
    start.push_back(1e-9 * static_cast<double>(last_start - first_start));
    walk.push_back(median(walks));
    end.push_back(1e-9 * static_cast<double>(last_end - last_walk));
    kernel.push_back(1e-9 * static_cast<double>(last_end - first_start));
    event.push_back(between);
  }
  JsonLine("stamps")
      .add("shape", shape.name)
      .add("step", step.name)
      .add("n_blocks", plan.n_blocks)
      .add("start_seconds", median(start))
      .add("walk_seconds", median(walk))
      .add("end_seconds", median(end))
      .add("kernel_seconds", median(kernel))
      .add("event_seconds", median(event));
}

int time_all(const Options& asked) {
  const OwnedStream stream;
  for (const Shape& shape : shapes(asked.has("--quick")))
    if (shape.batch() == 1 && shape.n_keys() <= 1 << 16 && shape.dtype != DType::F8_E4M3)
      time_step(kEqualRuns, false, shape, stream), time_step(library_kernel(), true, shape, stream);
  return 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  return tree_attn::run_program(argc, argv, "time_stamps [--quick]", tree_attn::cuda::time_all);
}
