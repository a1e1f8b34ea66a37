// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rows of a shard that lie densely, and rows in use.
#include "reference/decode/shard.hpp"

#include "reference/state/require.hpp"

#include <array>
#include <stdexcept>

namespace tree_attn {

Shard dense_shard(const AttentionShape& shape, std::int64_t n, const std::byte* memory, std::int64_t begin, bool on_device) {
  const std::array<std::int64_t, 4> of_values{shape.batch, shape.kv_heads, n, shape.value_dim};
  TensorView k = TensorView::dense(memory, shape.dtype, {shape.batch, shape.kv_heads, n, shape.head_dim});
  k.on_device = on_device;
  if (shape.values_in_keys) return {k, k.components(shape.value_dim), begin};
  const std::int64_t n_bytes = memory == nullptr ? 0 : shape.batch * shape.kv_heads * n * shape.key_bytes();
  TensorView v = TensorView::dense(memory + n_bytes, shape.value_dtype, of_values);
  v.on_device = on_device;
  return {k, v, begin};
}

std::vector<std::int64_t> rows_in_use(std::span<const std::int64_t> lengths, const OwnedLeaves& leaves) {
  std::vector<std::int64_t> n;
  for (const std::int64_t length : lengths) {
    require<std::out_of_range>(length >= 0, "rows_in_use: length ", length, " of batch entry ", n.size());
    n.push_back(leaves.n_keys(length));
  }
  return n;
}

}  // namespace tree_attn
