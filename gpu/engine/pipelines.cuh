// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pipelines, of which the kernels of the library are made, as a concept: a thread group for a shape, a warp on
/// scalar cores, or warps or warpgroups on tensor cores, and its way to keys and values (sections 5 and 6.3).
#pragma once

#include "gpu/engine/latent_walk.cuh"
#include "gpu/engine/launch.hpp"
#include "gpu/engine/scalar.cuh"
#include "gpu/engine/scalar_rings.cuh"
#include "gpu/engine/tensor_walk.cuh"
#include "gpu/engine/unit_forest.cuh"
#include "gpu/engine/wgmma_walk.cuh"
#include "gpu/platform/launch.hpp"

#include <algorithm>
#include <bit>
#include <concepts>
#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The size of a block of a pipeline on a device.
struct BlockSize {
  int n_threads = 0, n_stages = 0;
  std::size_t n_bytes = 0;  ///< of shared memory, for the pipeline
  int n_blocks = 1;         ///< of a cluster, that take runs together, each for a tile of rows
};

/// The largest block of a pipeline that fits into the shared memory of the device at hand. Its size changes no bit, for
/// leaves have the same sums whichever thread group takes them.
template <class Pipeline>
BlockSize fit_block(const typename Pipeline::Params& params) {
  return Pipeline::fit(device().shared_bytes - kKernelBytes, params.group);
}

/// A pipeline, of which a kernel is made: a kind of thread group and its way to keys and values. All threads of a block
/// construct one at the start, and it walks over every run of theirs. Its arguments are made on the host, and are a
/// parameter of the kernel that outlives the pipeline.
template <class Pipeline>
concept IsPipeline = IsThreadGroup<typename Pipeline::ThreadGroup> &&
    requires(Pipeline pipeline, Arena& arena, const typename Pipeline::Arguments& arguments,
             const typename Pipeline::Params& params, std::int64_t i, std::size_t n_bytes) {
  // On the host: the largest block in so much shared memory, for so many rows that share a kv head.
  { Pipeline::fit(n_bytes, i) } -> std::same_as<BlockSize>;
  { Pipeline::arguments(params, LaunchPlan{}) } -> std::same_as<typename Pipeline::Arguments>;  // on the host
  Pipeline(arena, arguments);
  { Pipeline::kIsCompiled } -> std::convertible_to<bool>;  // for this architecture
  { Pipeline::kThreads } -> std::convertible_to<int>;      // of a block, at most
  // Takers of runs of units in a block of so many threads, and the number of the one that this thread is of.
  { Pipeline::n_takers(1, 1) } -> std::same_as<int>;
  { pipeline.taker() } -> std::same_as<int>;
  { pipeline.log_blocks() } -> std::same_as<int>;  // blocks that take a run together, as a power of two
  pipeline.walk(params, UnitRun{}, UnitMemory{});
  pipeline.renew();  // between two walks
};

/// Calls f with the narrowest of three warps on scalar cores that holds a row of max(d_h, d_v) elements: 128, 256, or the
/// longest. It changes no bit.
template <class T, class F>
void with_scalar_warp(const DecodeParams& params, const F& f) {
  const int d = std::max(params.d_h, params.d_v);
  if (d <= 128) return f(ScalarWarp<T, 128>{});
  if (d <= 256) return f(ScalarWarp<T, 256>{});
  f(ScalarWarp<T, (kLongestRow + 127) / 128 * 128>{});
}

/// Query tiles of a problem: every n_row_tiles times kRows queries of a group.
template <IsThreadGroup ThreadGroup>
std::int64_t n_query_tiles(const DecodeParams& params, int n_row_tiles) {
  const std::int64_t n_rows = n_row_tiles * ThreadGroup::kRows;
  return params.batch_kv_heads() * ((params.group + n_rows - 1) / n_rows);
}

/// Rows of a query tile of 1, 2 or 4 tiles, as a power of two.
template <IsThreadGroup ThreadGroup>
constexpr int log_rows_of(int n_row_tiles) {
  constexpr int kLogRows = std::bit_width(static_cast<unsigned>(ThreadGroup::kRows)) - 1;
  static_assert(1 << kLogRows == ThreadGroup::kRows);
  return kLogRows + (n_row_tiles >> 1);
}

