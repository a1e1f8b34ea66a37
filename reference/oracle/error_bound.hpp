// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The a-priori bound of the rounding errors of a decoder (appendix F, for Alg. 3).
///
/// Let u be the unit roundoff of the accumulator, w the exact softmax weights and s the exact scores. Then
///
///     |o_j - z_j| <= [ e^(2 E) - 1 + r ] sum_a w_a |v_aj|  +  far_j      and
///     |o_j - z_j| <= max_a v_aj - min_a v_aj + r max_a |v_aj|
///
///     E     = Delta + (W + c_w) u                           the weights, the same in numerator and denominator
///     Delta = max_a (c_s d_h + 1) u scale sum_k |q_k k_ak|  the score: a dot product of d_h elements
///             + 16 u (|s_a| + |mask_a|)                     if it is capped or masked
///     W     = max_a (max s - s_a)                           the argument of exp, rounded
///     c_w u = further errors of a weight
///     r     = (2 n_a + 2 (c_e + 2)(R + 1) + 3) u + u_out    the sums and products
///     n_a   = longest chain of additions,  R = most rescalings of one state,  c_e u = error of exp,  c_s u = that of q_k
///     k_ak far_j = sum of w_a |v_aj| over the far keys, max s - s_a >= ln(N / u) for any errors of the scores; the maxima
///             of Delta and W are over the near keys
///
/// The first bound is of the error of the weights, and grows with the scores. The second is of the hull of the values: z is
/// an average, and so is o up to r, whatever the weights are. The smaller one is returned.
///
/// A far key weighs less than u / N and may be lost to underflow. The bound therefore includes its whole contribution and
/// excludes it from Delta and W. On random problems the errors are below a tenth of this rigorous bound. For
/// well-conditioned problems (standard normal q, k, v) tests can require more: 16 u sum_a w_a |v_aj|.
#pragma once

#include "reference/oracle/attention.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn {

/// The parameters of the arithmetic.
struct ErrorModel {
  double roundoff = 0x1p-24;   ///< u, of the accumulator; 2^-24 for F32
  double n_additions = 0;      ///< n_a, longest chain of additions that a weight passes through
  double n_rescalings = 0;     ///< R; 0 where rescaling is by powers of two, which is exact
  double exp_error = 2;        ///< c_e, error of exp in units of u: 2 for a polynomial and for glibc, 4 for ex2.approx
  double score_error = 1;      ///< c_s, roundings of a product of q.k; 1.5 for tensor cores, which cut off
  double weight_error = 0;     ///< c_w, further relative error of a weight in units of u, the same in n and D
  double output_roundoff = 0;  ///< u_out, of the output type; 0 if that is the accumulator's
};

/// The model of tree decoding over n_keys keys. It is a balanced tree over single keys, n_a = ceil(log2 N) + 2, with
/// rescaling by powers of two, R = 0.
/// @param n_keys N, the largest number of keys that a query sees
/// @param roundoff u of the accumulator
ErrorModel tree_decode_model(std::int64_t n_keys, double roundoff = 0x1p-24);

/// Bounds of the absolute errors of a decoder.
struct ErrorBound {
  std::vector<double> out;  ///< [b, n_h, l, d_v]
  std::vector<double> lse;  ///< [b, n_h, l], of the natural lse: 8 u max(1, |lse|) + Delta + n_a u
};

/// The bound for every query and every component of its output, computed in double from the stored tensors.
///
/// Edges: without visible keys both bounds are 0, because the result is exact. Where the output is not finite, the bound is
/// NaN or Inf; compare the positions of NaN and Inf there, not the errors.
/// @param[in] q, k, v, options as in attention(); zeta is not read
/// @param[in] model the arithmetic
/// @throws std::invalid_argument as check_shapes() and check_options() do
ErrorBound error_bound(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                       const ErrorModel& model);

}  // namespace tree_attn
