// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief States from the (o, lse) of other kernels, and back (section 5 of the paper).
///
/// A kernel that attends to a set S of keys returns o = sum_S softmax(s)_a v_a and lse = ln sum_S exp(s_a). Both together
/// are one key: with score lse and value o it weighs exp(lse), and contributes exp(lse) o, as all of S does. So the state of
/// S is set_key() of the two, and merges with every other state.
#pragma once

#include "reference/state/state.hpp"

#include <cstdint>
#include <limits>

namespace tree_attn {

/// The base of the logarithm in an lse, and what +inf says there.
///
/// - FlashAttention (Softmax::normalize_softmax_lse): natural. Where a row has seen no key, lse is +inf in a call without
///   splits and -inf in one with splits, and o is 0.
/// - FlashInfer (state_t::get_lse): base two, m + log2 d. Where a row has seen no key, lse is that of the initial state,
///   -5e4, and o is 0: a state that weighs 2^-50000, which is 0 beside any other.
/// - This library: natural, -inf.
enum class LseForm {
  kNatural,            ///< ln; +inf is a score of +inf, so the state is NaN
  kBaseTwo,            ///< log2; the same
  kNaturalOrInfEmpty,  ///< ln; +inf is the empty set, as FlashAttention 2 has it
};

/// The state of a set of keys of which a kernel has returned o and lse.
///
///     e = ceil(lse log2 e),     D = 2^(lse log2 e - e) in [1/2, 1],     n = D o
///
/// The exponent is computed in double, so the weight has no error but that of lse itself, |lse| u, and one rounding. In base
/// two nothing is multiplied: an integer lse gives D = 1 and n = o, exactly.
///
/// Edges: lse = -inf is the empty set, and o is not read; NaN, and +inf unless the form says otherwise, give a state whose D
/// is NaN, so that the output is NaN.
/// @param[out] state [2 + d_v]
/// @param[in] o output [d_v]; may be where n is, and must not overlap the state otherwise
/// @param lse log-sum-exp, in the base of `form`
template <class Real>
TREE_ATTN_HOST_DEVICE inline void set_from_lse(Real* state, const Real* o, Real lse, std::int64_t d_v,
                                               LseForm form = LseForm::kNatural) {
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  const bool is_empty_set = lse == -kInf || (lse == kInf && form == LseForm::kNaturalOrInfEmpty);
  if (is_empty_set) return set_empty(state, d_v);
  const double s = form == LseForm::kBaseTwo ? static_cast<double>(lse) : static_cast<double>(lse) * kLog2E;
  const Real weight = static_cast<Real>(key_weight(s));
  state[kShift] = static_cast<Real>(key_shift(s));
  state[kSum] = weight;
  for (std::int64_t j = 0; j < d_v; ++j) state[kValues + j] = weight * o[j];
}

/// The (o, lse) of a state: finish() in the base of `form`, for a kernel that merges by itself.
///
/// The empty set gives o = 0 and lse = -inf in every form.
/// @param[in] state [2 + d_v]
/// @param[out] o [d_v], may not overlap state
/// @returns lse; NaN where D is NaN
template <class Real>
TREE_ATTN_HOST_DEVICE inline Real to_lse(const Real* __restrict state, Real* __restrict o, std::int64_t d_v,
                                         LseForm form = LseForm::kNatural) {
  const Real natural = finish(state, o, d_v);
  if (form != LseForm::kBaseTwo || is_empty(state)) return natural;
  const Real lse = static_cast<Real>(log2_of(state[kShift], state[kSum]));
  return lse == lse ? lse : std::numeric_limits<Real>::quiet_NaN();
}

}  // namespace tree_attn
