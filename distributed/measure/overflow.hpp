// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The warning for finite input whose output is not finite in F32 (section 5).
#pragma once

#include "reference/decode/decode.hpp"

#include <optional>
#include <span>
#include <string>

namespace tree_attn {

/// One line that names the first row whose output is not finite although its query, keys and values are, and the cause: a
/// score, or an F64 element, that exceeds F32. Overflowing sums of values do not occur here: such a step is decoded again,
/// see decode_huge_values(). Empty if there is no such row.
///
/// Reads only the inputs of rows whose output is not finite.
/// @param[in] q queries [b, n_h, l, d_h]
/// @param[in] all all keys and values; if empty, they are assumed to be finite
/// @param[in] lengths keys in use per batch entry [b]
/// @param[in] output output of the decode over all keys
std::string overflow_of(const TensorView& q, const std::optional<Shard>& all, std::span<const std::int64_t> lengths,
                        const DecodeOutput& output);

}  // namespace tree_attn