/// True if a way in which rows are copied is compiled for this architecture.
template <RowCopy kCopy>
#if defined(__CUDA_ARCH__)
inline constexpr bool kHasCopies = (kCopy == RowCopy::TensorMap) == (__CUDA_ARCH__ >= 900);
#else
inline constexpr bool kHasCopies = true;
#endif

/// Describes the rows to the copy engine, where that copies them.
template <class T>
void describe_rows(const DecodeParams&, NoMaps&) {}
template <class T>
void describe_rows(const DecodeParams& params, TileMaps& maps) {
  // In a pool of pages all entries begin at the same place: one entry, see BoxRows::set().
  const std::int64_t n_entries = params.k.stride[0] == 0 && params.v.stride[0] == 0 ? 1 : params.batch;
  const auto array_of = [&params, n_entries](const DeviceView& view, int d) {
    return TensorArray{view.data,
                       DTypeTraits<T>::kDType,
                       {n_entries, params.kv_heads, params.rows_end() - params.begin, d},
                       {view.stride[0], view.stride[1], view.stride[2]},
                       kLeafKeys};
  };
  if (params.n_rows() == 0 || params.rows_end() == params.begin) return;  // nothing is copied
  const TensorArray k = array_of(params.k, params.d_h);
  encode_tensor_map(k, &maps.k);
  // Without components of values the map is that of the keys, and nothing uses it.
  encode_tensor_map(params.d_v > 0 ? array_of(params.v, params.d_v) : k, &maps.v);
}

/// Shared memory of n thread groups on tensor cores, in 16-byte vectors: what they keep beside the rings, and at a multiple
/// of 1024 bytes the rings, or the boxes of one.
template <IsTensorTile Tile>
constexpr int first_ring(int n) {
  constexpr int kUnit = kBoxAlignment / static_cast<int>(sizeof(Bytes16));
  return (n * kTileVectors<Tile> + kUnit - 1) / kUnit * kUnit;
}
/// Bytes of so many vectors, and of the barriers and flags before them.
constexpr std::size_t bytes_with_barriers(int n_vectors) {
  return kBoxAlignment + static_cast<std::size_t>(n_vectors) * sizeof(Bytes16);
}

/// The walk of a thread group on tensor cores over a run of units.
/// @param row_tile of the query tile
template <IsTensorTile Tile, class Params, class Ring>
__device__ __forceinline__ void walk_tiles(const Params& params, const UnitRun& run, const UnitMemory& memory, int row_tile,
                                           Ring& ring, Shared<Bytes16> memory_of_group) {
  const Count kv_head = warp_uniform(run.kv_head);
  const int first_row = row_tile * Tile::kRows;
  const std::int64_t first_in_group = warp_uniform(run.first_row + Count(first_row));
  accumulate_tiles<Tile>(params, kv_head, first_in_group, leaves_of_run<typename Ring::Leaves>(params, run, kv_head),
                         UnitTarget{run, memory.offset_of_row(run.first, Count(first_row)), memory,
                                    rows_in_use(params, first_in_group, Tile::kRows)},
                         ring, memory_of_group);
}

/// Warps on tensor cores, each with a ring of its own; or teams of two or four of them, each with the ring of its first warp
/// and a tile of rows for every warp, so that keys and values are copied once for up to 32 rows. Four warps, one per
/// scheduler: so each has all the registers that a thread may have. Two, where four have no room for their rings. Or two
/// warpgroups, each with a ring and a tile of 64 rows.
/// @tparam kCopy how rows come into shared memory; it changes no bit
/// @tparam Params_ DecodeParams, or ListedParams for leaves in the order of a list
template <IsTensorTile Tile, RowCopy kCopy, class Params_ = DecodeParams>
class MmaPipeline {
 public:
  using ThreadGroup = Tile;
  using Params = Params_;
  using Ring = TileRing<Tile, kCopy, LeavesOf<Params>>;
  struct Arguments {
    int n_row_tiles = 1;         ///< thread groups of a team: 1, 2 or 4, of warpgroups 1
    typename Ring::Maps maps{};  ///< of keys and values
  };
  static constexpr bool kIsWide = Ring::kIsWide;
  static constexpr bool kIsCompiled = kIsWide ? kHasWarpgroups : kHasCopies<kCopy>;
  static constexpr int kMostGroups = kIsWide ? 2 : 4, kThreads = kMostGroups * Tile::kLanes;

