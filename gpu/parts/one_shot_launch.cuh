// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch of the library kernel with an exchange at its end, for one stored type (section 6).
#pragma once

#include "gpu/parts/one_shot.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The plan of the library kernel, whose blocks are as many as the device holds at once.
template <class T, class Params>
LaunchPlan plan_one_shot(const Params& params) {
  LaunchPlan plan = plan_equal_runs<T>(params, {});
  plan.shared_bytes += OneShotEnd::kSharedBytes;
  return plan;
}

/// Launches what was planned. Blocks wait for other devices, which wait for blocks of this launch, so the launch is
/// cooperative. It does not overlap the launch before it: CUDA does not say that a cooperative launch may.
template <class T, class Params>
void run_one_shot(const Params& params, const OneShotEnd& end, const LaunchPlan& plan, const Workspace& workspace,
                  Stream stream) {
  if (params.n_rows() == 0) return;
  with_pipeline<T>(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    launch_runs<Pipeline>(one_shot<Pipeline>, {.is_cooperative = true}, params, end, plan, workspace, stream);
  });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
