// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The axes and types of one attention step (the arrays of eq. (7)), as plans and caches need them.
#pragma once

#include "reference/tensor/view.hpp"

#include <algorithm>
#include <cstdint>

namespace tree_attn {

/// The axes of q [b, n_h, l, d_h], k [b, n_kv, N, d_h] and v [b, n_kv, N, d_v], except N, which grows in a cache, and l,
/// which belongs to a step.
struct AttentionShape {
  DType dtype = DType::F32;       ///< type of keys, and of queries in a kernel
  DType value_dtype = dtype;      ///< type of values; that of the keys unless it is given
  std::int64_t batch = 1;         ///< b
  std::int64_t heads = 16;        ///< n_h, a multiple of n_kv
  std::int64_t kv_heads = 16;     ///< n_kv
  std::int64_t head_dim = 128;    ///< d_h
  std::int64_t value_dim = 128;   ///< d_v
  bool values_in_keys = false;    ///< values are the first d_v components of the keys, and stored once (latent rows of MLA)
  std::int64_t row_multiple = 1;  ///< bytes of which a cache holds every row at a multiple: 16 on a device
  bool portable = false;          ///< the bits of the CPU on every device, so no tensor core multiplies
  bool in_pairs = false;          ///< as stored: the keys were given in a type of which sums_in_pairs() is true

  bool operator==(const AttentionShape&) const = default;
  /// Rows of the output of l queries: row (i, h, j) is (i n_h + h) l + j.
  std::int64_t n_rows(std::int64_t l) const { return batch * heads * l; }
  /// Query rows per key/value head of one batch entry: n_h / n_kv * l; 0 if the batch or n_kv is 0.
  std::int64_t rows_per_kv_head(std::int64_t l) const { return batch == 0 || kv_heads == 0 ? 0 : heads / kv_heads * l; }
  /// Bytes of a key, of a value beside it, and of a position: one of each for every key/value head of every batch entry.
  std::int64_t key_bytes() const { return head_dim * static_cast<std::int64_t>(bytes_of(dtype)); }
  std::int64_t value_bytes() const {
    return values_in_keys ? 0 : value_dim * static_cast<std::int64_t>(bytes_of(value_dtype));
  }
  std::int64_t bytes_per_position() const { return batch * kv_heads * (key_bytes() + value_bytes()); }
  /// Bytes from a row of so many to the next one in a cache, and bytes that a cache holds for a position.
  std::int64_t pitch_of(std::int64_t n) const { return (n + row_multiple - 1) / row_multiple * row_multiple; }
  std::int64_t held_bytes_per_position() const {
    return batch * kv_heads * (pitch_of(key_bytes()) + pitch_of(value_bytes()));
  }
};

/// Throws std::invalid_argument unless no axis is negative, d_h is not 0, n_h a multiple of n_kv, and values fit in keys.
/// @param function that has the shape as an argument
inline void require_shape(const char* function, const AttentionShape& shape) {
  const auto& [dtype, value_dtype, b, n_h, n_kv, d_h, d_v, in_keys, row_multiple, portable, in_pairs] = shape;
  require(std::min({b, n_h, n_kv, d_h, d_v}) >= 0, function, ": b = ", b, ", n_h = ", n_h, ", n_kv = ", n_kv,
          ", d_h = ", d_h, ", d_v = ", d_v, "; an axis is negative");
  require(d_h > 0, function, ": head_dim of q and k is 0");
  require(n_kv == 0 ? n_h == 0 : n_h % n_kv == 0, function, ": ", n_h, " query heads are not a multiple of ", n_kv,
          " KV heads (q, k, v are [b, heads, positions, d])");
  require(!in_keys || (d_v <= d_h && value_dtype == dtype), function, ": values of ", d_v, " elements of ",
          name_of(value_dtype), " are not components of keys of ", d_h, " elements of ", name_of(dtype));
}

/// The shape of the given tensors.
/// @param q [b, n_h, l, d_h]
/// @param k [b, n_kv, N, d_h]
/// @param v [b, n_kv, N, d_v]
inline AttentionShape shape_of(const TensorView& q, const TensorView& k, const TensorView& v) {
  return {k.dtype, v.dtype, q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3]};
}

}  // namespace tree_attn
