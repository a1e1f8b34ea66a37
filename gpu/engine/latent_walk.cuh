// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A pass of four warpgroups over a range of positions of latent rows: the ring of leaves, and the steps of a leaf
/// (eq. (7), section 6.3).
///
/// A leaf takes three barriers of the block, and one more if its rows are of 8 bits, which all widen while products of
/// values are under way. While all multiply values, one warp merges shifts and sums, which leaves for the others only
/// factors; while they merge components, the first warpgroup has the products of the next leaf made; while it waits, the
/// leaf after that is on its way.
#pragma once

#include "gpu/engine/latent_forest.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Keys as the copy engine knows them, and the blocks of a cluster that walk over the same ones.
struct LatentMaps : TileMaps {
  int n_blocks = 1;
};

/// Two leaves in shared memory, each filled by copies through a tensor map that one warp starts. Blocks of a cluster walk
/// over the same leaves for other queries: each copies some of the boxes, to all of them, once all have said that the stage
/// is free.
template <IsLatentTile Tile, class Leaves_>
class LatentRing : BoxRows<typename Tile::Stored, Leaves_> {
  using Base = BoxRows<typename Tile::Stored, Leaves_>;
  using Base::leaves_;

 public:
  using Base::kIsWidened;
  using Leaves = Leaves_;
  using Memory = LatentMemory<Tile>;

  __device__ __forceinline__ LatentRing(const Memory& memory, const LatentMaps& maps)
      : Base(static_cast<int>(threadIdx.x) % kWarp), memory_(memory.keys), full_(memory.full), maps_(&maps) {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Memory::kStages; ++stage)
        barrier_init(full_ + stage, 1), barrier_init(free_of(stage), maps.n_blocks);
      barrier_fence_init();
    }
    maps.n_blocks > 1 ? cluster_sync() : __syncthreads();
  }
  __device__ __forceinline__ int n_blocks() const { return maps_->n_blocks; }
  /// The number of this block in its cluster.
  __device__ __forceinline__ int rank() const { return n_blocks() > 1 ? cluster_rank() : 0; }

  /// Starts to copy the first leaves of a range. All of the range before have been multiplied.
  __device__ __forceinline__ void begin(const DecodeParams& params, std::int64_t kv_head, const Leaves& leaves) {
    this->set(params, kv_head, leaves);
    for (int leaf = 0; leaf < Memory::kStages; ++leaf) start(params, leaf);
  }
  /// Starts to copy a leaf, if the range has so many. All threads of the block have read the one that it takes the place of.
  __device__ __forceinline__ void start(const DecodeParams& params, int leaf) const {
    if (warp_uniform(static_cast<int>(threadIdx.x / kWarp)) != kCopying || leaf >= leaves_.n_leaves()) return;
    const int stage = stage_of(leaf);
    const Shared<Bytes16> to = memory_ + stage * Memory::kStageVectors;
    if (n_blocks() == 1)
      this->template start_boxes<kLatentBoxes>(params, *maps_, full_ + stage, leaf * static_cast<int>(kLeafKeys), false, 0,
                                               to);
    else
      start_shared_boxes(stage, parity_of(leaf), this->first_row_ + leaves_.row(leaf * static_cast<int>(kLeafKeys)), to);
  }
  /// The boxes of a leaf, once they are there.
  __device__ __forceinline__ Shared<Bytes16> at(int leaf) const {
    barrier_wait(full_ + stage_of(leaf), parity_of(leaf));
    return memory_ + stage_of(leaf) * Memory::kStageVectors;
  }
  /// Ends a range. No block ends before the copies that it has started for others have come.
  __device__ __forceinline__ void end() {
    n_before_ += leaves_.n_leaves();
    if (n_blocks() > 1) cluster_sync();
  }

  /// Makes 16 bits of the 8 of a leaf, once it is there: box by box, each by a warpgroup. Ends with a barrier of the block.
  __device__ __forceinline__ void widen(int leaf) const {
    const Shared<Bytes16> boxes = at(leaf);
    const LatentThread own;
    TREE_ATTN_LOOP
    for (int box = warpgroup(); box < kLatentBoxes; box += Tile::kLanes / kWarpgroup)
      this->template widen_box<2>(boxes + box * kBoxVectors, own.lane, own.warp, 4, [] { sync_neighbours(kWarpgroup); });
    async_proxy_fence();
    __syncthreads();
  }

  /// Makes zeros of the rows without a key, which the tensor map has copied with the others. The first warpgroup; other
  /// warpgroups read them after a barrier.
  __device__ __forceinline__ static void clear(Shared<Bytes16> boxes, const LeafKeys& keys) {
    TREE_ATTN_LOOP
    for (int i = LatentThread().thread; i < kLatentBoxes * kBoxVectors; i += kWarpgroup)
      if (!keys.contain(i % kBoxVectors / kRowVectors)) store16(boxes + i, Bytes16{});
    async_proxy_fence();
    sync_neighbours(kWarpgroup);
  }

 private:
  static constexpr int kCopying = 5;  ///< the warp that starts copies: of the second warpgroup
  __device__ __forceinline__ int stage_of(int leaf) const { return (n_before_ + leaf) % Memory::kStages; }
  __device__ __forceinline__ int parity_of(int leaf) const { return (n_before_ + leaf) / Memory::kStages % 2; }
  __device__ __forceinline__ Shared<Barrier> free_of(int stage) const { return full_ + (Memory::kStages + stage); }

  /// Says to all blocks that this one awaits a leaf; once all do, copies its boxes to all, which others read again: no hint.
  __device__ __forceinline__ void start_shared_boxes(int stage, int parity, int row, Shared<Bytes16> to) const {
    if (elect_one()) {
      barrier_arrive_expect(full_ + stage, kLatentBoxes * Base::kStoredBox * static_cast<int>(sizeof(Bytes16)));
      for (int rank = 0; rank < n_blocks(); ++rank) barrier_arrive_at(free_of(stage), rank);
    }
    barrier_wait(free_of(stage), parity);
    if (elect_one()) {
      for (int box = cluster_rank(); box < kLatentBoxes; box += n_blocks())
        bulk_copy_tensor_to<typename Tile::Stored>((1U << n_blocks()) - 1, to + (box * kBoxVectors + Base::kFirstStored),
                                                   maps_->k, box * kBoxColumns, row, this->head_, this->entry_,
                                                   full_ + stage);
    }
  }

  Shared<Bytes16> memory_;
  Shared<Barrier> full_;
  const LatentMaps* maps_;
  int n_before_ = 0;  ///< leaves of the ranges before
};

