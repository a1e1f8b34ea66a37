// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The seven merges above eight neighbouring keys, with the numbers on the way in registers (section 5).
#pragma once

#include "reference/state/state.hpp"

namespace tree_attn {

/// Keys that climb together, and the level of the subtree that they fill.
inline constexpr int kTogether = 8, kTogetherLevel = 3;

/// The merges of eight keys whose first stands at a multiple of eight: the same merges in the same order as key by key.
///
/// One of the two factors of a merge is 1, the other that of Rescale: the choice of merge_number() turned into a
/// multiplication that changes nothing. Compile without contraction to fused multiply-add, which would skip the rounding of
/// weight * v.
template <class Real>
class MergesTogether {
 public:
  /// Plans the merges. @param[in,out] shift those of the keys; ends with that of their subtree in shift[0]
  TREE_ATTN_HOST_DEVICE explicit MergesTogether(Real (&shift)[kTogether]) {
    TREE_ATTN_UNROLL
    for (int level = 1; level <= kTogetherLevel; ++level) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < kTogether >> level; ++i) {
        const int first = i << level, k = place(first, 1 << level);
        const Rescale<Real> r = rescale(shift[first], shift[first + (1 << level >> 1)]);
        shift[first] = r.shift;
        left_[k] = r.right_is_high ? r.factor : 1;
        right_[k] = r.right_is_high ? 1 : r.factor;
      }
    }
  }

  /// The merged number of the subtree of `kWidth` keys from `kFirst` on, or a few such numbers side by side.
  /// @param number gives that of a single key
  template <int kWidth = kTogether, int kFirst = 0, class Number>
  TREE_ATTN_HOST_DEVICE auto value(const Number& number) const {
    if constexpr (kWidth == 1) {
      return number(kFirst);
    } else {
      constexpr int kPlace = place(kFirst, kWidth);
      const auto left = value<kWidth / 2, kFirst>(number), right = value<kWidth / 2, kFirst + kWidth / 2>(number);
      return decltype(left)(left_[kPlace] * left + right_[kPlace] * right);
    }
  }

 private:
  /// Place of a merge: four of width 2, two of width 4, one of width 8.
  TREE_ATTN_HOST_DEVICE static constexpr int place(int first, int width) { return kTogether - 2 * kTogether / width + first / width; }

  Real left_[kTogether - 1], right_[kTogether - 1];
};

}  // namespace tree_attn
