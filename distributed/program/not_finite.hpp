// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A line about output that F32 does not hold (section 5).
#pragma once

#include "reference/data/workload.hpp"

#include <string>

namespace tree_attn {

/// Names the first row of the last step with NaN or Inf in out or with a lse of NaN or +inf, or with a lse of -inf although
/// it sees a key or has a sink: the input has such elements, or a score or an element exceeds F32. Looks for a key in rows
/// with a lse of -inf only. Empty if there is no such row.
/// @param[in] workload decoded; `output` is that of its last step
std::string not_finite(const DecodeOutput& output, const Workload& workload);

}  // namespace tree_attn
