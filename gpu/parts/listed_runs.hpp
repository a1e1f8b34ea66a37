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

/// Plans a launch. Which lists there will be does not matter. @pre the library kernel takes the shape
LaunchPlan plan_listed_runs(const ListedParams& params, DType dtype, const LaunchOptions& options = {});
/// Launches what was planned for the same shapes. One state per subtree of the shard, or finished rows.
void run_listed_runs(const ListedParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                     const Workspace& workspace, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
