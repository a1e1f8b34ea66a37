// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A launch can be captured in a CUDA graph, and replayed with the same bits.
#include "tree_attn/tests/support/device_params.hpp"

#include <cuda_runtime.h>

namespace tree_attn::test {

TEST_CASE("graph: every step can be captured, and every replay has the bits of a launch") {
  const Axes axes{
      .batch = 2, .heads = 8, .kv_heads = 2, .head_dim = 128, .value_dim = 128, .n_keys = 3000, .dtype = DType::BF16};
  const auto workload = normal_workload(4400, axes, {{3000, 777}});
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  for (const device::LadderStep* step : device::all_kernels()) {
    if (step->refusal(shard.params, shard.dtype) != "") continue;
    INFO(step->name);
    // A launch by itself; it also loads the kernel, which a capture may not.
    const DecodeOutput want = run_step(*step, shard);

    const device::LaunchPlan plan = step->plan(shard.params, shard.dtype, {});
    const DeviceWorkspace workspace(plan);
    device::DeviceBuffer<float> out(shard.params.n_rows() * shard.params.d_v), lse(shard.params.n_rows());
    device::Stream stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    step->run(shard.params, shard.dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(), stream);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);

    // The second replay finds the workspace as the first has left it.
    for (int replay = 0; replay < 2; ++replay) {
      out.fill(0xFF), lse.fill(0xFF);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
      CHECK(same_output({out.download(), lse.download()}, want));
    }
    CHECK(is_ready(workspace));
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  }
}

}  // namespace tree_attn::test
