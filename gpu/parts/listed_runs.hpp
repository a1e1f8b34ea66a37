// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch of the library kernel over listed leaves: the dealt order (section 5.3).
///
/// The walks, the joins and the partition of the work are those of step 7 of the ladder, compiled for ListedParams. Short
/// sequences have no kernel of their own here, unlike in step 8.
#pragma once

#include "gpu/parts/launch_plan.hpp"
#include "gpu/parts/listed_params.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Plans a launch for any contents of the lists. @pre the library kernel takes the shape
LaunchPlan plan_listed_runs(const ListedParams& params, DType dtype, const LaunchOptions& options = {});
/// Launches what was planned for the same shapes.
/// @param[out] output one state [2 + d_v] per row and subtree of the shard, or finished rows; a row without keys has the
/// empty state, or z = 0 and lse = -inf
/// @throws DeviceError if the launch fails
void run_listed_runs(const ListedParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                     const Workspace& workspace, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
