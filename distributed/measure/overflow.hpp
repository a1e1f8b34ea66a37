// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a user is told where finite input has no finite output in F32 (section 5).
#pragma once

#include "reference/decode/decode.hpp"

#include <optional>
#include <span>
#include <string>

namespace tree_attn {

/// One line that names the first row with an output that is not finite although its query, keys and values are, and what
/// overflowed: a score or an element of F64 beyond F32. A sum of values is not among these, see needs_lift(). Empty if there
/// is no such row.
///
/// Reads the inputs of rows whose output is not finite, and nothing else.
/// @param[in] q queries [b, n_h, l, d_h]
/// @param[in] all all keys and values; without them, they are taken to be finite
/// @param[in] lengths keys in use per batch entry [b]
/// @param[in] output of the decode over all of them
std::string overflow_of(const TensorView& q, const std::optional<Shard>& all, std::span<const std::int64_t> lengths,
                        const DecodeOutput& output);

}  // namespace tree_attn
