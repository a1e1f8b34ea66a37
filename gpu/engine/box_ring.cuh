// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of boxes for all warps of a block, in which the keys of a leaf may stay until they have served as values:
/// long rows on tensor cores (section 6.3).
///
/// A leaf is the boxes of its keys, then those of its values, 64 rows of 64 elements each. Where values are the first
/// components of the keys, as in the latent rows of MLA, it is the boxes of its keys alone: all warps take scores from them,
/// and then values from the same bytes, which are copied once. A box is free when all warps of the block have read it. How
/// boxes are filled changes no bit, see tensor_ring.cuh.
#pragma once

#include "gpu/engine/tensor_ring.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The boxes of a range, leaf after leaf. All threads of the block call every function, unless it says otherwise.
template <IsMmaTile Tile, RowCopy kCopy, class Leaves_ = ContiguousLeaves>
class BoxRing : BoxRows<typename Tile::Stored, Leaves_> {
  using Base = BoxRows<typename Tile::Stored, Leaves_>;
  using Base::lane_, Base::leaves_;

 public:
  using Leaves = Leaves_;
  static constexpr bool kHasMaps = kCopy == RowCopy::TensorMap;
  using Maps = std::conditional_t<kHasMaps, TileMaps, NoMaps>;
  /// Boxes of the longest row of keys, which the ring holds at least, and boxes of the ring at most.
  static constexpr int kKeyBoxes = Tile::kKeyDim / kBoxColumns, kMostStages = 27;
  /// Leaves that begin() reaches at most: longer rows than narrower tiles take have five boxes.
  __device__ __forceinline__ static int first_leaves() { return (kMostStages + 4) / 5; }

  /// @param memory n_stages boxes @param full [kMostStages], unused without tensor maps
  /// @param values_in_keys whether values are the first components of the keys
  __device__ __forceinline__ BoxRing(Shared<Bytes16> memory, Shared<Barrier> full, const Maps& maps, int n_stages,
                                     bool values_in_keys)
      : Base(static_cast<int>(threadIdx.x) % kWarp),
        memory_(memory),
        full_(full),
        maps_(&maps),
        warp_(warp_uniform(static_cast<int>(threadIdx.x / kWarp))),
        n_stages_(n_stages),
        values_in_keys_(values_in_keys) {
    if constexpr (kHasMaps) {
      if (threadIdx.x == 0) {
        for (int stage = 0; stage < n_stages; ++stage) barrier_init(full_ + stage, 1);
        barrier_fence_init();
      }
      sync();
    }
  }
  __device__ __forceinline__ void sync() const { __syncthreads(); }

  /// Starts to fill all boxes with what lies first in a range, see TileRing::begin().
  __device__ __forceinline__ void begin(const DecodeParams& params, std::int64_t kv_head, const Leaves& leaves) {
    this->set(params, kv_head, leaves);
    kv_head_ = static_cast<int>(kv_head);
    first_value_ = values_in_keys_ ? 0 : n_keys(params);
    n_boxes_ = n_keys(params) + (first_value_ == 0 ? 0 : n_values(params));
    start(params, 0, 0, n_stages_);
  }

  /// Boxes of the keys of a leaf, and of its values.
  __device__ __forceinline__ static int n_keys(const DecodeParams& params) { return n_boxes_of(params.d_h); }
  __device__ __forceinline__ static int n_values(const DecodeParams& params) { return n_boxes_of(params.d_v); }
  /// Before the keys of a leaf are read, and before its values are: waits for all boxes, where there is no barrier for each,
  /// and widens those of 8 bits, of which values among the keys have been widened with them.
  __device__ __forceinline__ void settle_keys(const DecodeParams& params) const { settle(0, n_keys(params)); }
  __device__ __forceinline__ void settle_values(const DecodeParams& params) const {
    settle(first_value_, first_value_ == 0 ? 0 : n_values(params));
  }
  /// Calls use(box, memory) for the boxes of the keys of the leaf at hand, one after the other, once each is there. One
  /// warp.
  template <class Use>
  __device__ __forceinline__ void for_each_of_keys(const DecodeParams& params, const Use& use) const {
    Phase phase{stage_, parity_};
    TREE_ATTN_UNROLL
    for (int box = 0; box < kKeyBoxes; ++box) {
      if (box >= n_keys(params)) break;
      use(box, at(phase));
      if (++phase.stage == n_stages_) phase = {0, phase.parity ^ 1};
    }
  }
  /// A box of the values, once it is there. One warp.
  __device__ __forceinline__ Shared<Bytes16> values(int box) const { return at(phase_of(first_value_ + box)); }
  /// Says that this thread has read the keys, or some boxes of the values. Boxes that all have read and no warp needs any
  /// more are filled again. A barrier of the block.
  __device__ __forceinline__ void release_keys(const DecodeParams& params, int leaf) {
    sync();
    start(params, leaf, n_stages_ + (first_value_ == 0 ? n_values(params) : 0), n_stages_ + n_keys(params));
  }
  __device__ __forceinline__ void release_values(const DecodeParams& params, int leaf, int first, int end) {
    sync();
    const int last = end < n_values(params) ? end : n_values(params), from = n_stages_ + first_value_;
    start(params, leaf, from + first, from + last);
  }
  /// Goes on to the next leaf.
  __device__ __forceinline__ void advance() {
    const Phase phase = phase_of(n_boxes_);
    stage_ = phase.stage, parity_ = phase.parity;
  }