  static constexpr BlockSize fit(std::size_t n_bytes, std::int64_t /*group*/) {
    const int n = kIsWide || bytes_of(kMostGroups, Ring::kStages) <= n_bytes ? kMostGroups : kMostGroups / 2;
    int n_stages = Ring::kStages;
    while (n_stages > 2 && bytes_of(n, n_stages) > n_bytes) --n_stages;
    return {n * Tile::kLanes, n_stages, bytes_of(n, n_stages)};
  }
  /// True for warpgroups where there are any, and more queries than two warps serve.
  static bool takes(const DecodeParams& params) {
    return device().major == 9 && device().shared_bytes >= bytes_of(kMostGroups, Ring::kStages) + kKernelBytes &&
           params.group > 16;
  }
  __device__ __forceinline__ MmaPipeline(Arena& arena, const Arguments& arguments)
      : n_row_tiles_(kIsWide ? 1 : arguments.n_row_tiles),
        n_stages_(Ring::n_stages(arguments.maps)),
        full_(arena.take<Barrier>(n_groups() * Ring::kStages)),
        memory_(arena.take<Bytes16>(n_vectors(n_groups(), n_stages_), kBoxAlignment)),
        ring_(memory_ + first_ring<Tile>(n_groups()) + first_of_team() * n_stages_ * Ring::kStageVectors,
              full_ + first_of_team() * Ring::kStages, arguments.maps, static_cast<int>(threadIdx.x % kWarp), n_row_tiles_,
              warp_uniform(static_cast<int>(threadIdx.x / kWarp)) == first_of_team() * (Tile::kLanes / kWarp)) {}
  static Arguments arguments(const Params& params, const LaunchPlan& plan) {
    Arguments arguments{.n_row_tiles = plan.n_row_tiles};
    describe_rows<typename Tile::Stored>(params, arguments.maps);
    if constexpr (Ring::kHasMaps) arguments.maps.n_stages = plan.n_stages;
    return arguments;
  }

  /// A team takes a run.
  static constexpr int n_takers(int n_threads, int n_row_tiles) { return n_threads / (Tile::kLanes * n_row_tiles); }
  __device__ __forceinline__ int taker() const { return team(); }
  __device__ __forceinline__ static int log_blocks() { return 0; }
  __device__ __forceinline__ void walk(const Params& params, const UnitRun& run, const UnitMemory& memory) {
    walk_tiles<Tile>(params, run, memory, thread_group() - first_of_team(), ring_,
                     memory_ + thread_group() * kTileVectors<Tile>);
  }
  __device__ __forceinline__ void renew() const {
    if constexpr (Ring::kHasMaps) async_proxy_fence();
    ring_.sync();
  }

 private:
  static constexpr int n_vectors(int n, int n_stages) { return first_ring<Tile>(n) + n * n_stages * Ring::kStageVectors; }
  static constexpr std::size_t bytes_of(int n, int n_stages) { return bytes_with_barriers(n_vectors(n, n_stages)); }
  // Without tensor maps the number of stages is fixed.
  static_assert(bytes_of(kMostGroups, Ring::kStages) + kKernelBytes <= kMostSharedBytes &&
                (kIsWide ||
                 bytes_of(kMostGroups / 2, Ring::kHasMaps ? 2 : Ring::kStages) + kKernelBytes <= kLeastSharedBytes));
  __device__ __forceinline__ static int thread_group() { return warp_uniform(thread_group_of<Tile>(threadIdx.x)); }
  __device__ __forceinline__ int team() const { return thread_group() >> (n_row_tiles_ >> 1); }
  __device__ __forceinline__ int first_of_team() const { return thread_group() & -n_row_tiles_; }
  __device__ __forceinline__ static int n_groups() {
    return kFitsLargestBlock ? kMostGroups : static_cast<int>(blockDim.x) / Tile::kLanes;
  }

  int n_row_tiles_, n_stages_;  ///< stages of each thread group
  Shared<Barrier> full_;
  Shared<Bytes16> memory_;
  Ring ring_;
};

/// True if values are the first components of the keys.
inline bool has_values_in_keys(const DecodeParams& params) {
  return params.d_v <= params.d_h && params.k.data == params.v.data &&
         std::equal(params.k.stride, params.k.stride + 3, params.v.stride);
}

