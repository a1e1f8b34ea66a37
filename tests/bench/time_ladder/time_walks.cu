// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times one block that does not wait for memory (section 6).
///
/// Run: time_walks
/// Launches the step `equal-runs` with one block per key/value head, on few heads and an input that the L2 cache holds. So
/// most multiprocessors are idle, and a block gets bytes several times as fast as when all of them read from memory. The
/// time that twice as many keys add has no start and no end of a launch in it: it is that of the walk, its copies included.
/// Prints one line of JSON per shape with the bytes per second of one block. Where they exceed the part of the memory's rate
/// that falls to one multiprocessor, the arithmetic does not limit the kernel.
#include "gpu/backend/workspace.hpp"
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/program.hpp"
#include "tests/bench/time_ladder/shapes.hpp"

namespace tree_attn::cuda {
namespace {

constexpr std::int64_t kKeys = 2048, kKvHeads = 4;

void time_shape(DType dtype, std::int64_t heads, Stream stream) {
  LaunchPlan plan;
  double seconds[2];
  for (const int i : {0, 1}) {
    const Shape shape = one_sequence(dtype, heads, kKvHeads, (i + 1) * (is_rehearsal() ? 64 : kKeys));
    if (!fits_in_l2(shape.n_bytes())) {
      JsonLine("walk").add("shape", shape.name).add("note", "the L2 cache does not hold it");
      return;
    }
    const Input input(shape, 1, stream);
    const DecodeParams& params = input.params.front();
    plan = kEqualRuns.plan(params, dtype, {.n_splits = 1});
    const DeviceWorkspace workspace(plan);
    const DeviceBuffer<float> out(params.n_rows() * kDim), lse(params.n_rows());
    const auto run = [&](int) {
      kEqualRuns.run(params, dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(), stream);
    };
    seconds[i] = time_of(stream, 1, run).graph;
  }
  const Shape more = one_sequence(dtype, heads, kKvHeads, kKeys);
  const double n_bytes = static_cast<double>(more.n_bytes()) / static_cast<double>(kKvHeads);
  JsonLine("walk")
      .add("shape", more.name)
      .add("path", plan.path)
      .add("n_blocks", plan.n_blocks)
      .add("n_threads", plan.n_threads)
      .add("graph_seconds", seconds[0])
      .add("twice_seconds", seconds[1])
      .add("block_bytes_per_second", n_bytes / (seconds[1] - seconds[0]));
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  using namespace tree_attn;
  return run_program(argc, argv, "time_walks", [](const Options&) {
    const cuda::OwnedStream stream;
    cuda::time_shape(DType::BF16, cuda::kKvHeads, stream);
    cuda::time_shape(DType::BF16, 4 * cuda::kKvHeads, stream);
    cuda::time_shape(DType::F32, cuda::kKvHeads, stream);
    return 0;
  });
}
