// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A ring of boxes in flight for a warp or a warpgroup on tensor cores: 64 keys, or values, of 64 elements (section
/// 6.3).
///
/// There are two ways to fill a box, and both leave the same bits at the same addresses:
/// - one copy through a tensor map, started by one lane and completing on an mbarrier (sm_90);
/// - copies of 16 bytes, started by all lanes (cp.async).
/// A device has one of them. Rows of F8_E4M3 come into the second half of a box, and are widened there by the warps that
/// read it.
///
/// A warp fills the ring that it reads. So a stage is free as soon as the warp has read it, without a barrier that counts
/// readers, and no warp waits for another. The warps of a warpgroup, and warps with rows of one kv head, which are a team,
/// have one ring instead: the first of them fills it, and all meet when they have read a stage. So keys and values are
/// copied once for all their rows.
#pragma once

#include "gpu/engine/leaves.cuh"
#include "gpu/engine/tensor.cuh"

#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// A leaf, and which of its positions have a key that one of the queries sees.
struct LeafKeys {
  int at;                 ///< its first position, counted from the first leaf of the thread group
  int sinks, begin, end;  ///< in the leaf, see SeenHere; no keys if end is 0 or less

  template <class Leaves>
  __device__ __forceinline__ LeafKeys(const Leaves& leaves, int first) : at(first) {
    const SeenHere seen = leaves.seen(at);
    sinks = seen.sinks;
    begin = seen.begin > sinks ? seen.begin : 0;
    end = seen.end < static_cast<int>(kLeafKeys) ? seen.end : static_cast<int>(kLeafKeys);
  }
  __device__ __forceinline__ bool are_all() const { return begin == 0 && end == static_cast<int>(kLeafKeys); }
  __device__ __forceinline__ bool contain(int index) const { return (index >= begin || index < sinks) && index < end; }
};

/// Keys and values as the copy engine knows them, and the stages of a ring, which depend on the device.
struct TileMaps {
  TensorMap k, v;
  int n_stages = 0;
};

/// Ways in which rows come into shared memory.
enum class RowCopy { TensorMap, Async };

/// Sixteen elements of F8_E4M3 as elements of BF16. A product with 2^120 corrects the bias of the exponent, exactly; it
/// makes
/// +-480 of NaN, which nothing else becomes.
__device__ __forceinline__ void widen_sixteen(const Bytes16& bytes, Bytes16 (&wide)[2]) {
  constexpr std::uint32_t kSigns = 0x80008000, kSizes = 0x07F007F0, kBias = 0x7B807B80;
  std::uint32_t has_nan = 0;
  TREE_ATTN_UNROLL
  for (int word = 0; word < 4; ++word) {
    const std::uint32_t four = bytes.word[word];
    const std::uint32_t even = multiply_pairs((four << 8 & kSigns) | (four << 4 & kSizes), kBias),
                        odd = multiply_pairs((four & kSigns) | (four >> 4 & kSizes), kBias);
    std::uint32_t* const to = wide[word / 2].word + word % 2 * 2;
    to[0] = (even & 0xFFFF) | odd << 16, to[1] = even >> 16 | (odd & 0xFFFF0000);
    has_nan |= ((four & 0x7F7F7F7F) + 0x01010101) & 0x80808080;
  }
  if (has_nan == 0) return;
  TREE_ATTN_UNROLL
  for (int word = 0; word < 8; ++word) {
    std::uint32_t& pair = wide[word / 4].word[word % 4];
    constexpr std::uint32_t kSize = 0x7FFF, k480 = 0x43F0, kNaN = 0x7FC0;
    if ((pair & kSize) == k480) pair |= kNaN;
    if ((pair >> 16 & kSize) == k480) pair |= kNaN << 16;
  }
}

/// The rows of a range, the two ways of a warp to fill a box with them by itself, and what makes 16 bits of 8.
/// @tparam T as rows are stored
template <class T, class Leaves>
class BoxRows {
 protected:
  /// 16-byte vectors of a row and of a box as stored, and the first of them in the memory of a box, whose end they are.
  static constexpr int kStoredRow = kBoxColumns / kPer16<T>, kStoredBox = static_cast<int>(kLeafKeys) * kStoredRow,
                       kFirstStored = kBoxVectors - kStoredBox;
  static constexpr bool kIsWidened = kFirstStored > 0;
  __device__ __forceinline__ static int stored_vector(int row, int unit) {
    return kFirstStored + row * kStoredRow + (kIsWidened ? unit : swizzled_unit(row, unit));
  }

