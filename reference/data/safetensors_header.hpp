// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The header of a safetensors file: parsed in one pass and fully checked before use.
#pragma once

#include "reference/data/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Exclusive upper limit for the length of an axis: sums of a few lengths, and products with a few bytes, cannot overflow.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 48;
/// The limit of common array libraries. Without it, a tensor could have fifty million axes of length 0.
inline constexpr std::size_t kMaxAxes = 64;

/// A checked header.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;   ///< sorted by range, then by name
  std::vector<std::size_t> by_name;  ///< indices into tensors, sorted by name
};

/// Parses the JSON of a header. Requires UTF-8, no duplicate keys, a consistent dtype, shape and range for every tensor, and
/// ranges that cover the data exactly once. Linear in the size of the header, except for three sorts. The strings of
/// "__metadata__" are checked but not kept: a key costs 8 bytes, whatever its length.
/// @param path named in errors
/// @param json the header, without its length
/// @param data_size bytes after the header
/// @throws InputError "PATH: ..."
SafetensorsHeader parse_header(const std::string& path, std::string_view json, std::uint64_t data_size);

/// Bytes of a dense tensor with `bits` per element. Empty if it has 2^63 bits or more, is not a whole number of bytes, has
/// more than kMaxAxes axes, or has an axis length that is negative or at least kMaxLength. The product skips axes of length
/// 0, so that the strides of an empty tensor do not overflow either.
std::optional<std::uint64_t> bytes_of_tensor(int bits, const std::vector<std::int64_t>& shape);

}  // namespace tree_attn
