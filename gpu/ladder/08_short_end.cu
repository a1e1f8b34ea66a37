// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 8 of the ladder, the library kernel: short sequences merge inside a cluster (section 5, Alg. 3).
///
/// Left open in an earlier version of the paper: blocks of a cluster can read each other's shared memory, which could speed
/// up the reduction inside one device. What changed: up to 16k keys, the splits of a query tile are one cluster of at most
/// 16 blocks, and the kernel is that of step 4 with another end. Each block keeps its forest in shared memory, and after a
/// barrier of the cluster the first block reads those of the others where they are. Longer sequences, and shapes whose
/// clusters would leave multiprocessors idle, are left to step 7.
/// Bytes: the same.
/// Both kernels are dependent launches (Launch::overlaps): they may start while the launch before them still runs, which in
/// a step of a session is the kernel that appends a position. That one calls launch_dependents() first of all; these start
/// their first copies, of older positions, before they call wait_for_previous_launch(). The contract is begin_early()'s.
/// Expected: a release, an atomic and loads from L2 become a barrier of the cluster and loads from neighbours, about 1 us
/// less at the end of a launch of 10 to 20; and the start of the launch is hidden, with the first copies. Measured: not yet
/// in this form.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/short_end.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan;
  with_type(dtype, [&](auto type) { plan = plan_short_end<decltype(type)>(params, options); });
  return plan.cluster > 0 ? plan : kEqualRuns.plan(params, dtype, options);
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (plan.cluster == 0) return kEqualRuns.run(params, dtype, output, plan, workspace, stream);
  with_type(dtype, [&](auto type) { run_short_end<decltype(type)>(params, output, plan, workspace, stream); });
}

/// Shape and type choose the worker, as in step 7.
double n_additions(const DecodeParams& params, DType dtype) { return kEqualRuns.n_additions(params, dtype); }
std::string accepts(const DecodeParams& params, DType dtype) { return kEqualRuns.refusal(params, dtype); }

}  // namespace

const LadderStep kShortEnd{.name = "short-end",
                           .brief = "short sequences merge inside a cluster: the library kernel",
                           .keeps_states = true,
                           .n_additions = n_additions,
                           .refusal = accepts,
                           .plan = plan,
                           .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
