// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel for BF16 storage.
#include "gpu/parts/equal_runs_launch.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

template Plan plan_equal_runs<BFloat16>(const DeviceProblem&, const PlanOptions&);
template void run_equal_runs<BFloat16>(const DeviceProblem&, const DeviceOutput&, const Plan&, const Workspace&, Stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
