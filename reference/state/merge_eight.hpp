// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The seven merges above eight consecutive keys, with all intermediate elements in registers (section 5).
#pragma once

#include "reference/state/state.hpp"

namespace tree_attn {

/// Keys merged together, and the level of the subtree that they fill.
inline constexpr int kKeysPerStep = 8, kKeyStepLevel = 3;

/// The merges of eight keys, the first at a multiple of eight: the same merges in the same order as for single keys.
///
/// Of the two factors of a merge, one is 1 and the other is that of Rescale. This replaces the selection in merge_element()
/// by a multiplication by 1, which is exact. Compile without contraction to fused multiply-add, which would skip the
/// rounding of weight * v.
template <class Real>
class MergeEight {
 public:
  /// Computes the factors of all merges. @param[in,out] shift shifts of the keys; on return shift[0] is that of their
  /// subtree
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

  /// One merged element of the subtree of `kWidth` keys that starts at key `kFirst`; a vector type merges several elements
  /// at once.
  /// @param element element(i) is the element of the single key i
  template <int kWidth = kKeysPerStep, int kFirst = 0, class Element>
  TREE_ATTN_HOST_DEVICE auto value(const Element& element) const {
    if constexpr (kWidth == 1) {
      return element(kFirst);
    } else {
      constexpr int kIndex = index(kFirst, kWidth);
      const auto left = value<kWidth / 2, kFirst>(element), right = value<kWidth / 2, kFirst + kWidth / 2>(element);
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
