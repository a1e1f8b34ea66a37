// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Queries, keys and values that tests of Attention give to its objects.
#pragma once

#include "distributed/interface/attention.hpp"
#include "tests/support/tensors.hpp"

#include <random>

namespace tree_attn::test {

/// Normally distributed queries of a step, and keys and values of all sequences.
struct Sequences {
  Tensor q, k, v;

  /// @param l queries @param n positions of each sequence @param given type of the tensors
  Sequences(const AttentionShape& shape, std::int64_t l, std::int64_t n, std::mt19937 random, DType given = DType::F32)
      : q(normal_tensor(random, {shape.batch, shape.heads, l, shape.head_dim}, given)),
        k(normal_tensor(random, {shape.batch, shape.kv_heads, n, shape.head_dim}, given)),
        v(normal_tensor(random, {shape.batch, shape.kv_heads, n, shape.value_dim}, given)) {}
  /// Appends the positions of an entry from its length up to n.
  void append(Attention& to, std::int64_t entry, std::int64_t n) const {
    const std::int64_t at = to.lengths()[static_cast<std::size_t>(entry)];
    to.append(entry, k.view().entry(entry).positions(at, n), v.view().entry(entry).positions(at, n));
  }
};

}  // namespace tree_attn::test
