// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 10 of the ladder, the library kernel: equal runs of work over all multiprocessors (section 5.3, Alg. 3).
///
/// What changed: a block is no longer one split of one query. The keys of all query tiles of the batch form one sequence,
/// and block g of G takes the g-th part of it, wherever that begins and ends (work_partition.hpp): no multiprocessor is left
/// idle by 16 heads on 132 of them, nor by one long sequence among short ones. One kernel for all shapes: sub-warps with a
/// ring of copies (step 6) for one query a key/value head and for F32, tensor cores (step 7) for grouped heads of 16 bits.
/// Bytes: the same. Time: all multiprocessors end within 64 keys of each other.
/// Measured, H200: BF16, 16 heads, 0.51, 0.71 and 0.85 of the rate of a kernel that only reads, at 8k, 64k and 1M keys; F32
/// at 64k 0.81; BF16, 32 heads on 8, 0.20, 0.47 and 0.64, where chains of dependent instructions keep the tensor cores
/// waiting. A batch of unequal lengths has not been timed.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/equal_runs.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Shape and type choose the worker, see with_pipeline().
double n_additions(const DecodeParams& params, DType dtype) {
  return multiplies_on_tensor_cores(params, dtype) ? tensor_additions(params, dtype) : tree_additions(params, dtype);
}

LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan;
  with_type(dtype, [&](auto type) { plan = plan_equal_runs<decltype(type)>(params, options); });
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  with_type(dtype, [&](auto type) { run_equal_runs<decltype(type)>(params, output, plan, workspace, stream); });
}

}  // namespace

const LadderStep kEqualRuns{.name = "equal-runs",
                            .brief = "equal runs over all blocks: the library kernel",
                            .n_additions = n_additions,
                            .accepts = accepts_any_grid,
                            .plan = plan,
                            .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
