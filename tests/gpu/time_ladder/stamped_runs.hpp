// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernels with stamps: when each of its blocks starts, has walked over its keys, and has joined.
#pragma once

#include "tree_attn/gpu/engine/launch.hpp"
#include "tree_attn/gpu/engine/params.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/reference/tensor/dtype.hpp"

#include <cstdint>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// What a block has reached, and of which its first thread notes the time.
enum Stage : int {
  kStarted,  ///< it has its memory and its first work range; the next it does is to start copies
  kWalked,   ///< the last of its work ranges has been walked over, by the first thread group
  kDone,     ///< all that it shares in has been joined
  kStamps    ///< number of stages
};

/// Queues the step `equal-runs` or, if the plan has clusters, `short-end`, with stamps. Its output has the same bits.
/// @param plan of that step @param[out] stamps [plan.n_blocks][kStamps], nanoseconds of a clock that all blocks share; those
/// of blocks without work are not written
/// @throws DeviceError for rows of other than 128 elements and latent rows, and types other than F32 and BF16
void run_stamped(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
                 const Workspace& workspace, std::uint64_t* stamps, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
