// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The keys of listed leaves in steps of eight positions, for sub-warps (section 5.3).
#pragma once

#include "gpu/parts/key_accumulator.cuh"
#include "gpu/parts/listed_leaves.cuh"

#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// As KeySteps, but of leaves that lie anywhere in the cache. The leaf with the last key of the sequence may be any of them:
/// its steps without a key are part of the walk, and change no bit.
class ListedSteps {
 public:
  static constexpr bool kIsListed = true;

  __device__ __forceinline__ ListedSteps(KeyRange range, const LeavesInUse& used) : part_(range, used) {
    const int n = part_.n_leaves;
    size_ = n == 0 ? 0 : (n - 1) * kStepsPerLeaf + (part_.n_keys(n - 1) + kKeysPerStep - 1) / kKeysPerStep;
  }

  /// The row that rows are counted from.
  __device__ __forceinline__ std::int64_t origin() const { return 0; }
  __device__ __forceinline__ int size() const { return size_; }
  __device__ __forceinline__ unsigned valid(int step) const {
    if (step >= size_) return 0;
    return lowest_of_eight(part_.n_keys(step / kStepsPerLeaf) - step % kStepsPerLeaf * kKeysPerStep);
  }
  __device__ __forceinline__ bool ends_leaf(int step) const {
    return step + 1 == size_ || (step < size_ && step % kStepsPerLeaf == kStepsPerLeaf - 1);
  }
  __device__ __forceinline__ int leaf(int step) const { return step / kStepsPerLeaf; }

  /// The first row of a step.
  __device__ __forceinline__ int row(int step) const {
    const int i = step / kStepsPerLeaf;
    return i < part_.n_leaves ? part_.row_of(i) + step % kStepsPerLeaf * kKeysPerStep : 0;
  }
  /// The same for one step after the other: the list is read once per leaf.
  class Rows {
   public:
    Rows() = default;
    __device__ __forceinline__ explicit Rows(const ListedPart& part) : part_(part) {}
    __device__ __forceinline__ int first(int step) {
      const int i = step / kStepsPerLeaf, in_leaf = step % kStepsPerLeaf;
      if (in_leaf == 0) row_ = part_.row_of(i);
      return row_ + in_leaf * kKeysPerStep;
    }

   private:
    ListedPart part_;
    int row_ = 0;  ///< the first of the leaf
  };
  __device__ __forceinline__ Rows rows() const { return Rows(part_); }

  template <IsSubWarp SubWarp>
  __device__ __forceinline__ auto forest(float* memory, int lane, KeyRange) const {
    return ListedForest<SubWarp::kElements, SubWarp::kLanes>(memory, lane, part_);
  }

 private:
  ListedPart part_;
  int size_;
};

/// The steps of a range of leaves, in the order of leaves that the parameters have.
template <class Params>
using StepsOf = std::conditional_t<Params::kIsListed, ListedSteps, KeySteps>;

}  // namespace tree_attn::TREE_ATTN_PLATFORM