/// Four warps on tensor cores for a tile of rows, one tile or two in a block, and one ring for all: for long rows, of which
/// a warp alone could not hold the states. Where values are the first components of the keys, rows are copied once.
template <IsMmaTile Tile, RowCopy kCopy, class Params_ = DecodeParams>
class BoxPipeline {
 public:
  using ThreadGroup = Tile;
  using Params = Params_;
  using Ring = BoxRing<Tile, kCopy, LeavesOf<Params>>;
  struct Arguments {
    bool values_in_keys = false;  ///< values are the first components of the keys
    int n_stages = 0;             ///< boxes of the ring
    typename Ring::Maps maps{};   ///< of keys and values
  };
  static constexpr bool kIsCompiled = kHasCopies<kCopy>;
  static constexpr int kMostTiles = 2, kThreads = kMostTiles * Tile::kLanes;

  static constexpr BlockSize fit(std::size_t n_bytes, std::int64_t group) {
    const int n_tiles = group > Tile::kRows ? kMostTiles : 1;
    int n_stages = Ring::kMostStages;
    while (bytes_of(n_tiles, n_stages) > n_bytes) --n_stages;
    return {n_tiles * Tile::kLanes, n_stages, bytes_of(n_tiles, n_stages)};
  }
  __device__ __forceinline__ BoxPipeline(Arena& arena, const Arguments& arguments)
      : n_stages_(arguments.n_stages),
        full_(arena.take<Barrier>(Ring::kMostStages)),
        memory_(arena.take<Bytes16>(n_vectors(n_tiles(), n_stages_), kBoxAlignment)),
        ring_(memory_ + first_ring<Tile>(n_tiles()), full_, arguments.maps, n_stages_, arguments.values_in_keys) {}
  static Arguments arguments(const Params& params, const LaunchPlan& plan) {
    Arguments arguments{.values_in_keys = has_values_in_keys(params), .n_stages = plan.n_stages};
    describe_rows<typename Tile::Stored>(params, arguments.maps);
    return arguments;
  }

  /// A block takes a run.
  static constexpr int n_takers(int /*n_threads*/, int /*n_row_tiles*/) { return 1; }
  __device__ __forceinline__ int taker() const { return 0; }
  __device__ __forceinline__ static int log_blocks() { return 0; }
  __device__ __forceinline__ void walk(const Params& params, const UnitRun& run, const UnitMemory& memory) {
    const int tile = warp_uniform(thread_group_of<Tile>(threadIdx.x));
    walk_tiles<Tile>(params, run, memory, tile, ring_, memory_ + tile * kTileVectors<Tile>);
  }
  __device__ __forceinline__ void renew() const {
    if constexpr (kCopy == RowCopy::TensorMap) async_proxy_fence();
    ring_.sync();
  }

 private:
  static constexpr int n_vectors(int n_tiles, int n_stages) { return first_ring<Tile>(n_tiles) + n_stages * kBoxVectors; }
  static constexpr std::size_t bytes_of(int n_tiles, int n_stages) {
    return bytes_with_barriers(n_vectors(n_tiles, n_stages));
  }
  static_assert(bytes_of(kMostTiles, Ring::kKeyBoxes) + kKernelBytes <= kLeastSharedBytes);
  __device__ __forceinline__ static int n_tiles() { return static_cast<int>(blockDim.x) / Tile::kLanes; }

  int n_stages_;
  Shared<Barrier> full_;
  Shared<Bytes16> memory_;
  Ring ring_;
};

/// Four warpgroups that are a block, for 16 or 32 queries of latent rows, which are copied once for all of them; or, of more
/// queries, a cluster of two such blocks, whose rows come from L2 once.
template <IsLatentTile Tile, class Params_ = DecodeParams>
class LatentPipeline {
 public:
  using ThreadGroup = Tile;
  using Params = Params_;
  using Memory = LatentMemory<Tile>;
  struct Arguments {
    LatentMaps maps{};
  };
  static constexpr bool kIsCompiled = kHasWarpgroups;
  static constexpr int kThreads = Tile::kLanes;

  static BlockSize fit(std::size_t /*n_bytes*/, std::int64_t group) {
    return {kThreads, Memory::kStages, Memory::kBytes, group > Tile::kRows && device().n_multiprocessors > 1 ? 2 : 1};
  }
  __device__ __forceinline__ LatentPipeline(Arena& arena, const Arguments& arguments)
      : memory_(arena), ring_(memory_, arguments.maps) {}
  static Arguments arguments(const Params& params, const LaunchPlan& plan) {
    Arguments arguments;
    arguments.maps.n_blocks = plan.cluster;
    describe_rows<typename Tile::Stored>(params, arguments.maps);
    return arguments;
  }
  /// True where there are warpgroups, for latent rows of more queries than a tile of four warps has.
  static bool takes(const DecodeParams& params) {
    return device().major == 9 && device().shared_bytes >= Memory::kBytes + kKernelBytes && params.group > 8 &&
           has_values_in_keys(params);
  }

