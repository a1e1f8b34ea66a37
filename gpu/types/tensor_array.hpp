// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Array in device memory that a tensor map describes, and the box of it that one copy fetches.
#pragma once

#include "gpu/types/device_error.hpp"
#include "reference/state/host_device.hpp"
#include "reference/tensor/dtype.hpp"

#include <cstdint>
#include <string>

namespace tree_attn {

/// Elements of a row that one box holds, and the bytes of such a row of 16-bit elements: the width of the swizzle.
inline constexpr int kBoxColumns = 64, kBoxRowBytes = 128;
/// The address of a box in shared memory is a multiple of this: eight rows, after which the swizzle repeats.
inline constexpr int kBoxAlignment = 1024;
/// The address of a tensor map on the host is a multiple of this when it is encoded: cuTensorMapEncodeTiled() asks for it.
inline constexpr int kMapAlignment = 64;

/// Index in its row of 16-byte vector `vector` (0 to 7) of row `row` of a box: the 128-byte swizzle.
///
/// The vectors of one number of eight consecutive rows lie in eight different groups of banks, so that ldmatrix reads them
/// without conflicts.
TREE_ATTN_HOST_DEVICE constexpr int swizzled_unit(int row, int vector) { return vector ^ (row % 8); }

/// A strided array [entries, heads, positions, d], the last axis contiguous, and a box of it. Rows of 16-bit elements are
/// swizzled in a box, those of F8_E4M3 lie as they are.
struct TensorArray {
  const void* data = nullptr;             ///< a multiple of 16 bytes
  DType dtype = DType::F16;               ///< F16, BF16 or F8_E4M3
  std::int64_t extent[4] = {0, 0, 0, 0};  ///< entries, heads, positions, d
  std::int64_t stride[3] = {0, 0, 0};     ///< elements from one entry, head, position to the next; multiples of 16 bytes
  int rows = 0;                           ///< consecutive positions in a box, 1 to 256

  /// Bytes of an element, and of a box.
  int size() const { return static_cast<int>(bytes_of(dtype)); }
  int box_bytes() const { return rows * kBoxColumns * size(); }
};

/// Why no tensor map can describe the array; empty if one can. An axis of extent 1 may have any stride.
inline std::string refusal(const TensorArray& array) {
  const char* const axis[] = {"entries", "heads", "positions", "elements of a row"};
  if (kernel_cores_of(array.dtype) != KernelCores::TensorCores)
    return "elements of " + std::string(name_of(array.dtype)) + "; a tensor map takes F16, BF16 and F8_E4M3";
  if (reinterpret_cast<std::uintptr_t>(array.data) % 16 != 0) return "the array does not start at a multiple of 16 bytes";
  for (int i = 0; i < 4; ++i) {
    if (array.extent[i] < 1 || array.extent[i] > std::int64_t{1} << 31)
      return std::to_string(array.extent[i]) + " " + axis[i] + "; a tensor map takes 1 to 2^31";
  }
  for (int i = 0; i < 3; ++i) {
    const std::int64_t n = array.stride[i], multiple = 16 / array.size();
    if (array.extent[i] > 1 && (n < 1 || n % multiple != 0 || n >= std::int64_t{1} << 39))
      return "a stride of " + std::to_string(n) + " elements between " + axis[i] + "; a tensor map takes multiples of " +
             std::to_string(multiple) + " below 2^39";
  }
  if (array.rows < 1 || array.rows > 256) return std::to_string(array.rows) + " rows in a box; a tensor map takes 1 to 256";
  return "";
}

/// Checks an array, and the address that its tensor map is written to.
///
/// An address of an over-aligned type may be wrong: the temporary of `map = make()` is a multiple of 16 only with g++ 12.
/// The type lets the compiler fold the remainder to 0, so the address is read through a volatile integer.
/// @throws DeviceError for an array that no map can describe, see refusal(), or an address that is no multiple of 64
inline void check_tensor_map(const void* map, const TensorArray& array) {
  if (const std::string why = refusal(array); !why.empty()) throw DeviceError("encode_tensor_map: " + why);
  const volatile std::uintptr_t address = reinterpret_cast<std::uintptr_t>(map);
  if (const auto past = address % kMapAlignment; past != 0)
    throw DeviceError("encode_tensor_map: a map at " + std::to_string(past) + " bytes past a multiple of 64");
}

}  // namespace tree_attn