  __device__ __forceinline__ explicit BoxRows(int lane) : lane_(lane) {}
  __device__ __forceinline__ void set(const DecodeParams& params, std::int64_t kv_head, const Leaves& leaves) {
    entry_ = params.k.stride[0] == 0 ? 0 : static_cast<int>(params.entry_of(kv_head)),
    head_ = static_cast<int>(params.head_of(kv_head));
    leaves_ = leaves, first_row_ = static_cast<int>(leaves.origin() - params.begin);
    keys_ = params.key<T>(kv_head, leaves.origin()), values_ = params.value<T>(kv_head, leaves.origin());
  }

  /// Makes rows of 16 bits of a box of 8, in place. The first half of them goes where nothing is stored, the second where
  /// all has been read. A loop of few instructions: a kernel widens in several places.
  /// @tparam kAtOnce vectors that a lane reads before it writes any
  /// @param warp, n_warps that share the work: 1, 2 or 4, if kAtOnce is 2 @param sync a barrier of them; they need one more
  /// before they read the box
  template <int kAtOnce, class Sync>
  __device__ __forceinline__ void widen_box(Shared<Bytes16> box, int lane, int warp, int n_warps, const Sync& sync) const {
    constexpr int kRowsAtOnce = kWarp / kStoredRow, kRounds = static_cast<int>(kLeafKeys) / kRowsAtOnce;
    const int unit = lane % kStoredRow * 2;
    TREE_ATTN_LOOP
    for (int first = warp * kAtOnce; first < kRounds; first += n_warps * kAtOnce) {
      Bytes16 stored[kAtOnce];
      TREE_ATTN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) stored[i] = load16(box + (kFirstStored + (first + i) * kWarp + lane));
      sync();
      TREE_ATTN_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        Bytes16 wide[2];
        widen_sixteen(stored[i], wide);
        const int row = (first + i) * kRowsAtOnce + lane / kStoredRow;
        TREE_ATTN_UNROLL
        for (int half = 0; half < 2; ++half) store16(box + vector_at(row, unit + half), wide[half]);
      }
    }
  }

  /// Starts to fill a box of the leaf that begins at `at`, each lane one vector of a row in turn. Rows without a key are
  /// zero, and never read.
  __device__ __forceinline__ void fill(const DecodeParams& params, int at, bool is_value, int first_column,
                                       Shared<Bytes16> to) const {
    const LeafKeys keys(leaves_, at);
    constexpr int kRowsAtOnce = kWarp / kStoredRow, kRounds = static_cast<int>(kLeafKeys) / kRowsAtOnce;
    const int first = lane_ / kStoredRow, unit = lane_ % kStoredRow, column = first_column + unit * kPer16<T>;
    const int left = (is_value ? params.d_v : params.d_h) - column, n = left < 0 ? 0 : left < kPer16<T> ? left : kPer16<T>;
    // The leaf may begin before the shard; rows that are read do not.
    const std::int64_t stride = (is_value ? params.v : params.k).stride[2];
    const T* from = (is_value ? values_ : keys_) + (leaves_.row(at) + first) * stride + column;
    if (keys.are_all() && left >= kPer16<T>) {
      // The swizzle repeats every eight rows: a lane has one address or two, and constant offsets from them.
      constexpr int kPeriod = 8, kFirstRows = kPeriod / kRowsAtOnce;
      Shared<Bytes16> first_rows[kFirstRows];
      TREE_ATTN_UNROLL
      for (int i = 0; i < kFirstRows; ++i) {
        const int row = first + i * kRowsAtOnce;
        first_rows[i] = to + stored_vector(row, unit);
      }
      TREE_ATTN_UNROLL
      for (int i = 0; i < kRounds; ++i, from += kRowsAtOnce * stride)
        copy_async16(first_rows[i % kFirstRows] + i / kFirstRows * kPeriod * kStoredRow, from, 16);
      return;
    }
    for (int row = first; row < kLeafKeys; row += kRowsAtOnce, from += kRowsAtOnce * stride) {
      const int n_here = keys.contain(row) ? n : 0;
      copy_async16(to + stored_vector(row, unit), from, n_here * static_cast<int>(sizeof(T)));
    }
  }

  /// Starts to fill kBoxes boxes side by side, with the keys or the values of the leaf that begins at `at`: by a copy
  /// through a tensor map each, or by fill(). One warp. @param full the barrier of the boxes; unused without tensor maps
  template <int kBoxes, class Maps>
  __device__ __forceinline__ void start_boxes(const DecodeParams& params, const Maps& maps, Shared<Barrier> full, int at,
                                              bool is_value, int first_column, Shared<Bytes16> to) const {
    if constexpr (!std::is_same_v<Maps, NoMaps>) {
      if (elect_one()) {
        barrier_arrive_expect(full, kBoxes * kStoredBox * static_cast<int>(sizeof(Bytes16)));
        TREE_ATTN_UNROLL
        for (int i = 0; i < kBoxes; ++i) {
          bulk_copy_tensor<T>(to + (i * kBoxVectors + kFirstStored), is_value ? maps.v : maps.k,
                              first_column + i * kBoxColumns, first_row_ + leaves_.row(at), head_, entry_, full,
                              CacheHint::EvictFirst);
        }
      }
    } else {
      for (int i = 0; i < kBoxes; ++i) fill(params, at, is_value, first_column + i * kBoxColumns, to + i * kBoxVectors);
    }
  }

  int lane_ = 0;  ///< of its warp
  Leaves leaves_{};
  const T *keys_ = nullptr, *values_ = nullptr;  ///< the rows that rows are counted from
  int first_row_ = 0, entry_ = 0, head_ = 0;     ///< the same for tensor maps
};

