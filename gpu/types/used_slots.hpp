// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A count as kernels have it, and the slots of a shard that have leaves (section 5).
#pragma once

#include "reference/state/host_device.hpp"

#include <cstdint>

namespace tree_attn {

/// Heads, rows, query tiles and work items as kernels count them: a 64-bit division takes several times the instructions.
using Count = std::uint32_t;

/// The slots of a shard that have leaves: some of [first, gap) and of [after, end), both of whose ends have one.
struct UsedSlots {
  Count first = 0, gap = 0, after = 0, end = 0;
  TREE_ATTN_HOST_DEVICE Count size() const { return gap - first + (end - after); }
};

}  // namespace tree_attn
