// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Storage types and strided views of q, k and v (the arrays of eq. (7)).
///
/// q [b, n_h, l, d_h], k [b, n_kv, N, d_h], v [b, n_kv, N, d_v]: b batch, n_h query heads, n_kv key/value heads, l query
/// positions, N keys. A view never owns, never copies, and may start at any byte: files are mapped as they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tree_attn {

/// How numbers are stored. Arithmetic is always in F32 or better.
enum class Storage { F64, F32, F16, BF16 };

/// Bytes of one stored number.
std::size_t bytes_of(Storage storage);
/// "F64", "F32", "F16" or "BF16", as safetensors spells them.
std::string_view name_of(Storage storage);
/// Unit roundoff of the type: 2^-53, 2^-24, 2^-11, 2^-8.
double unit_roundoff(Storage storage);

/// A strided view of a 4-axis array of stored numbers; the last axis is contiguous.
struct TensorView {
  const std::byte* data = nullptr;             ///< first byte, at any alignment
  Storage storage = Storage::F32;              ///< type of one number
  std::array<std::int64_t, 4> shape{};         ///< lengths of the four axes
  std::array<std::int64_t, 3> stride{};        ///< numbers from one entry to the next, of the first three axes

  /// A view of a dense array, last axis fastest.
  static TensorView dense(const void* data, Storage storage, std::array<std::int64_t, 4> shape);
  /// First byte of the row [i, j, n, :].
  const std::byte* row(std::int64_t i, std::int64_t j, std::int64_t n) const;
  /// The positions [begin, end) of the third axis, as a view of the same memory.
  /// @throws std::out_of_range if they are not all there
  TensorView positions(std::int64_t begin, std::int64_t end) const;
};

/// Reads one row [i, j, n, :] of shape[3] numbers as Real; every stored type converts exactly, except F64 to float, which
/// rounds.
/// @param[out] out [shape[3]]
template <class Real>
void load_row(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t n, Real* out);

/// Converts `count` stored numbers at `from`, at any alignment, to Real.
template <class Real>
void load(const std::byte* from, Storage storage, std::int64_t count, Real* out);

/// Rounds `count` numbers to the stored type, to nearest, ties to even.
/// @param[out] to bytes_of(storage) * count bytes, at any alignment
void store(const float* from, Storage storage, std::int64_t count, std::byte* to);

}  // namespace tree_attn
