// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Listed leaves for a warp on tensor cores: its range of them, and the tree above (section 5.3).
#pragma once

#include "gpu/parts/listed_leaves.cuh"
#include "gpu/parts/tile_forests.cuh"
#include "gpu/parts/tile_ring.cuh"

#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// As LeafRange, but of leaves that lie anywhere in the cache. Positions are those of the list.
struct ListedRange {
  using Params = ListedParams;
  ListedPart part;
  int begin = 0, end = 0;  ///< what is left of the range

  ListedRange() = default;
  __device__ __forceinline__ ListedRange(const ListedParams& params, std::int64_t kv_head, KeyRange range)
      : part(range, params.in_use(kv_head)), end(part.n_leaves * static_cast<int>(kLeafKeys)) {}
  __device__ __forceinline__ bool empty() const { return begin >= end; }

  __device__ __forceinline__ int first_key() const { return 0; }
  __device__ __forceinline__ int end_key() const { return part.n_keys(leaf(begin)); }
  __device__ __forceinline__ int row(int) const { return part.row_of(leaf(begin)); }

  __device__ __forceinline__ int first_row(const ListedParams&) const { return 0; }
  __device__ __forceinline__ std::int64_t position(int first) const { return part.row_of(leaf(first)); }
  __device__ __forceinline__ int leaf(int first) const { return first / static_cast<int>(kLeafKeys); }
  __device__ __forceinline__ const ListedPart& of_forest(KeyRange) const { return part; }
};

/// The forests of a warp over listed leaves, one per slot. The last subtree of each waits in shared memory.
template <IsMmaTile Tile>
class ListedTileForests {
 public:
  using State = LaneState<Tile::kElements>;
  static constexpr int kOfState = TileForests<Tile>::kOfState;

  /// @param memory of the forests, n_forest floats each @param parked [TileForests::kVectors]
  __device__ __forceinline__ ListedTileForests(float* memory, std::int64_t n_forest, const ListedPart& part,
                                               Shared<Bytes16> parked, int lane)
      : memory_(opaque(memory)), n_forest_(n_forest), part_(part), parked_(parked + lane), lane_(lane) {}

  /// Appends the state of leaf i, the next one, in one slot, the slots in order. No lane reads what another has written.
  __device__ __forceinline__ void push(int i, int slot, State& state) {
    const LaneForest<Tile::kElements, kWarp> forest(memory_ + slot * n_forest_, lane_, part_.begin());
    // All slots have the same subtrees, so the same depth.
    int depth = depth_;
    bool has_last = has_last_;
    const Subtree subtree = part_.append(i, [&] {
      State left;
      if (has_last)
        load_parked(slot, left);
      else
        forest.load(--depth, left);
      has_last = false;
      merge(left, state);
      state = left;
    });
    // 0 * x is NaN if x is not finite. Every state of the range passes here, by itself or merged.
    TREE_ATTN_UNROLL
    for (int c = 0; c < Tile::kElements; ++c) zero_ = fused_multiply_add(0.0f, state.n[c], zero_);
    keep(forest, slot, state, depth, has_last);
    // Slots that are empty, and right of a subtree whose left sibling is not in this part.
    for (std::int64_t at = subtree.end(), next = part_.next(i); at < next; at = first_subtree(at, next).end()) {
      set_empty(state);
      keep(forest, slot, state, depth, has_last);
    }
    if (slot == Tile::kSlots - 1) depth_ = depth, has_last_ = true;
  }
  /// Stores what waits. No leaf follows.
  __device__ __forceinline__ void finish() {
    if (!has_last_) return;
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      State state;
      load_parked(slot, state);
      LaneForest<Tile::kElements, kWarp>(memory_ + slot * n_forest_, lane_, part_.begin()).store(depth_, state);
    }
    ++depth_, has_last_ = false;
  }

  /// Whether this lane has seen a component that is not finite. D is not finite only together with all of n.
  __device__ __forceinline__ bool is_broken() const { return zero_ != 0; }

 private:
  __device__ __forceinline__ void load_parked(int slot, State& state) const {
    float elements[4 * kOfState];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i) {
      const Bytes16 bytes = load16(parked_ + (slot * kOfState + i) * kWarp);
      std::memcpy(elements + 4 * i, &bytes, sizeof bytes);
    }
    state.shift = elements[0], state.sum = elements[1];
    TREE_ATTN_UNROLL
    for (int c = 0; c < Tile::kElements; ++c) state.n[c] = elements[2 + c];
  }
  /// Parks a state. The one that was parked goes to memory.
  __device__ __forceinline__ void keep(const LaneForest<Tile::kElements, kWarp>& forest, int slot, const State& state,
                                       int& depth, bool& has_last) const {
    if (has_last) {
      State last;
      load_parked(slot, last);
      forest.store(depth++, last);
    }
    float elements[4 * kOfState] = {state.shift, state.sum};
    TREE_ATTN_UNROLL
    for (int c = 0; c < Tile::kElements; ++c) elements[2 + c] = state.n[c];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i) {
      Bytes16 bytes;
      std::memcpy(&bytes, elements + 4 * i, sizeof bytes);
      store16(parked_ + (slot * kOfState + i) * kWarp, bytes);
    }
    has_last = true;
  }

  float* memory_;
  std::int64_t n_forest_;
  ListedPart part_;
  Shared<Bytes16> parked_;
  int lane_, depth_ = 0;  ///< subtrees in memory
  bool has_last_ = false;
  float zero_ = 0;
};

/// The range of leaves of a warp, and its forests, in the order of leaves that the parameters have.
template <class Params>
using LeafRangeOf = std::conditional_t<Params::kIsListed, ListedRange, LeafRange>;
template <IsMmaTile Tile, class Range>
using ForestsOf = std::conditional_t<Range::Params::kIsListed, ListedTileForests<Tile>, TileForests<Tile>>;

}  // namespace tree_attn::TREE_ATTN_PLATFORM
