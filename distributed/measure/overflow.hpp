// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The warning for output that is not finite in F32 although it is by the formula (section 5).
#pragma once

#include "tree_attn/reference/data/workload.hpp"
#include "tree_attn/reference/decode/decode.hpp"
#include "tree_attn/reference/decode/step.hpp"

#include <optional>
#include <span>
#include <string>

namespace tree_attn {

/// Whether a sum of finite values is not finite: some z_j is not, although lse is, and so are the components j of all values
/// that the query sees. Reads the values of such rows only.
/// @param[in] output of the last step of the workload
bool has_overflowed(Workload& workload, const DecodeOutput& output);

/// One line that names the first row whose output is not finite although it is by the formula, and what exceeds F32: an
/// element of q, k or v that is stored as F64, a score in base two, or a partial sum of one. The cause is one that was found
/// in the input of that row; where none was found none is named. Overflowing sums of values do not occur here: such a step
/// is decoded again, see decode_huge_values(). Empty if there is no such row.
///
/// Reads only the inputs of rows whose output is not finite. NaN and Inf of other rows, or of other components of v, hide
/// nothing.
/// @param[in] step that was decoded
/// @param[in] all all keys and values; if empty, they are assumed to be finite, and no cause is named
/// @param scale multiplies q.k
/// @param[in] output output of the decode over all keys
std::string overflow_of(const Step& step, const std::optional<Shard>& all, double scale, const DecodeOutput& output);

}  // namespace tree_attn