/// The tiles of a range, leaf after leaf: those of its keys, then those of its values. A tile is one or two boxes
/// side by side.
template <IsTensorTile Tile, RowCopy kCopy, class Leaves_ = ContiguousLeaves>
class TileRing : BoxRows<typename Tile::Stored, Leaves_> {
  using Base = BoxRows<typename Tile::Stored, Leaves_>;
  using Base::lane_, Base::leaves_;

 public:
  using Leaves = Leaves_;
  static constexpr bool kIsWide = Tile::kLanes > kWarp;  ///< whether a thread group is a warpgroup
  static constexpr bool kHasMaps = kCopy == RowCopy::TensorMap;
  using Maps = std::conditional_t<kHasMaps, TileMaps, NoMaps>;
  static constexpr int kTileBoxes = kHasMaps && Tile::kBoxes > 1 ? 2 : 1;  ///< of a tile
  static constexpr int kTiles = Tile::kBoxes / kTileBoxes;                 ///< of a leaf of keys, and of its values
  /// Most tiles of the ring for each thread group of a team. A warp has 48 KiB, or 32 where parked states leave no more;
  /// without tensor maps 24 KiB, always; a warpgroup has 72 KiB, or 48.
  static constexpr int kStages = kIsWide                                     ? (Tile::kBoxes == 1 ? 9 : 3)
                                 : !kHasMaps                                 ? 3
                                 : kTileBoxes == 1                           ? 6
                                 : Tile::kElements * Tile::kLaneQueries < 64 ? 3
                                                                             : 2;
  static constexpr int kStageVectors = kTileBoxes * kBoxVectors;  ///< of 16 bytes
  /// Tiles of the ring for each thread group.
  __device__ __forceinline__ static int n_stages(const Maps& maps) {
    if constexpr (kHasMaps && !kFitsLargestBlock)
      return maps.n_stages;
    else
      return kStages;
  }

