// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The stored types of the library kernel over listed leaves.
#include "gpu/parts/listed_runs.hpp"

#include "gpu/parts/equal_runs.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

LaunchPlan plan_listed_runs(const ListedParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan;
  with_type(dtype, [&](auto type) { plan = plan_equal_runs<decltype(type)>(params, options); });
  return plan;
}

void run_listed_runs(const ListedParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                     const Workspace& workspace, Stream stream) {
  with_type(dtype, [&](auto type) { run_equal_runs<decltype(type)>(params, output, plan, workspace, stream); });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