  /// A block takes a run, or a cluster.
  static constexpr int n_takers(int /*n_threads*/, int /*n_row_tiles*/) { return 1; }
  __device__ __forceinline__ int taker() const { return 0; }
  __device__ __forceinline__ int log_blocks() const { return ring_.n_blocks() >> 1; }
  __device__ __forceinline__ void walk(const Params& params, const UnitRun& run, const UnitMemory& memory) {
    walk_latent<Tile>(params, run, memory, ring_, memory_, Count(ring_.rank()) * Tile::kRows);
  }
  __device__ __forceinline__ static void renew() {
    async_proxy_fence();
    __syncthreads();
  }

 private:
  static_assert(Memory::kBytes + kKernelBytes <= kMostSharedBytes);

  Memory memory_;
  LatentRing<Tile, LeavesOf<Params>> ring_;
};

/// Calls f with the tile for a shape: rows of 64, 128 or 256 elements, and longer ones for four warps. A function of the
/// length of rows alone, for it changes bits.
template <class T, class F>
void with_tile(const DecodeParams& params, const F& f) {
  const int d = std::max(params.d_h, params.d_v);
  if (d <= 64) return f(MmaTile<T, 64, 8>{});
  if (d <= 128) return f(MmaTile<T, 128, 8>{});
  if (d <= 256) return f(MmaTile<T, 256, 8>{});
  f(MmaTile<T, kLongestValue, 8, 4>{});
}

/// The pipeline of a tile.
template <IsMmaTile Tile, RowCopy kCopy, class Params>
using PipelineOf = std::conditional_t<Tile::kWarps == 1, MmaPipeline<Tile, kCopy, Params>, BoxPipeline<Tile, kCopy, Params>>;
/// Calls f with the one that suits the device and the rows; none of these choices changes a bit.
template <IsMmaTile Tile, class Params = DecodeParams, class F>
void with_mma_pipeline(const Params& params, const F& f) {
  if constexpr (Tile::kWarps > 1) {
    using Few = LatentPipeline<LatentTile<typename Tile::Stored, 16>, Params>;
    using Many = LatentPipeline<LatentTile<typename Tile::Stored, 32>, Params>;
    if (Many::takes(params) && params.group > 16) return f(std::type_identity<Many>{});
    if (Few::takes(params)) return f(std::type_identity<Few>{});
  }
  // Short rows of F8_E4M3 take fewer instructions by warps: all that a warpgroup saves on products, it widens.
  if constexpr (Tile::kDim == 128 || (Tile::kDim == 64 && !std::is_same_v<typename Tile::Stored, Float8>)) {
    using Wide = MmaPipeline<WgmmaTile<typename Tile::Stored, Tile::kDim>, RowCopy::TensorMap, Params>;
    if (Wide::takes(params)) return f(std::type_identity<Wide>{});
  }
  if (device().major >= 9) return f(std::type_identity<PipelineOf<Tile, RowCopy::TensorMap, Params>>{});
  f(std::type_identity<PipelineOf<Tile, RowCopy::Async, Params>>{});
}

/// Warps on scalar cores that fill their rings themselves: by bulk copies where rows allow it, else by a general ring that
/// takes rows of any stride and length. Which one it is changes no bit. Wider rows take more of the memory, so fewer warps.
/// @tparam Params_ DecodeParams, or ListedParams for leaves in the order of a list
template <IsScalarWarp Warp, class Params_ = DecodeParams>
class ScalarPipeline {
 public:
  using ThreadGroup = Warp;
  using Params = Params_;
  using Leaves = LeavesOf<Params>;
  struct Arguments {
    bool bulk;  ///< rows are bulk copies
  };
  static constexpr int kStages = 5;
  static constexpr bool kHasBulk = kHasCopies<RowCopy::TensorMap>;
  using General = LaneRing<Warp, kStages, Leaves>;
  using Bulk = BulkRing<Warp, kStages, Leaves>;
  using Rows = typename General::Rows;
  static constexpr bool kIsCompiled = true;
  static constexpr int kMostWarps = Warp::kDim <= 128 ? 8 : Warp::kDim <= 256 ? 4 : 2, kThreads = kMostWarps * kWarp;

