// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streaming decode of a shard: one pass over its keys and values, states out (sections 3 and 5; the CPU backend).
#pragma once

#include "reference/decode/kv_cache.hpp"
#include "reference/state/forest.hpp"
#include "reference/tensor/convert.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tree_attn {

/// States of the maximal subtrees of a shard, for every query.
///
/// One read of k and v serves all query heads of a group. Per leaf of 64 keys, every query computes its scores
///
///     s_a = log2(e) scale q.k_a,
///
/// brings the weights of the leaf to one shift, and sums them over a balanced tree, see leaf.hpp. The states of the leaves
/// climb the canonical tree as a binary counter carries. F32 accumulation; F64 storage is rounded to F32 as it is read.
///
/// What is finite by the formula is finite here, with three exceptions: a score, or a partial sum of one, beyond 2^128 in
/// base two; an element of F64 beyond F32; and a sum n of values above 3e38 / N. The last one is an Inf or NaN in z that no
/// rounding hides; over values multiplied by 2^-64 the same decode has it. A score of +inf is NaN, one of -inf a key not
/// seen.
///
/// Edges: positions from lengths[i] on are not read and count as the empty set. NaN and Inf follow the formula, see
/// set_key().
///
/// @param q queries [b, n_h, l, d_h]; row (i, h, j) of the result is (i * n_h + h) * l + j
/// @param shard keys and values of some positions, from the beginning of a leaf on
/// @param lengths keys in use per batch entry, [b], over the whole sequence and not over the shard
/// @param scale multiplies q.k, often 1/sqrt(d_h); see split_scale()
/// @param progress called after every chunk of up to 4096 keys: lets messages advance meanwhile; may be empty
/// @note one step of a session over a cache that borrows the shard, see backend.hpp; many steps take the session itself
/// @returns forest with n_rows = b * n_h * l over the positions of the shard
/// @throws as KvCache::borrow() and DecodeSession::decode(), if the shapes do not agree or a tensor with elements has no
/// data
/// @paper{eq_7, eq. (7)}
Forest<float> decode_shard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                           const std::function<void()>& progress = {});

/// Output of a decode step.
struct DecodeOutput {
  std::vector<float> out;  ///< z, [b, n_h, l, d_v]
  std::vector<float> lse;  ///< natural log-sum-exp, [b, n_h, l]; -inf where there was no key
};

/// The output of a step, in memory of the decoder.
struct OutputView {
  std::span<const float> out;  ///< z, [b, n_h, l, d_v]
  std::span<const float> lse;  ///< natural log-sum-exp, [b, n_h, l]; -inf where there was no key
  bool on_device = false;      ///< whether both lie in memory of a device

  /// @pre they lie in memory of the host
  DecodeOutput copy() const { return {{out.begin(), out.end()}, {lse.begin(), lse.end()}}; }
};

/// Finishes one state per row, [n_rows][2 + d_v], into outputs. @throws std::invalid_argument for another number of elements
DecodeOutput finish_rows(std::span<const float> states, std::int64_t n_rows, std::int64_t d_v);

}  // namespace tree_attn
