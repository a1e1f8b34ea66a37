// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Output that is not finite in F32: sums of values, which are computed again, and a line about the rest (section 5).
#pragma once

#include "tree_attn/reference/data/workload.hpp"
#include "tree_attn/reference/decode/decode.hpp"

#include <string>

namespace tree_attn {

/// Whether a sum of finite values is not finite: some z_j is not, although lse is, and so are the components j of all values
/// that the query sees. Reads the values of such rows only.
/// @param[in] output of the last step of the workload
bool has_overflowed(Workload& workload, const DecodeOutput& output);

/// One line that names the first row with NaN or Inf in out, or a lse of NaN or +inf: the input has such elements, or a
/// score or an element exceeds F32. Empty if there is no such row; one that sees no key has out = 0 and lse = -inf.
/// @param[in] shape of the step whose output it is
std::string not_finite(const DecodeOutput& output, const AttentionShape& shape);

}  // namespace tree_attn
