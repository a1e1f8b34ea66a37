// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The oracle: attention, its energy and its gradient over stored tensors, in double (sections 3, 4 and eq. (7)).
///
/// Everything else in the tree is held against these numbers. Scores and weights are those of the definition: one pass
/// for the scores, one for the weighted sum against the largest score of all, no rescaling on the way.
#pragma once

#include "reference/tensor/convert.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace tree_attn {

/// What attention() is asked for beside its tensors.
struct AttentionOptions {
  std::optional<double> scale{};        ///< factor of q.k; 1/sqrt(d_h) if not given. The paper folds it into q.
  bool causal = false;                  ///< query i of l sees the keys 0 .. N - l + i of its N; none if that is negative
  std::vector<std::int64_t> lengths{};  ///< N of each batch entry [b]; empty: all keys. Keys from there on are not read.
  std::optional<TensorView> zeta{};     ///< source vectors [b, n_h, l, d_v]; if given, energy and gradient are filled too
};

/// What attention() returns, dense, last axis fastest.
struct AttentionResult {
  std::vector<double> out;       ///< z [b, n_h, l, d_v], the mean of the values
  std::vector<double> lse;       ///< [b, n_h, l], natural: F(0)
  std::vector<double> energy;    ///< [b, n_h, l], F(zeta); empty without zeta
  std::vector<double> gradient;  ///< [b, n_h, l, d_v], dF/dzeta at zeta; empty without zeta
};

/// Attention of every query over the keys it sees.
///
///     s_a = scale q.k_a,    lse = log sum_a exp(s_a),    z = sum_a exp(s_a - lse) v_a
///     F(zeta) = log sum_a exp(s_a + zeta.v_a),    dF/dzeta = sum_a softmax(s + zeta.v)_a v_a
///
/// Query head h reads key/value head h / (n_h / n_kv); the queries of a group share one read of it, in pieces, so that
/// neither the keys nor the values are ever all held in double.
///
/// At the edges the result is what the formula gives in IEEE arithmetic:
/// - no keys seen: z = 0, lse = F = -inf, gradient 0;
/// - a score of -inf is a key not seen, its value is not looked at; so is a key with s_a + zeta.v_a = -inf in F;
/// - a score of +inf or NaN makes z and lse NaN;
/// - an Inf value stays Inf; beside an opposite Inf, or under a weight that is exactly 0 in double, it is NaN.
///
/// @param[in] q queries [b, n_h, l, d_h]
/// @param[in] k keys [b, n_kv, N, d_h]
/// @param[in] v values [b, n_kv, N, d_v]
/// @param[in] options scale, causal mask, lengths, zeta
/// @throws std::invalid_argument as check_shapes() and check_options() do
/// @paper{eq_5, eq. (5)}
/// @paper{eq_7, eq. (7)}
/// @paper{obs_1, Obs. 1}
AttentionResult attention(const TensorView& q, const TensorView& k, const TensorView& v,
                          const AttentionOptions& options = {});

/// Checks that q [b, n_h, l, d_h], k [b, n_kv, N, d_h] and v [b, n_kv, N, d_v] belong together.
///
/// The one check of the oracle, the decoders and the program. Legal: b, n_h, l, N or d_v of 0; d_v != d_h. A tensor with no
/// numbers in it may have no data.
/// @param[in] q, k, v the tensors; only their shapes and whether they have data is looked at
/// @throws std::invalid_argument in one line: "attention: head_dim of q (128) and k (64) differ"
void check_shapes(const TensorView& q, const TensorView& k, const TensorView& v);

/// Checks the lengths and the zeta of `options` against tensors that check_shapes() has passed.
///
/// @param[in] q, k, v the tensors
/// @param[in] options lengths and zeta are looked at
/// @throws std::invalid_argument in one line: "attention: length 9 of batch entry 1 is not in [0, 8]"
void check_options(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options);

/// The factor of q.k: options.scale, or 1/sqrt(d_h).
double scale_of(const TensorView& q, const AttentionOptions& options);

/// How many keys, counted from key 0, query i of batch entry b sees, 0 .. N.
std::int64_t n_visible(const TensorView& q, const TensorView& k, const AttentionOptions& options, std::int64_t b,
                       std::int64_t i);

}  // namespace tree_attn
