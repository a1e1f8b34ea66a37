// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of copies in flight for one warp, whose lanes read what the others have copied (cp.async, section 6.3).
///
/// Tensor cores want rows spread over the lanes in their own way, so no lane can copy just what it will read. A barrier of
/// the warp, one an item, is all the order it takes; the block has none.
#pragma once

#include "gpu/parts/sub_warp.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Rows that are copied together, and the number of such items in a leaf.
inline constexpr int kItem = 16, kLeafItems = static_cast<int>(kLeafKeys) / kItem;

/// The subtree of a range that starts at its first position: a leaf, or of a leaf that the range's edge cuts the first of
/// the subtrees that cover what is left of it.
__device__ __forceinline__ Subtree first_leaf_subtree(KeyRange range) {
  const std::int64_t leaf_end = (range.begin / kLeafKeys + 1) * kLeafKeys;
  return first_subtree(range.begin, leaf_end < range.end ? leaf_end : range.end);
}

/// Rows of a subtree, subtree after subtree: four items of keys, then four of values. Rows without a key are zero, and never
/// read.
template <IsMmaTile Tile>
class TileRing {
 public:
  using T = typename Tile::T;
  static constexpr int kStages = Tile::kDim < 256 ? 512 / Tile::kDim : 4;  ///< 16 KiB a warp, or 32 for fewer warps
  static constexpr int kVectors = kStages * kItem * Tile::kPitch;          ///< 16-byte vectors of the ring of one warp

  /// Starts to fill all stages but one. @param range what will be walked over @param memory [kVectors]
  __device__ __forceinline__ TileRing(const DecodeParams& params, std::int64_t kv_head, KeyRange range, bool aligned,
                                      Shared<Bytes16> memory, int lane)
      : origin_(range.begin / kLeafKeys * kLeafKeys),
        keys_(params.key<T>(kv_head, origin_)),
        values_(params.value<T>(kv_head, origin_)),
        key_stride_(params.k.stride[2]),
        value_stride_(params.v.stride[2]),
        d_h_(params.d_h),
        d_v_(params.d_v),
        aligned_(aligned),
        lane_(lane),
        memory_(memory),
        begin_(static_cast<int>(range.begin - origin_)),
        end_(range.empty() ? begin_ : static_cast<int>(range.end - origin_)),
        used_end_(
            static_cast<int>((params.in_use(kv_head).end < range.end ? params.in_use(kv_head).end : range.end) - origin_)),
        subtree_end_(subtree_end()) {
    for (int stage = 0; stage < kStages - 1; ++stage) start_next(stage);
  }

  /// The next item, [16][kPitch] vectors. It may be read until the next call.
  ///
  /// The barrier tells every lane that all copies of the item are here, and that all lanes have read the item before it,
  /// whose stage is filled again.
  __device__ __forceinline__ Shared<Bytes16> next() {
    copy_async_wait<kStages - 2>();
    __syncwarp();
    start_next(stage_ == 0 ? kStages - 1 : stage_ - 1);
    const Shared<Bytes16> item = memory_ + stage_ * kItem * Tile::kPitch;
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    return item;
  }

  /// Fills the last item that next() has returned once more: with item i of the values of a leaf, zeros for what is not
  /// finite.
  /// @param begin, end positions of the leaf that have a value
  __device__ __forceinline__ void fill_finite(Shared<Bytes16> item, std::int64_t leaf_begin, int i, int begin,
                                              int end) const {
    __syncwarp();
    const int n = n_in_row(d_v_);
    for (int row = lane_ / kVectorsPerRow; row < kItem; row += kRowsPerCopy) {
      const int index = kItem * i + row;
      const T* const from = values_ + (leaf_begin + index - origin_) * value_stride_ + lane_ % kVectorsPerRow * kPer16<T>;
      store16(item + (row * Tile::kPitch + lane_ % kVectorsPerRow),
              load_unaligned16(from, index >= begin && index < end ? n : 0, true));
    }
    __syncwarp();
  }

 private:
  /// Starts to copy the item that no call has started yet. Where none is left it counts as an empty one.
  __device__ __forceinline__ void start_next(int stage) {
    if (begin_ < end_) {
      const int first = begin_ / static_cast<int>(kLeafKeys) * static_cast<int>(kLeafKeys) + item_ % kLeafItems * kItem;
      const int end = subtree_end_ < used_end_ ? subtree_end_ : used_end_;
      const bool values = item_ >= kLeafItems;
      const std::int64_t stride = values ? value_stride_ : key_stride_;
      start_rows((values ? values_ : keys_) + first * stride, stride, values ? d_v_ : d_h_, begin_ - first, end - first,
                 memory_ + stage * kItem * Tile::kPitch);
      if (++item_ == 2 * kLeafItems) {
        item_ = 0;
        begin_ = subtree_end_;
        subtree_end_ = subtree_end();
      }
    }
    copy_async_commit();
  }

  /// The end of the subtree that starts at begin_.
  __device__ __forceinline__ int subtree_end() const {
    return begin_ < end_ ? static_cast<int>(first_leaf_subtree({begin_, end_}).end()) : end_;
  }

  /// Vectors of a row, each copied by a lane of its own, and rows that a warp copies at once.
  static constexpr int kVectorsPerRow = Tile::kDim / kPer16<T>, kRowsPerCopy = kWarp / kVectorsPerRow;
  /// Elements that the vector of this lane has, of rows of d.
  __device__ __forceinline__ int n_in_row(int d) const {
    const int left = d - lane_ % kVectorsPerRow * kPer16<T>;
    return left < 0 ? 0 : left < kPer16<T> ? left : kPer16<T>;
  }

  /// Starts to copy the rows [begin, end) of an item of 16, and makes zeros of the others and of what is behind d.
  __device__ __forceinline__ void start_rows(const T* first, std::int64_t stride, int d, int begin, int end,
                                             Shared<Bytes16> to) {
    const int column = lane_ % kVectorsPerRow * kPer16<T>, in_row = n_in_row(d);
    int row = lane_ / kVectorsPerRow;
    const T* from = first + row * stride + column;
    to = to + (row * Tile::kPitch + lane_ % kVectorsPerRow);
    if (aligned_) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < kItem / kRowsPerCopy; ++i) {
        const int n = row >= begin && row < end ? in_row : 0;
        copy_async16(to + i * kRowsPerCopy * Tile::kPitch, from, n * static_cast<int>(sizeof(T)));
        row += kRowsPerCopy, from += kRowsPerCopy * stride;
      }
      return;
    }
    for (; row < kItem; row += kRowsPerCopy, from += kRowsPerCopy * stride, to = to + kRowsPerCopy * Tile::kPitch)
      store16(to, load_unaligned16(from, row >= begin && row < end ? in_row : 0));
  }

  std::int64_t origin_;      ///< a multiple of kLeafKeys, from which positions are counted here
  const T *keys_, *values_;  ///< rows there
  std::int64_t key_stride_, value_stride_;
  int d_h_, d_v_;
  bool aligned_;
  int lane_;
  Shared<Bytes16> memory_;
  int begin_, end_, used_end_;  ///< of the range, from the subtree on that is being copied; behind the last key
  int subtree_end_;             ///< of that subtree
  int item_ = 0;                ///< of that subtree, the next to start
  int stage_ = 0;               ///< of the item that next() returns next
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
