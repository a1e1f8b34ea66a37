// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A thread group, a lane's part of a state, where states wait, and the scales of scores (section 5, Thm. 1).
///
/// A state of 2 + d_v elements is spread over the threads of a group: each holds the shift, the sum and some components of
/// n. A merge is the same few operations on every component, so all threads merge at once and exchange nothing.
#pragma once

#include "gpu/engine/leaves.cuh"
#include "gpu/engine/params.hpp"
#include "gpu/platform/device.hpp"
#include "gpu/types/bytes16.hpp"
#include "reference/state/state.hpp"

#include <concepts>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Lanes of a warp, and all of them as a mask.
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFF;

/// A number that is the same in all lanes of a warp, and that the compiler knows to be: it may stay in a register of the
/// warp.
template <class T>
__device__ __forceinline__ T warp_uniform(T x) {
  return __shfl_sync(kAllLanes, x, 0);
}

/// Shared memory that a block may have on the smallest and the largest devices: 99 KiB on consumer devices of compute
/// capability 8 and 12, 227 KiB on 9 and 10.
inline constexpr std::size_t kLeastSharedBytes = 99 * 1024, kMostSharedBytes = 227 * 1024;

/// Shared memory of a kernel beside that of its pipeline: at most four small things, each at a multiple of 128 bytes.
inline constexpr std::size_t kKernelBytes = 4 * 128;

/// True if all devices of this architecture leave room for the largest block, so that its size is a constant in kernels. It
/// saves registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
inline constexpr bool kFitsLargestBlock = true;
#else
inline constexpr bool kFitsLargestBlock = false;
#endif

/// A thread group: kLanes lanes that walk over leaves for kRows queries and leave states of units. A lane holds kElements
/// components of the states of kLaneQueries of them.
template <class ThreadGroup>
concept IsThreadGroup = requires(int lane, int query, int c) {
  typename ThreadGroup::T;  // of the stored elements
  { ThreadGroup::kLanes } -> std::convertible_to<int>;
  { ThreadGroup::kRows } -> std::convertible_to<int>;
  { ThreadGroup::kLaneQueries } -> std::convertible_to<int>;
  { ThreadGroup::kElements } -> std::convertible_to<int>;
  { ThreadGroup::row(lane, query) } -> std::same_as<int>;  // which of the kRows queries one of a lane is
  { ThreadGroup::part(lane) } -> std::same_as<int>;  // where a lane has its part of a state; those of a query side by side
  { ThreadGroup::component(lane, c) } -> std::same_as<int>;  // which element of a row component c is
};

/// The lane of a thread in its thread group, and the number of that in its block. Threads are counted without a sign here,
/// so that the compiler knows these numbers to be small and not negative.
template <IsThreadGroup ThreadGroup>
__device__ __forceinline__ int lane_of(unsigned thread) {
  return static_cast<int>(thread % ThreadGroup::kLanes);
}
template <IsThreadGroup ThreadGroup>
__device__ __forceinline__ int thread_group_of(unsigned thread) {
  return static_cast<int>(thread / ThreadGroup::kLanes);
}

/// The queries of a tile of n_rows that begins with a row of a group: the last tile of a group may have fewer. The others
/// are padding: their states are not stored.
template <class Params>
__device__ __forceinline__ int rows_in_use(const Params& params, std::int64_t first_row, int n_rows) {
  const std::int64_t n_left = params.group - first_row;
  return n_left < n_rows ? static_cast<int>(n_left) : n_rows;
}

/// A thread group that is a warp on scalar cores: values of up to kDim elements, one query.
template <class Warp>
concept IsScalarWarp = IsThreadGroup<Warp> && Warp::kRows == 1 && Warp::kLaneQueries == 1 &&
                       Warp::kLanes == kWarp&& Warp::kDim == kWarp* Warp::kElements&& Warp::kRowElements % 8 == 0;