  static constexpr BlockSize fit(std::size_t n_bytes, std::int64_t /*group*/) {
    int n_warps = kMostWarps;
    while (n_warps > 1 && bytes_of(n_warps) > n_bytes) --n_warps;
    return {n_warps * kWarp, kStages, bytes_of(n_warps)};
  }
  static Arguments arguments(const DecodeParams& params, const LaunchPlan&) {
    return {device().major >= 9 && has_bulk_rows(params, DTypeTraits<typename Warp::T>::kDType)};
  }

  __device__ __forceinline__ ScalarPipeline(Arena& arena, const Arguments& access)
      : access_(access),
        memory_(arena.take<Bytes16>(n_warps() * kStages * Rows::kStage) + warp() * kStages * Rows::kStage),
        own_(arena.take<Bytes16>(n_warps() * kWarpVectors<Warp>) + warp() * kWarpVectors<Warp>),
        ring_(bulk_ring(arena, memory_)) {}

  /// A warp takes a run.
  static constexpr int n_takers(int n_threads, int /*n_row_tiles*/) { return n_threads / kWarp; }
  __device__ __forceinline__ int taker() const { return warp(); }
  __device__ __forceinline__ static int log_blocks() { return 0; }
  __device__ __forceinline__ void walk(const Params& params, const UnitRun& run, const UnitMemory& memory) {
    const KeySteps<Leaves> steps(params.leaves_of_slots(run.found.entry, run.begin, run.end),
                                 params.in_use(run.kv_head, run.first_row));
    const RowSequence<Warp, Leaves> rows(params, run.kv_head, steps);
    const UnitTarget target{run, memory.offset_of_row(run.first, 0), memory, 1};
    if constexpr (kHasBulk) {
      if (access_.bulk) {
        begin_early(steps.leaves(), Bulk::kFirstLeaves, [&] { ring_.begin(rows); });
        return accumulate_keys<Warp>(params, run.kv_head, run.first_row, steps, target, ring_, own_);
      }
    }
    wait_for_previous_launch();
    General ring(memory_, rows);
    accumulate_keys<Warp>(params, run.kv_head, run.first_row, steps, target, ring, own_);
    copy_async_wait<0>();
  }
  __device__ __forceinline__ static void renew() {
    if constexpr (kHasBulk) async_proxy_fence();
    __syncwarp();
  }

 private:
  /// Rings, what warps have beside them, and barriers.
  static constexpr std::size_t bytes_of(int n) {
    const auto of = [n](int each, std::size_t size) {
      return (static_cast<std::size_t>(n * each) * size + 127) / 128 * 128;
    };
    return of(kStages * Rows::kStage, sizeof(Bytes16)) + of(kWarpVectors<Warp>, sizeof(Bytes16)) +
           of(kStages, sizeof(Barrier));
  }
  static_assert(bytes_of(1) + kKernelBytes <= kLeastSharedBytes && bytes_of(kMostWarps) + kKernelBytes <= kMostSharedBytes);
  __device__ __forceinline__ static int warp() { return thread_group_of<Warp>(threadIdx.x); }
  __device__ __forceinline__ static int n_warps() {
    return kFitsLargestBlock ? kMostWarps : static_cast<int>(blockDim.x) / kWarp;
  }

  __device__ __forceinline__ static auto bulk_ring(Arena& arena, Shared<Bytes16> memory) {
    if constexpr (kHasBulk)
      return Bulk(memory, arena.take<Barrier>(n_warps() * kStages) + warp() * kStages);
    else
      return NoRing{};
  }

  Arguments access_;
  Shared<Bytes16> memory_, own_;  ///< of this warp: the ring, and what is beside it
  std::conditional_t<kHasBulk, Bulk, NoRing> ring_;
};

/// Calls f with the pipeline of the library kernel. Which thread group it is depends on type and shape alone, for it changes
/// bits.
template <class T, class Params, class F>
void with_pipeline(const Params& params, const F& f) {
  if constexpr (DTypeTraits<T>::kCores == KernelCores::TensorCores) {
    if (multiplies_on_tensor_cores(params, DTypeTraits<T>::kDType))
      return with_tile<T>(params, [&](auto tile) { with_mma_pipeline<decltype(tile), Params>(params, f); });
  }
  with_scalar_warp<T>(params, [&](auto warp) { f(std::type_identity<ScalarPipeline<decltype(warp), Params>>{}); });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
