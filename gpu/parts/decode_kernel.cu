// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of the library, and how many additions kernels make.
#include "gpu/parts/decode_kernel.hpp"

#include "gpu/parts/equal_runs.cuh"
#include "gpu/parts/short_end.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

double chain_additions(const DecodeParams& params, DType) { return static_cast<double>(params.end - params.begin) + 4; }

double leaf_additions(const DecodeParams& params, DType) {
  return static_cast<double>(kLeafKeys) + n_tree_additions(params.end - params.begin);
}

double tensor_additions(const DecodeParams& params, DType) {
  // 64 products with each of three parts. Tensor cores truncate sums, which may cost two roundings each.
  return 2 * 3 * static_cast<double>(kLeafKeys) + n_tree_additions(params.end - params.begin);
}

namespace {

/// Shape and type choose the worker, see with_pipeline().
double n_additions(const DecodeParams& params, DType dtype) {
  return multiplies_on_tensor_cores(params, dtype) ? tensor_additions(params, dtype) : leaf_additions(params, dtype);
}

/// Clusters where they suit the shape and the device, else equal runs.
LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan;
  with_type(dtype, [&](auto type) { plan = plan_short_end<decltype(type)>(params, options); });
  return plan.cluster > 0 ? plan : plan_equal_runs(params, dtype, options);
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (plan.cluster == 0) return run_equal_runs(params, dtype, output, plan, workspace, stream);
  with_type(dtype, [&](auto type) { run_short_end<decltype(type)>(params, output, plan, workspace, stream); });
}

}  // namespace

const DecodeKernel kEqualRuns{.name = "equal-runs",
                              .brief = "equal runs over all blocks",
                              .keeps_states = true,
                              .n_additions = n_additions,
                              .refusal = accepts_any_grid,
                              .plan = plan_equal_runs<DecodeParams>,
                              .run = run_equal_runs<DecodeParams>};

const DecodeKernel kShortEnd{.name = "short-end",
                             .brief = "short sequences merge inside a cluster: the library kernel",
                             .keeps_states = true,
                             .n_additions = n_additions,
                             .refusal = accepts_any_grid,
                             .plan = plan,
                             .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
