// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A thread group's part of a state, and the canonical tree above its leaves: a binary counter (section 5, Thm. 1).
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

/// Whether all devices of this architecture leave room for the largest block, so that its size is a constant in kernels. It
/// saves registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
inline constexpr bool kFitsLargestBlock = true;
#else
inline constexpr bool kFitsLargestBlock = false;
#endif

/// A thread group: kLanes lanes that take a range of positions for kRows queries and leave a forest. A lane holds, in each
/// of its kSlots, kElements components of the state of one of them.
template <class ThreadGroup>
concept IsThreadGroup = requires(int lane, int slot, int c) {
  typename ThreadGroup::T;  // of the stored elements
  { ThreadGroup::kLanes } -> std::convertible_to<int>;
  { ThreadGroup::kRows } -> std::convertible_to<int>;
  { ThreadGroup::kSlots } -> std::convertible_to<int>;
  { ThreadGroup::kElements } -> std::convertible_to<int>;
  { ThreadGroup::row(lane, slot) } -> std::same_as<int>;  // which of the kRows queries a slot is about
  { ThreadGroup::place(lane) } -> std::same_as<int>;  // where a lane has its part of a state; those of a query side by side
  { ThreadGroup::lane_at(lane) } -> std::same_as<int>;       // the lane of a place
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
/// are padding: their states are neither stored nor joined.
template <class Params>
__device__ __forceinline__ int rows_in_use(const Params& params, std::int64_t first_row, int n_rows) {
  const std::int64_t n_left = params.group - first_row;
  return n_left < n_rows ? static_cast<int>(n_left) : n_rows;
}

/// A thread group that is a part of a warp, serves one query, and reads kVectorsPerLane times 16 bytes of a row per lane.
template <class SubWarp>
concept IsSubWarp = IsThreadGroup<SubWarp> && SubWarp::kRows == 1 && SubWarp::kSlots == 1 && kWarp % SubWarp::kLanes == 0 &&
                    SubWarp::kVectorsPerLane >= 1;

/// A thread group that is one or four warps on tensor cores: values of kDim elements of 16 bits, for each warp kSteps steps
/// of 16 and kBoxes boxes of 64, kRows queries with kColumns columns of a product each.
template <class Tile>
concept IsMmaTile =
    IsThreadGroup<Tile> && sizeof(typename Tile::T) == 2 &&
    Tile::kLanes == kWarp* Tile::kWarps&& Tile::kRows* Tile::kColumns == 8 && Tile::kSlots* Tile::kColumns == 2 &&
    Tile::kDim == 16 * Tile::kSteps* Tile::kWarps&& Tile::kDim == 64 * Tile::kBoxes* Tile::kWarps;

/// Tiles of kRows queries that share the keys of one ring, in a block of so many threads: 1, 2 or 4, enough for the group
/// of a kv head. On tensor cores each is the work of one thread group, and they are a *query tile*, whose keys are read
/// once; on CUDA cores a query tile is one thread group's.
template <IsThreadGroup ThreadGroup, class Params>
int row_tiles(const Params& params, int n_threads) {
  int n = 1;
  if constexpr (IsMmaTile<ThreadGroup>)
    while (n * ThreadGroup::kLanes < n_threads && n * ThreadGroup::kRows < params.group) n *= 2;
  return n;
}

/// In place of the tensor maps of a ring that needs none.
struct NoMaps {};

/// Rows of keys or values: (i, vector) -> 16 bytes of row i for this lane.
template <class Rows>
concept IsRows = requires(const Rows& rows, int i, int vector) {
  { rows(i, vector) } -> std::same_as<Bytes16>;
};

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
  Bytes16 bytes;
  std::memcpy(&bytes, elements, sizeof bytes);
  return bytes;
}
template <int kElements>
__device__ __forceinline__ void set_state_vector(LaneState<kElements>& state, int i, const Bytes16& bytes) {
  float elements[4];
  std::memcpy(elements, &bytes, sizeof bytes);
  if (i == 0) state.shift = elements[0], state.sum = elements[1];
  TREE_ATTN_UNROLL
  for (int c = 0; c < 4; ++c)
    if (i > 0) state.n[4 * (i - 1) + c] = elements[c];
}

/// The forest of a range of positions in global memory, one lane's part of it.
///
/// The states of the subtrees that cover the range lie one after the other, left to right. Which subtrees these are follows
/// from the ends of the range, so only states are stored. The lanes of a thread group lie side by side, vector by vector,
/// and never read each other's elements, so no barrier is needed while a forest is filled.
template <int kElements, int kLanes>
class LaneForest {
 public:
  static constexpr int kVectors = kStateVectors<kElements>;  ///< of a lane's part of one subtree
  static constexpr int kEntry = 4 * kVectors * kLanes;       ///< floats of one subtree, for all lanes

  /// Floats of a forest for all lanes of a thread group.
  /// @param longest positions of the longest range it may hold
  __host__ __device__ static std::int64_t n_floats(std::int64_t longest) {
    std::int64_t n = 2;
    while (longest >>= 1) n += 2;
    return n * kEntry;
  }

  /// @param memory of the thread group @param place of the lane in a state
  __device__ __forceinline__ LaneForest(float* memory, int place) : memory_(memory + 4 * place) {}