  /// Initialises the barriers. All lanes of the team call it.
  /// @param memory n_stages(maps) stages for each thread group of the team @param full as many barriers; unused without
  /// tensor maps @param n_groups thread groups of the team @param leads whether this warp is the first of all
  __device__ __forceinline__ TileRing(Shared<Bytes16> memory, Shared<Barrier> full, const Maps& maps, int lane, int n_groups,
                                      bool leads)
      : Base(lane), memory_(memory), full_(full), maps_(&maps), n_groups_(n_groups), leads_(leads) {
    if constexpr (kHasMaps) {
      if (lane_ == 0 && leads_) {
        for (int stage = 0; stage < n_stages(); ++stage) barrier_init(full_ + stage, 1);
        barrier_fence_init();
      }
      sync();
    }
  }
  /// A barrier of the team.
  __device__ __forceinline__ void sync() const {
    kIsWide || n_groups_ > 1 ? sync_neighbours(n_groups_ * Tile::kLanes) : __syncwarp();
  }
  /// Tiles of the ring: of all thread groups of the team, where copies may be so many.
  __device__ __forceinline__ int n_stages() const { return kHasMaps ? n_stages(*maps_) * n_groups_ : kStages; }
  /// Leaves that begin() reaches.
  __device__ __forceinline__ int first_leaves() const { return (n_stages() + 2 * kTiles - 1) / (2 * kTiles); }

  /// Starts to fill all stages with what lies first in a range. All tiles of the range before it have been read; what the
  /// team has written to the ring's memory since is ordered before copies, see async_proxy_fence().
  __device__ __forceinline__ void begin(const DecodeParams& params, std::int64_t kv_head, const Leaves& leaves) {
    this->set(params, kv_head, leaves);
    const int n = n_stages();
    for (int i = 0; i < n; ++i) start(params, 0, i, stage_ + i < n ? stage_ + i : stage_ + i - n);
  }

  /// The next tile, once it is there: box after box; it may be read until release().
  __device__ __forceinline__ Shared<Bytes16> next() {
    if constexpr (kHasMaps) {
      barrier_wait(full_ + stage_, parity_);
    } else {
      copy_async_wait<kStages - 1>();
      sync();
    }
    const Shared<Bytes16> tile = memory_ + stage_ * kStageVectors;
    if constexpr (Base::kIsWidened) {
      const int n_warps = n_groups_ * (Tile::kLanes / kWarp), warp = static_cast<int>(threadIdx.x) / kWarp & (n_warps - 1);
      TREE_ATTN_LOOP
      for (int i = 0; i < kTileBoxes; ++i)
        this->template widen_box<kIsWide ? 1 : 2>(tile + i * kBoxVectors, lane_, warp, n_warps, [this] { sync(); });
      if constexpr (kHasMaps) async_proxy_fence();
      sync();
    }
    return tile;
  }
  /// Says that this lane has read the tile. When all of the team have, the stage is filled again.
  /// @param leaf, tile which tile it is: in the unrolled loop over the tiles of a leaf a constant, and so is the one that
  /// takes its place
  __device__ __forceinline__ void release(const DecodeParams& params, int leaf, int tile) {
    sync();
    start(params, leaf, tile + n_stages(), stage_);
    if (++stage_ == n_stages()) stage_ = 0, parity_ ^= 1;
  }

  /// Makes zeros of the rows of a tile without a key, which a tensor map has copied with the others.
  __device__ __forceinline__ void clear(Shared<Bytes16> tile, const LeafKeys& keys) const {
    if constexpr (kHasMaps) {
      for (int i = lane_; leads_ && i < kStageVectors; i += kWarp) {
        if (!keys.contain(i % kBoxVectors / kRowVectors)) store16(tile + i, Bytes16{});
      }
      async_proxy_fence();
      sync();
    }
  }

 private:
  /// Starts to fill a stage with a tile, if the range has so many. @param tile counted from the first of a leaf, also past
  /// its last
  __device__ __forceinline__ void start(const DecodeParams& params, int leaf, int tile, int stage) {
    leaf += tile / (2 * kTiles), tile %= 2 * kTiles;
    if (leads_ && leaf < leaves_.n_leaves()) {
      const int at = leaf * static_cast<int>(kLeafKeys);
      const bool is_value = tile >= kTiles;
      const int first_column = (is_value ? tile - kTiles : tile) * (kTileBoxes * kBoxColumns);
      this->template start_boxes<kTileBoxes>(params, *maps_, full_ + stage, at, is_value, first_column,
                                             memory_ + stage * kStageVectors);
    }
    if constexpr (!kHasMaps) copy_async_commit();
  }

  Shared<Bytes16> memory_;
  Shared<Barrier> full_;
  const Maps* maps_;
  int n_groups_;
  bool leads_;
  int stage_ = 0, parity_ = 0;  ///< of the next tile to be read
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