/// A walk of four warpgroups: what it goes over, and with what.
template <IsLatentTile Tile, class Leaves>
struct LatentWalk {
  using T = typename Tile::T;
  static constexpr int kWeighing = Tile::kRows / kWeighed;  ///< warpgroups that make weights: the last ones
  static constexpr int kUnits = kRestUnit<T> == 1 ? 1 : 2;  ///< of the parts of a weight

  const DecodeParams& params;
  Count kv_head, first_row;
  const Leaves& leaves;
  LatentRing<Tile, Leaves>& ring;
  const LatentMemory<Tile>& memory;
  LatentForest<Tile, Leaves>& forest;
  int group;

  /// A barrier of the block.
  __device__ __forceinline__ static void sync() { __syncthreads(); }
  __device__ __forceinline__ LeafKeys keys_of(int leaf) const { return {leaves, leaf * static_cast<int>(kLeafKeys)}; }

  /// Readies a leaf, if the range has so many.
  __device__ __forceinline__ void widen(int leaf) const {
    if constexpr (LatentRing<Tile, Leaves>::kIsWidened)
      if (leaf < leaves.n_leaves()) ring.widen(leaf);
  }
  /// Starts the products of keys. The first warpgroup.
  __device__ __forceinline__ void start_scores(int leaf, float (&s)[Tile::kEights][4]) const {
    const Shared<Bytes16> boxes = ring.at(leaf);
    if (const LeafKeys keys = keys_of(leaf); !keys.are_all()) ring.clear(boxes, keys);
    multiply_keys<Tile>(boxes, memory.queries, s);
  }
  /// Waits for them, and tells the others.
  __device__ __forceinline__ void finish_scores(float (&s)[Tile::kEights][4]) const {
    wgmma_wait<0>(s);
    const LatentThread at;
    TREE_ATTN_UNROLL
    for (int j = 0; j < Tile::kEights; ++j) store16(memory.products + (j * kWarpgroup + at.thread), bytes16_of(s[j]));
  }
  /// Starts the products of values, with the parts that are summed first where they are in two units.
  __device__ __forceinline__ void start_values(int leaf, typename Tile::Sums& o) const {
    const Shared<Bytes16> values = ring.at(leaf) + 2 * group * kBoxVectors;
    multiply_values<Tile, 0, 4 - kUnits>(values, memory.parts, o);
    if constexpr (kUnits > 1) {
      wgmma_wait<0>(o);
      scale(o, 1 / kRestUnit<T>);
      multiply_values<Tile, 2, 3>(values, memory.parts, o);
    }
  }
  __device__ __forceinline__ void make_weights(int leaf) const {
    if (group < 4 - kWeighing) return;
    const LeafKeys keys = keys_of(leaf);
    weigh<Tile>(memory, LatentLeaf<Leaves>{params, kv_head, first_row, leaves, leaf, keys}, group - (4 - kWeighing));
  }
  __device__ __forceinline__ static void scale(typename Tile::Sums& o, float by) {
    TREE_ATTN_UNROLL
    for (int i = 0; i < 8 * Tile::kEights; ++i) o[i / 4 / Tile::kEights][i / 4 % Tile::kEights][i % 4] *= by;
  }

