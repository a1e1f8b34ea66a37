// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The seven merges above eight neighbouring keys, with the numbers on the way in registers (section 5).
#pragma once

#include "reference/state/state.hpp"

namespace tree_attn {

/// Keys that climb together, and the level of the subtree that they fill.
inline constexpr int kKeysPerStep = 8, kKeyStepLevel = 3;

/// The merges of eight keys whose first stands at a multiple of eight: the same merges in the same order as key by key.
///
/// One of the two factors of a merge is 1, the other that of Rescale: the choice of merge_element() turned into a
/// multiplication that changes nothing. Compile without contraction to fused multiply-add, which would skip the rounding of
/// weight * v.
template <class Real>
class MergeEight {
 public:
  /// Plans the merges. @param[in,out] shift those of the keys; ends with that of their subtree in shift[0]
  TREE_ATTN_HOST_DEVICE explicit MergeEight(Real (&shift)[kKeysPerStep]) {
    TREE_ATTN_UNROLL
    for (int level = 1; level <= kKeyStepLevel; ++level) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < kKeysPerStep >> level; ++i) {
        const int first = i << level, k = index(first, 1 << level);
        const Rescale<Real> r = rescale(shift[first], shift[first + (1 << level >> 1)]);
        shift[first] = r.shift;
        left_[k] = r.right_is_high ? r.factor : 1;
        right_[k] = r.right_is_high ? 1 : r.factor;
      }
    }
  }

  /// The merged number of the subtree of `kWidth` keys from `kFirst` on, or a few such numbers side by side.
  /// @param number gives that of a single key
  template <int kWidth = kKeysPerStep, int kFirst = 0, class Number>
  TREE_ATTN_HOST_DEVICE auto value(const Number& number) const {
    if constexpr (kWidth == 1) {
      return number(kFirst);
    } else {
      constexpr int kIndex = index(kFirst, kWidth);
      const auto left = value<kWidth / 2, kFirst>(number), right = value<kWidth / 2, kFirst + kWidth / 2>(number);
      return decltype(left)(left_[kIndex] * left + right_[kIndex] * right);
    }
  }

 private:
  /// Index of a merge: four of width 2, two of width 4, one of width 8.
  TREE_ATTN_HOST_DEVICE static constexpr int index(int first, int width) {
    return kKeysPerStep - 2 * kKeysPerStep / width + first / width;
  }

  Real left_[kKeysPerStep - 1], right_[kKeysPerStep - 1];
};

}  // namespace tree_attn
