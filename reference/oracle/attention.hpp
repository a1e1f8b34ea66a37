// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The oracle: attention, its energy and its gradient on stored tensors, in double (sections 3, 4 and eq. (7)).
///
/// All other code is tested against these results. Scores and weights follow the definition: one pass computes the scores, a
/// second one the sums relative to the largest score, without rescaling.
#pragma once

#include "reference/state/mask.hpp"
#include "reference/state/seen.hpp"
#include "reference/tensor/convert.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tree_attn {

/// The options of attention().
struct AttentionOptions {
  std::optional<double> scale{};        ///< factor of q.k; 1/sqrt(d_h) by default. The paper includes it in q.
  SeenRule rule{};                      ///< which of the N keys of a sequence a query sees
  std::vector<double> sink{};           ///< natural logits [n_h] of learned sinks, keys of value 0; empty: none
  std::vector<std::int64_t> lengths{};  ///< N of each batch entry [b]; empty: all keys. Later keys are not read.
  std::optional<TensorView> zeta{};     ///< sources [b, n_h, l, d_v]; if given, energy and gradient are computed too
  Mask mask{};                          ///< added to the scores, see mask.hpp
  std::vector<float> key_scale{};       ///< factors of stored keys [b, n_kv]; empty: 1
  std::vector<float> value_scale{};     ///< of values
  double softcap = 0;                   ///< c of the scores c tanh(s / c), which come before the mask; 0: none
  /// Called with the part that is done, 0 to 1, after each block of query rows.
  std::function<void(double)> progress{};
};

/// The result of attention(), dense, last axis fastest.
struct AttentionResult {
  std::vector<double> out;       ///< z [b, n_h, l, d_v], the mean of the values
  std::vector<double> lse;       ///< [b, n_h, l], natural: F(0)
  std::vector<double> energy;    ///< [b, n_h, l], F(zeta); empty without zeta
  std::vector<double> gradient;  ///< [b, n_h, l, d_v], dF/dzeta at zeta; empty without zeta
};

/// Attention of every query over the keys it sees.
///
///     s_a = scale q.k_a or c tanh(scale q.k_a / c), + mask_a,    lse = log sum_a exp(s_a),    z = sum_a exp(s_a - lse) v_a
///     F(zeta) = log sum_a exp(s_a + zeta.v_a),    dF/dzeta = sum_a softmax(s + zeta.v)_a v_a
///
/// Query head h reads key/value head h / (n_h / n_kv). Keys and values are converted to double in blocks, and the queries of
/// a group share each block, so neither the keys nor the values are ever stored in double as a whole.
///
/// At the edges the result is that of the formula in IEEE arithmetic:
/// - no visible keys: z = 0, lse = F = -inf, gradient 0;
/// - a score of -inf masks the key and its value is not read; s_a + zeta.v_a = -inf masks it in F;
/// - a score of +inf or NaN makes z and lse NaN;
/// - an Inf value gives Inf; together with the opposite Inf, or with a weight that is exactly 0 in double, it gives NaN.
///
/// @param[in] q queries [b, n_h, l, d_h]
/// @param[in] k keys [b, n_kv, N, d_h]
/// @param[in] v values [b, n_kv, N, d_v]
/// @param[in] options scale, which keys are seen, learned sinks, lengths, zeta, mask and soft cap
/// @throws std::invalid_argument as check_shapes() and check_options() do
/// @paper{eq_5, eq. (5)}
/// @paper{eq_7, eq. (7)}
/// @paper{obs_1, Obs. 1}
AttentionResult attention(const TensorView& q, const TensorView& k, const TensorView& v,
                          const AttentionOptions& options = {});

/// Checks that the shapes of q [b, n_h, l, d_h], k [b, n_kv, N, d_h] and v [b, n_kv, N, d_v] match.
///
/// The oracle, the decoders and the program share this check. Allowed: b, n_h, l, N or d_v of 0; d_v != d_h. A tensor
/// without elements may have no data.
/// @param[in] q, k, v the tensors; only their shapes are read, and whether they have data
/// @throws std::invalid_argument in one line: "attention: head_dim of q (128) and k (64) differ"
void check_shapes(const TensorView& q, const TensorView& k, const TensorView& v);

/// Checks the scale, the lengths, the zeta and the mask of `options` against tensors that passed check_shapes().
///
/// @param[in] q, k, v the tensors
/// @param[in] options of the call
/// @throws std::invalid_argument in one line: "attention: length 9 of batch entry 1 is not in [0, 8]"
void check_options(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options);

/// The factor of q.k: options.scale, or 1/sqrt(d_h).
double scale_of(const TensorView& q, const AttentionOptions& options);

/// Keys that query i of batch entry b sees.
Seen seen_by(const TensorView& q, const TensorView& k, const AttentionOptions& options, std::int64_t b, std::int64_t i);

}  // namespace tree_attn
