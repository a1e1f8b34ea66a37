// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 7 of the ladder: equal runs of work over all multiprocessors (section 5.3, Alg. 3).
///
/// What changed: a block is no longer one split of one query. The leaves of all query tiles of the batch form one sequence,
/// and block g of G takes the g-th part of it, wherever that begins and ends (work_partition.hpp). So neither 16 heads on
/// 132 multiprocessors nor one long sequence among short ones leave a multiprocessor idle. One kernel for all shapes:
/// sub-warps with rings (step 5) for one query per key/value head and for F32, tensor cores (step 6) for grouped heads of 16
/// bits. Every thread computes its part of the schedule itself, so that no barrier stands before the first copy. Bytes: the
/// same. Expected: all multiprocessors end within 64 keys of each other. Measured: not yet in this form.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/equal_runs.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Shape and type choose the worker, see with_pipeline().
double n_additions(const DecodeParams& params, DType dtype) {
  return multiplies_on_tensor_cores(params, dtype) ? tensor_additions(params, dtype) : leaf_additions(params, dtype);
}

}  // namespace

const LadderStep kEqualRuns{.name = "equal-runs",
                            .brief = "equal runs over all blocks",
                            .keeps_states = true,
                            .n_additions = n_additions,
                            .refusal = accepts_any_grid,
                            .plan = plan_equal_runs<DecodeParams>,
                            .run = run_equal_runs<DecodeParams>};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