  /// Reads, or writes, the i-th subtree from the left.
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

/// Where the last subtree waits for its sibling: in registers, one state per slot.
template <int kElements, int kSlots = 1>
class InRegisters {
 public:
  static constexpr int kVectors = 0;  ///< of shared memory
  InRegisters() = default;
  __device__ __forceinline__ InRegisters(Shared<Bytes16>, int) {}
  __device__ __forceinline__ void load(int slot, LaneState<kElements>& state) const { state = state_[slot]; }
  __device__ __forceinline__ void store(int slot, const LaneState<kElements>& state) { state_[slot] = state; }

 private:
  LaneState<kElements> state_[kSlots];
};

/// Or in shared memory, where a warp has many components.
template <IsThreadGroup ThreadGroup>
class InSharedMemory {
 public:
  using State = LaneState<ThreadGroup::kElements>;
  static constexpr int kSlots = ThreadGroup::kSlots;
  static constexpr int kOfState = kStateVectors<ThreadGroup::kElements>;
  static constexpr int kVectors = kSlots * kOfState * ThreadGroup::kLanes;  ///< of shared memory, for one thread group

  /// @param memory [kVectors] of this thread group
  __device__ __forceinline__ InSharedMemory(Shared<Bytes16> memory, int lane) : memory_(memory + lane) {}
  __device__ __forceinline__ void load(int slot, State& state) const {
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i)
      set_state_vector(state, i, load16(memory_ + (slot * kOfState + i) * ThreadGroup::kLanes));
  }
  __device__ __forceinline__ void store(int slot, const State& state) const {
    TREE_ATTN_UNROLL
    for (int i = 0; i < kOfState; ++i)
      store16(memory_ + (slot * kOfState + i) * ThreadGroup::kLanes, state_vector(state, i));
  }

 private:
  Shared<Bytes16> memory_;
};

/// The forests of a thread group's leaves, one per slot, one lane's part of them. All slots have the same subtrees. A
/// subtree that the next leaf may complete waits on the chip: without empty slots half of the leaves never reach memory.
/// @paper{thm_1, Thm. 1}
template <int kElements, int kLanes, class Leaves = ContiguousLeaves, class Waiting = InRegisters<kElements>>
class LeafForest {
 public:
  using State = LaneState<kElements>;

  /// @param memory of the forests, n_forest floats each @param place of the lane in a state, ThreadGroup::place()
  /// @param waiting what Waiting is made of
  template <class... Of>
  __device__ __forceinline__ LeafForest(float* memory, std::int64_t n_forest, const Leaves& leaves, int place,
                                        const Of&... waiting)
      : memory_(memory), n_forest_(n_forest), leaves_(leaves), place_(place), waiting_(waiting...) {}

  /// Appends the state of leaf i, the next one, in one slot. Slot 0 comes last; a lane may leave the others out. No lane
  /// reads what another has written.
  /// @param[in,out] state overwritten
  __device__ __forceinline__ void push(int i, State& state, int slot = 0) {
    const LaneForest<kElements, kLanes> forest(memory_ + slot * n_forest_, place_);
    int depth = depth_;
    bool waits = waits_;

    // Merge the subtrees on its left that it completes, and go up where the right side is empty.
    Subtree subtree{kLeafLevel, leaves_.slot(i)};
    for (;; subtree = subtree.parent()) {
      if ((subtree.index & 1) == 0) {
        if (!Leaves::kHasEmptySlots || subtree.parent().end() > leaves_.next(i)) break;
      } else {
        if (subtree.parent().begin() < leaves_.begin()) break;
        State left;
        if (waits)
          waiting_.load(slot, left);
        else
          forest.load(--depth, left);
        waits = false;
        merge(left, state);
        state = left;
      }
    }

    // Store what waited for another sibling, then the new subtree, or let it wait.
    if (Leaves::kHasEmptySlots && waits) {
      State left;
      waiting_.load(slot, left);
      store(forest, depth++, left);
    }
    waits = leaves_.waits(subtree, i);
    if (waits)
      waiting_.store(slot, state);
    else
      store(forest, depth++, state);

    // Slots that are empty, and right of a subtree whose left sibling is not in this part.
    if constexpr (Leaves::kHasEmptySlots) {
      set_empty(state);
      for (std::int64_t at = subtree.end(), next = leaves_.next(i); at < next; at = first_subtree(at, next).end())
        store(forest, depth++, state);
    }
    if (slot == 0) depth_ = depth, waits_ = waits;
  }

  /// Whether this lane has stored a component that is not finite. D is not finite only together with all of n.
  __device__ __forceinline__ bool is_broken() const { return zero_ != 0; }

 private:
  __device__ __forceinline__ void store(const LaneForest<kElements, kLanes>& forest, int i, const State& state) {
    forest.store(i, state);
    // 0 * x is NaN if x is not finite. Every state of the range passes here, by itself or merged.
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) zero_ = fused_multiply_add(0.0f, state.n[c], zero_);
  }

  float* memory_;
  std::int64_t n_forest_;
  Leaves leaves_;
  int place_, depth_ = 0;  ///< depth: subtrees in memory
  bool waits_ = false;     ///< whether the last subtree is not there yet
  Waiting waiting_;
  float zero_ = 0;
};

/// What a walk leaves: a forest for each slot of a thread group.
struct ForestTarget {
  float* memory;          ///< of the forests
  std::int64_t n_forest;  ///< floats of one

  template <IsThreadGroup ThreadGroup, class Leaves, class Waiting, class... Of>
  __device__ __forceinline__ auto forest(const Leaves& leaves, int lane, const Of&... waiting) const {
    return LeafForest<ThreadGroup::kElements, ThreadGroup::kLanes, Leaves, Waiting>(opaque(memory), n_forest, leaves,
                                                                                    ThreadGroup::place(lane), waiting...);
  }
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
