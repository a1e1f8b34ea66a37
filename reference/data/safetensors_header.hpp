// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The header of a safetensors file: read once, front to back, and believed only after all checks.
#pragma once

#include "reference/data/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Lengths of axes are below this: the sum of a few of them, and their product with a few bytes, cannot overflow.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 48;
/// What array libraries stop at. Without it, fifty million axes of length 0 would be a legal tensor.
inline constexpr std::size_t kMaxAxes = 64;

/// What a header says, after all checks.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;   ///< by range; ranges of equal begin and end by name
  std::vector<std::size_t> by_name;  ///< places in tensors, sorted by name
};

/// Reads the JSON of a header: UTF-8, no key twice, every tensor with a dtype, a shape and a range that agree, and ranges
/// that cover the data once. Linear in the header but for three sorts. The strings of "__metadata__" are checked and not
/// kept: a key of them costs 8 bytes, whatever its length.
/// @param path named in errors
/// @param json the header, without its length
/// @param data_size bytes behind the header
/// @throws InputError "PATH: ..."
SafetensorsHeader parse_header(const std::string& path, std::string_view json, std::uint64_t data_size);

/// Bytes of a dense tensor of `bits` per number; nothing where they take 2^63 bits or more or are not whole
/// bytes, or the shape has a negative length, one of kMaxLength or more, or more than kMaxAxes axes. Axes of length 0 are
/// left out of the check, so that strides of an empty tensor do not overflow either.
std::optional<std::uint64_t> bytes_of_tensor(int bits, const std::vector<std::int64_t>& shape);

}  // namespace tree_attn