  /// The first warpgroup: O^T of a leaf and S^T of the next one, of which it tells the others before it merges.
  __device__ __forceinline__ void over_leaves_with_scores() const {
    {
      float s[Tile::kEights][4] = {};
      widen(0);
      start_scores(0, s), finish_scores(s);
      sync();
      sync();
    }
    TREE_ATTN_LOOP
    for (int leaf = 0; leaf < leaves.n_leaves(); ++leaf) {
      typename Tile::Sums o = {};
      start_values(leaf, o);
      widen(leaf + 1);
      if (leaf + 1 < leaves.n_leaves()) {
        float s[Tile::kEights][4] = {};
        start_scores(leaf + 1, s);
        wgmma_wait<1>(o);
        sync();
        finish_scores(s);
      } else {
        wgmma_wait<0>(o);
        sync();
      }
      sync();
      if constexpr (kUnits > 1) scale(o, 1 / kUpperUnit<T>);
      forest.push(leaf, o);
      sync();
    }
  }
  /// The others: O^T, and weights of the next leaf.
  __device__ __forceinline__ void over_leaves() const {
    widen(0);
    sync();
    make_weights(0);
    sync();
    TREE_ATTN_LOOP
    for (int leaf = 0; leaf < leaves.n_leaves(); ++leaf) {
      typename Tile::Sums o = {};
      start_values(leaf, o);
      widen(leaf + 1);
      if (forest.is_of_rows()) forest.push_rows(leaf);
      wgmma_wait<0>(o);
      sync();
      ring.start(params, leaf + LatentMemory<Tile>::kStages);
      if constexpr (kUnits > 1) scale(o, 1 / kUpperUnit<T>);
      forest.push(leaf, o);
      sync();
      if (leaf + 1 < leaves.n_leaves()) make_weights(leaf + 1);
      sync();
    }
  }
};

/// The walk of a block over a run of units.
/// @param first_of_tile first row of the block in the query tile
/// @paper{eq_7, eq. (7)}
template <IsLatentTile Tile, class Params, class Ring>
__device__ __forceinline__ void walk_latent(const Params& params, const UnitRun& run, const UnitMemory& units, Ring& ring,
                                            const LatentMemory<Tile>& memory, Count first_of_tile) {
  using Leaves = typename Ring::Leaves;
  const Count kv_head = warp_uniform(run.kv_head), first_row = warp_uniform(run.first_row + first_of_tile);
  const auto leaves = leaves_of_run<Leaves>(params, run, kv_head);
  begin_early(leaves, LatentMemory<Tile>::kStages, [&] { ring.begin(params, kv_head, leaves); });
  load_queries<Tile>(params, kv_head, first_row, memory.queries);
  async_proxy_fence();
  __syncthreads();
  LatentForest<Tile, Leaves> forest(
      {run, units.offset_of_row(run.first, first_of_tile), units, rows_in_use(params, first_row, Tile::kRows)}, leaves,
      memory);
  if (leaves.n_leaves() == 0) return;
  const LatentWalk<Tile, Leaves> walk{params, kv_head, first_row, leaves, ring, memory, forest, warpgroup()};
  if (walk.group == 0)
    walk.over_leaves_with_scores();
  else
    walk.over_leaves();
  ring.end();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