/// A thread group that is one or four warps on tensor cores: values of kDim elements of 16 bits, for each warp kSteps steps
/// of 16 and kBoxes boxes of 64, and a query for each of the 8 columns of a product.
template <class Tile>
concept IsMmaTile =
    IsThreadGroup<Tile> && sizeof(typename Tile::T) == 2 && Tile::kLanes == kWarp* Tile::kWarps&& Tile::kRows == 8 &&
    Tile::kLaneQueries == 2 && Tile::kDim == 16 * Tile::kSteps* Tile::kWarps&& Tile::kDim == 64 * Tile::kBoxes* Tile::kWarps;

/// A thread group on tensor cores: such a tile, or one of warpgroups. Its elements are multiplied as T, and stored as
/// Stored.
template <class Tile>
concept IsTensorTile = IsThreadGroup<Tile> && requires {
  typename Tile::Stored;
};

/// Tiles of kRows queries that share the keys of one ring, in a block of so many threads: 1, 2 or 4, enough for the group
/// of a kv head. On tensor cores each is the work of one thread group, and they are a *query tile*, whose keys are read
/// once; on scalar cores, and by warpgroups, it is one thread group's.
template <IsThreadGroup ThreadGroup, class Params>
int row_tiles(const Params& params, int n_threads) {
  int n = 1;
  if constexpr (IsMmaTile<ThreadGroup>)
    while (n * ThreadGroup::kLanes < n_threads && n * ThreadGroup::kRows < params.group) n *= 2;
  return n;
}

/// In place of the tensor maps of a ring that needs none.
struct NoMaps {};

/// Shift, sum and kElements components of n, in registers.
template <int kElements>
struct LaneState {
  float shift, sum, n[kElements];
};

/// The identity, as in reference/state/state.hpp.
template <int kElements>
__device__ __forceinline__ void set_empty(LaneState<kElements>& state) {
  state.shift = -std::numeric_limits<float>::infinity();
  state.sum = 0;
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) state.n[c] = -0.0f;
}

/// left <- merge(left, right): that of reference/state/state.hpp, component by component, with both sides multiplied, one of
/// them by 1: to choose which component is scaled takes more instructions.
/// @paper{alg_3, Alg. 3}
template <int kElements>
__device__ __forceinline__ void merge(LaneState<kElements>& left, const LaneState<kElements>& right) {
  const Rescale<float> r = rescale(left.shift, right.shift);
  const float of_left = r.right_is_high ? r.factor : 1, of_right = r.right_is_high ? 1 : r.factor;
  left.shift = r.shift;
  left.sum = of_left * left.sum + of_right * right.sum;
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) left.n[c] = of_left * left.n[c] + of_right * right.n[c];
}

/// A lane's part of a state in vectors of 16 bytes: the shift and the sum, then four components each.
template <int kElements>
inline constexpr int kStateVectors = 1 + kElements / 4;
template <int kElements>
__device__ __forceinline__ Bytes16 state_vector(const LaneState<kElements>& state, int i) {
  static_assert(kElements % 4 == 0);
  float elements[4] = {state.shift, state.sum};
  TREE_ATTN_UNROLL
  for (int c = 0; c < 4; ++c)
    if (i > 0) elements[c] = state.n[4 * (i - 1) + c];
  return bytes16_of(elements);
}
template <int kElements>
__device__ __forceinline__ void set_state_vector(LaneState<kElements>& state, int i, const Bytes16& bytes) {
  float elements[4];
  widen<float>(bytes, elements);
  if (i == 0) state.shift = elements[0], state.sum = elements[1];
  TREE_ATTN_UNROLL
  for (int c = 0; c < 4; ++c)
    if (i > 0) state.n[4 * (i - 1) + c] = elements[c];
}