  /// Makes zeros of the rows of the values without a key, which a tensor map has copied with the others.
  __device__ __forceinline__ void clear(const DecodeParams& params, const LeafKeys& keys) const {
    if constexpr (kHasMaps) {
      for (int box = warp_; box < n_values(params); box += n_warps()) {
        const Shared<Bytes16> to = values(box);
        // Opaque, so that no row is worked out before the walk: few leaves have such rows.
        for (int i = opaque(lane_); i < kBoxVectors; i += kWarp) {
          if (!keys.contain(i / kRowVectors)) store16(to + i, Bytes16{});
        }
      }
      async_proxy_fence();
      sync();
    }
  }

 private:
  __device__ __forceinline__ void settle(int first, int n) const {
    if constexpr (!kHasMaps) {
      copy_async_wait<0>();
      sync();
    }
    if constexpr (Base::kIsWidened) {
      // Opaque, so that nothing that follows from the lane is kept in registers from leaf to leaf.
      TREE_ATTN_LOOP
      for (int i = warp_; i < n; i += n_warps())
        this->template widen_box<1>(at(phase_of(first + i)), opaque(lane_), 0, 1, [] { __syncwarp(); });
      if constexpr (kHasMaps) async_proxy_fence();
      sync();
    }
  }
  __device__ __forceinline__ static int n_boxes_of(int d) { return (d + (kBoxColumns - 1)) / kBoxColumns; }
  /// A stage, and the parity of its phase.
  struct Phase {
    int stage, parity;
  };
  /// The phase of a box, counted from the first of the leaf at hand.
  __device__ __forceinline__ Phase phase_of(int box) const {
    Phase phase{stage_ + box, parity_};
    TREE_ATTN_LOOP
    for (; phase.stage >= n_stages_; phase.parity ^= 1) phase.stage -= n_stages_;
    return phase;
  }

  /// The memory of a box that has come.
  __device__ __forceinline__ Shared<Bytes16> at(Phase phase) const {
    if constexpr (kHasMaps) barrier_wait(full_ + phase.stage, phase.parity);
    return memory_ + phase.stage * kBoxVectors;
  }

  /// Starts to fill boxes, counted from the first of a leaf, also past its last, as far as the range has them: each warp its
  /// own.
  __device__ __forceinline__ void start(const DecodeParams& params, int leaf, int first, int end) {
    // Where rows lie is worked out anew: without tensor maps few registers are left.
    if constexpr (!kHasMaps) this->set(params, opaque(kv_head_), leaves_);
    TREE_ATTN_LOOP
    for (int i = first + warp_; i < end; i += n_warps()) {
      int of_leaf = leaf, box = i;
      TREE_ATTN_LOOP
      for (; box >= n_boxes_; ++of_leaf) box -= n_boxes_;
      if (of_leaf >= leaves_.n_leaves()) break;
      const int at = of_leaf * static_cast<int>(kLeafKeys), stage = phase_of(i).stage;
      const bool is_value = box >= n_keys(params);
      const int column = (is_value ? box - n_keys(params) : box) * kBoxColumns;
      this->template start_boxes<1>(params, *maps_, full_ + stage, at, is_value, column, memory_ + stage * kBoxVectors);
    }
    if constexpr (!kHasMaps) copy_async_commit();
  }

  __device__ __forceinline__ static int n_warps() { return static_cast<int>(blockDim.x) / kWarp; }

  Shared<Bytes16> memory_;
  Shared<Barrier> full_;
  const Maps* maps_;
  int warp_, n_stages_;
  bool values_in_keys_;
  int kv_head_ = 0;
  int first_value_ = 0, n_boxes_ = 0;  ///< of a leaf
  int stage_ = 0, parity_ = 0;         ///< of the first box of the leaf at hand
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