/// States in global memory, one after the other, one lane's part of them. The lanes of a thread group lie side by side,
/// vector by vector, and never read each other's elements, so no barrier is needed.
template <IsThreadGroup ThreadGroup>
class LaneStates {
  static constexpr int kElements = ThreadGroup::kElements, kLanes = ThreadGroup::kLanes;

 public:
  static constexpr int kVectors = kStateVectors<kElements>;  ///< of a lane's part of a state
  static constexpr int kEntry = 4 * kVectors * kLanes;       ///< floats of a state, for all lanes

  /// @param memory of the thread group @param part of the lane in a state
  __device__ __forceinline__ LaneStates(float* memory, int part) : memory_(memory + 4 * part) {}

  /// Reads, or writes, the i-th.
  __device__ __forceinline__ void load(int i, LaneState<kElements>& state) const {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < kVectors; ++vector)
      set_state_vector(state, vector, load_fresh16(memory_ + i * kEntry + vector * (4 * kLanes)));
  }
  __device__ __forceinline__ void store(int i, const LaneState<kElements>& state) const {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < kVectors; ++vector)
      store_fresh16(memory_ + i * kEntry + vector * (4 * kLanes), state_vector(state, vector));
  }

 private:
  float* memory_;
};

/// Floats of the states of one query of each lane that wait together in memory of the thread group.
template <IsThreadGroup ThreadGroup>
inline constexpr int kStackEntry = LaneStates<ThreadGroup>::kEntry;

/// Keeps the last subtree, which waits for its sibling, in registers: one state for each query of a lane.
template <IsThreadGroup ThreadGroup>
class InRegisters {
 public:
  using State = LaneState<ThreadGroup::kElements>;
  static constexpr int kVectors = 0;  ///< of shared memory
  __device__ __forceinline__ InRegisters(Shared<Bytes16>, int) {}
  __device__ __forceinline__ void load(int query, State& state) const { state = state_[query]; }
  __device__ __forceinline__ void store(int query, const State& state) { state_[query] = state; }

 private:
  State state_[ThreadGroup::kLaneQueries];
};

/// Or in shared memory, where a warp has many components.
template <IsThreadGroup ThreadGroup>
class InSharedMemory {
 public:
  using State = LaneState<ThreadGroup::kElements>;
  static constexpr int kOfState = kStateVectors<ThreadGroup::kElements>;
  /// Shared memory of one thread group, in vectors of 16 bytes.
  static constexpr int kVectors = ThreadGroup::kLaneQueries * kOfState * ThreadGroup::kLanes;

  /// @param memory [kVectors] of this thread group
  __device__ __forceinline__ InSharedMemory(Shared<Bytes16> memory, int lane) : memory_(memory + lane) {}
  __device__ __forceinline__ void load(int query, State& state) const {
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i)
      set_state_vector(state, i, load16(memory_ + (query * kOfState + i) * ThreadGroup::kLanes));
  }
  __device__ __forceinline__ void store(int query, const State& state) const {
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i)
      store16(memory_ + (query * kOfState + i) * ThreadGroup::kLanes, state_vector(state, i));
  }

 private:
  Shared<Bytes16> memory_;
};

/// Memory in which the last subtree of a thread group waits: registers, or shared memory.
template <IsThreadGroup ThreadGroup>
using Waiting = std::conditional_t<ThreadGroup::kWaitsInRegisters, InRegisters<ThreadGroup>, InSharedMemory<ThreadGroup>>;

/// Scales of queries and of their products with keys.
struct Scales {
  float query, score;
};
/// The scales of a kv head, whose keys may have scales of their own.
template <class Stored>
__device__ __forceinline__ Scales scales_of(const DecodeParams& params, std::int64_t kv_head) {
  if constexpr (std::is_same_v<Stored, Float8>) {
    if (const float* const of_head = params.head_scales; of_head != nullptr)
      return {load_once(of_head + 2 * kv_head), load_once(of_head + 2 * kv_head + 1)};
  }
  return {params.query_scale, params.score_scale};
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
