// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of every kernel: forests of neighbouring ranges become one, and that becomes the result, in the block that
/// comes last (Alg. 3, Thm. 1).
///
/// The subtrees of neighbouring parts, from left to right, are pushed on a stack one after the other: two siblings merge as
/// soon as both are there, as in a binary counter. So which subtrees merge follows from the ranges alone. Where the parts
/// are siblings of one size, they are merged in pairs as they are read, and nothing is listed. A state is spread over
/// many threads, four elements each, or eight in tiles of rows, and every thread merges its own alone. Where there are more
/// threads than that, groups of them take neighbouring parts, and the first group joins what the groups have left.
#pragma once

#include "gpu/engine/params.hpp"
#include "gpu/engine/scalar.cuh"
#include "gpu/platform/device.hpp"

#include <bit>
#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Subtrees that are listed at once, and floats of shared memory that the list takes.
inline constexpr int kListed = 128, kJoinFloats = 2 * kListed + 32;
/// Groups of threads that join parts side by side, at most; as a power of two.
inline constexpr int kLogJoinGroups = 2;

/// Bits of a number without leading zeros.
__device__ __forceinline__ int width_of(Count n) {
#if defined(__CUDA_ARCH__)
  return 32 - __clz(static_cast<int>(n));
#else
  return std::bit_width(n);
#endif
}

/// The forest of one slot of a thread group.
template <IsThreadGroup ThreadGroup>
using GroupForest = LaneForest<ThreadGroup::kElements, ThreadGroup::kLanes>;

/// Where a block leaves a joined forest: in global memory for another block, or in its shared memory for those of its
/// cluster.
struct InGlobal {
  using Memory = float*;
  __device__ static void store(float* to, const Bytes16& bytes) { store_fresh16(to, bytes); }
};
struct InShared {
  using Memory = Shared<float>;
  __device__ static void store(Shared<float> to, const Bytes16& bytes) { store16(to, bytes); }
};

/// Where a block joins: shared memory that the block does not use any more.
struct Scratch {
  Shared<float> memory;
  int n_floats;
};

/// What one thread merges by itself: neighbouring elements of a lane in one slot of a thread group, together with the shift
/// and the sum of their row. A tile has many rows for few threads: with eight elements instead of four, half as many states
/// follow each other in a thread.
template <IsThreadGroup ThreadGroup>
struct StateSlice {
  static constexpr int kElements = ThreadGroup::kRows > 1 ? 8 : 4;
  static constexpr int kOfLane = ThreadGroup::kElements / kElements;
  static constexpr int kSlices = ThreadGroup::kSlots * ThreadGroup::kLanes * kOfLane;  ///< of a thread group
  using State = LaneState<kElements>;

  int slot, place, of_lane;  ///< of_lane: which of the lane at the place

  /// Which of the thread group's queries it is about, and which element of the row element c is.
  __device__ __forceinline__ int row() const { return ThreadGroup::row(ThreadGroup::lane_at(place), slot); }
  __device__ __forceinline__ int component(int c) const {
    return ThreadGroup::component(ThreadGroup::lane_at(place), of_lane * kElements + c);
  }

  /// Offset of a vector of subtree i in the layout of LaneForest: 0, shift and sum; 1, the elements.
  __device__ __forceinline__ Count offset(int i, int vector) const {
    const Count of_state = Count(vector == 0 ? 0 : of_lane * (kElements / 4) + vector);
    return Count(i) * GroupForest<ThreadGroup>::kEntry + (of_state * ThreadGroup::kLanes + Count(place)) * 4;
  }
  /// Reads its part of subtree i of a forest: in global memory, in shared memory, or as `receive` gets it.
  __device__ __forceinline__ void load(const float* forest, int i, State& state) const {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < kStateVectors<kElements>; ++vector)
      set_state_vector(state, vector, load_fresh16(forest + offset(i, vector)));
  }
  __device__ __forceinline__ void load(Shared<float> forest, int i, State& state) const {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < kStateVectors<kElements>; ++vector)
      set_state_vector(state, vector, load16(forest + offset(i, vector)));
  }
  template <class Receive>
  __device__ __forceinline__ void load(const Receive& receive, int i, State& state) const {
    state = receive(i);
  }
  /// Writes its part of subtree i of a forest. The last slice of a lane writes the shift and the sum, which all of them
  /// read: a forest may take the place of one that is joined.
  template <class Where = InGlobal>
  __device__ __forceinline__ void store(typename Where::Memory forest, int i, const State& state) const {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < kStateVectors<kElements>; ++vector)
      if (vector > 0 || of_lane == kOfLane - 1) Where::store(forest + offset(i, vector), state_vector(state, vector));
  }
};

/// The slices of the first n_rows queries of a thread group, and few others: slots and places that no query has are left
/// out.
template <IsThreadGroup ThreadGroup>
class UsedSlices {
  static constexpr int kOfLane = StateSlice<ThreadGroup>::kOfLane;
  static constexpr int log2_up(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))); }

 public:
  __device__ __forceinline__ explicit UsedSlices(int n_rows)
      : n_rows_(n_rows), n_slots_(n_rows < ThreadGroup::kSlots ? n_rows : ThreadGroup::kSlots) {
    // The places of half of the queries are the first half of all places.
    constexpr int kOfRow = ThreadGroup::kLanes * ThreadGroup::kSlots / ThreadGroup::kRows;
    TREE_ATTN_LOOP
    for (log_places_ = log2_up(kOfRow); ThreadGroup::kSlots << log_places_ < n_rows * kOfRow;) ++log_places_;
  }
  __device__ __forceinline__ int size() const { return (n_slots_ * kOfLane) << log_places_; }
  /// The least power of two that is no smaller.
  __device__ __forceinline__ int log_size() const { return log_places_ + log2_up(kOfLane) + n_slots_ - 1; }
  /// Slice i of them. Neighbouring threads have neighbouring places.
  __device__ __forceinline__ StateSlice<ThreadGroup> operator[](int i) const {
    const unsigned of_lane = static_cast<unsigned>(i) >> log_places_, slot = of_lane / kOfLane;
    return {static_cast<int>(slot), static_cast<int>(i - (of_lane << log_places_)),
            static_cast<int>(of_lane - slot * kOfLane)};
  }
  /// Whether slice i is about a query.
  __device__ __forceinline__ bool contain(int i) const { return i < size() && (*this)[i].row() < n_rows_; }

 private:
  static_assert(ThreadGroup::kSlots <= 2);
  int n_rows_, n_slots_, log_places_;
};

/// Leaves, or positions, that are joined.
struct JoinRange {
  Count begin, end;

  /// Size of the first of the subtrees that cover it, see first_subtree().
  __device__ __forceinline__ Count subtree() const {
    const Count fits = (Count{1} << (width_of(end - begin) - 1)) - 1, starts = (begin & (0 - begin)) - 1;
    return (starts < fits ? starts : fits) + 1;
  }
};

/// A list of states of one slice in shared memory, for the thread that merges it.
template <IsThreadGroup ThreadGroup>
class SliceStates {
 public:
  using State = typename StateSlice<ThreadGroup>::State;
  static constexpr int kVectors = kStateVectors<StateSlice<ThreadGroup>::kElements>,
                       kFloats = 4 * kVectors;  ///< of one state

  /// @param memory of this slice @param stride floats from one vector to the next
  __device__ __forceinline__ SliceStates(Shared<float> memory, int stride) : memory_(memory), stride_(stride) {}
  /// Starts to copy subtree i of a forest in global memory to a place; or copies it from elsewhere at once.
  __device__ __forceinline__ void copy(int place, const StateSlice<ThreadGroup>& slice, const float* forest, int i) const {
    copy_async16(at(place, 0), forest + slice.offset(i, 0), 16);
    const float* const elements = forest + slice.offset(i, 1);
    TREE_ATTN_UNROLL
    for (int vector = 1; vector < kVectors; ++vector)
      copy_async16(at(place, vector), elements + (vector - 1) * (4 * ThreadGroup::kLanes), 16);
  }
  template <class Forest>
  __device__ __forceinline__ void copy(int place, const StateSlice<ThreadGroup>& slice, const Forest& forest, int i) const {
    State state;
    slice.load(forest, i, state);
    store(place, state);
  }
  __device__ __forceinline__ void load(int place, State& state) const {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < kVectors; ++vector) set_state_vector(state, vector, load16(at(place, vector)));
  }
  __device__ __forceinline__ void store(int place, const State& state) const {
    TREE_ATTN_UNROLL
    for (int vector = 0; vector < kVectors; ++vector) store16(at(place, vector), state_vector(state, vector));
  }

 private:
  __device__ __forceinline__ Shared<float> at(int place, int vector) const {
    return memory_ + place * (kVectors * stride_) + vector * stride_;
  }

  Shared<float> memory_;
  int stride_;
};

/// The subtrees that are left of a join, from left to right, one slice of them.
template <IsThreadGroup ThreadGroup>
class JoinedRoots {
 public:
  using State = typename StateSlice<ThreadGroup>::State;

  __device__ __forceinline__ explicit JoinedRoots(const SliceStates<ThreadGroup>& states) : states_(states) {}
  __device__ __forceinline__ int size() const { return size_; }
  /// The i-th.
  __device__ __forceinline__ void load(int i, State& state) const { states_.load(i, state); }
  /// Merges the roots [from, to) into one state, right to left, as the perfect tree does where positions are missing. The
  /// identity if there are none.
  __device__ __forceinline__ void fold(int from, int to, State& state) const {
    if (from == to) return set_empty(state);
    load(to - 1, state);
    TREE_ATTN_LOOP
    for (int i = to - 2; i >= from; --i) {
      State left;
      load(i, left);
      merge(left, state);
      state = left;
    }
  }
  /// Appends a subtree, the one that follows, and merges it with those on its left whose sibling it is, or becomes.
  /// @param first of the range that they cover @param begin, size of the subtree @param[in,out] state overwritten
  __device__ __forceinline__ void push(Count first, Count begin, Count size, State& state) {
    TREE_ATTN_LOOP
    for (; (begin & size) != 0 && begin - size >= first; begin -= size, size *= 2) {
      State left;
      load(--size_, left);
      merge(left, state);
      state = left;
    }
    states_.store(size_++, state);
  }

 private:
  SliceStates<ThreadGroup> states_;
  int size_ = 0;
};

/// The subtrees of neighbouring parts, from left to right, in shared memory.
class JoinList {
 public:
  /// @param memory [kJoinFloats]
  __device__ __forceinline__ explicit JoinList(Shared<float> memory)
      : begins_(shared_as<Count>(memory)), sources_(begins_ + (kListed + 1)), sizes_(sources_ + kListed) {}

  /// The first warp lists the subtrees of part `first` and the next ones, as many as there is room for.
  /// @param part (i) -> begin and end of part i
  template <class Part>
  __device__ __forceinline__ void fill(int first, int n_parts, const Part& part) const {
    const int lane = static_cast<int>(threadIdx.x), i = first + lane;
    const JoinRange own = i < n_parts ? part(i) : JoinRange{0, 0};
    int n = 0;
    for (JoinRange rest = own; rest.begin != rest.end; rest.begin += rest.subtree()) ++n;
    // Those of the parts up to this lane's.
    int through = n;
    TREE_ATTN_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int left = __shfl_sync(kAllLanes, through, lane - distance);
      if (lane >= distance) through += left;
    }
    const bool fits = i < n_parts && through <= kListed;
    if (fits) {
      JoinRange rest = own;
      TREE_ATTN_LOOP
      for (int j = 0; j < n; rest.begin += rest.subtree(), ++j)
        begins_[through - n + j] = rest.begin, sources_[through - n + j] = Count(i << 8 | j);
    }
    const int n_taken = __popc(__ballot_sync(kAllLanes, fits));
    if (lane == n_taken - 1) begins_[through] = own.end, sizes_[0] = Count(n_taken), sizes_[1] = Count(through);
  }

  /// Parts, and subtrees, that are listed.
  __device__ __forceinline__ int n_parts() const { return static_cast<int>(Count(sizes_[0])); }
  __device__ __forceinline__ int size() const { return static_cast<int>(Count(sizes_[1])); }
  /// Where subtree i begins, and the one before it ends.
  __device__ __forceinline__ Count begin(int i) const { return begins_[i]; }
  /// Of which part it is, and which of that.
  __device__ __forceinline__ int part(int i) const { return static_cast<int>(Count(sources_[i]) >> 8); }
  __device__ __forceinline__ int index(int i) const { return static_cast<int>(Count(sources_[i]) & 0xFF); }

 private:
  Shared<Count> begins_, sources_, sizes_;
};

/// Joins the forests of neighbouring parts of a range, left to right. All threads of the block call it and none of them uses
/// the scratch memory any more; after it a barrier is needed before any of them does.
///
/// The subtrees of the parts are listed once. A thread starts to copy its slice of as many subtrees as there is room for to
/// the places after its stack, and pushes them when they are there: what is merged takes no more places than what was
/// copied. Siblings of one size, which are the usual case, are merged as they are read.
/// @pre parts begin and end with leaves, before 2^32 of those
/// @param n_rows queries of the thread group
/// @param range of all parts
/// @param positions (i) -> KeyRange of part i
/// @param forest_of (slice, i) -> the forest of part i, as StateSlice::load() takes it
/// @param use (slice, roots) what to do with the result; called once per slice
template <IsThreadGroup ThreadGroup, class Positions, class ForestOf, class Use>
__device__ __forceinline__ void join_parts(Scratch scratch, int n_rows, KeyRange range, int n_parts,
                                           const Positions& positions, const ForestOf& forest_of, const Use& use) {
  using States = SliceStates<ThreadGroup>;
  const UsedSlices<ThreadGroup> slices(n_rows);
  n_parts = opaque(n_parts);  // Nothing that follows from it is worked out before the walk, and held through it.
  const int thread = opaque(static_cast<int>(threadIdx.x)), n_threads = static_cast<int>(blockDim.x);
  const JoinList list(scratch.memory);
  const auto units = [](KeyRange x) { return JoinRange{Count(leaf_at(x.begin)), Count(leaf_at(x.end))}; };
  const JoinRange all = units(range);

  // Whether the parts are siblings, and each of them so many units: every warp finds out for itself.
  const Count n_units = all.end - all.begin, each = n_units >> (width_of(Count(n_parts)) - 1);
  const auto is_power = [](Count n) { return n != 0 && (n & (n - 1)) == 0; };
  // Not what comes in packets; and long rows of F16 leave no register for it.
  constexpr bool kMayBe = !std::is_invocable_v<std::invoke_result_t<ForestOf, StateSlice<ThreadGroup>, int>, int> &&
                          !(ThreadGroup::kLanes > kWarp && std::is_same_v<typename ThreadGroup::T, Half>);
  bool are_siblings = kMayBe && n_parts <= kWarp && is_power(Count(n_parts)) && is_power(n_units) && each > 0 &&
                      (all.begin & (n_units - 1)) == 0;
  if (are_siblings) {
    const int lane = thread % kWarp, i = lane < n_parts ? lane : n_parts - 1;
    const JoinRange part = units(positions(i));
    const Count begin = all.begin + Count(i) * each;
    are_siblings = __all_sync(kAllLanes, part.begin == begin && part.end == begin + each) != 0;
  }
  const auto fill = [&](int first) {
    if (thread < kWarp) list.fill(first, n_parts, [&](int i) { return units(positions(i)); });
    __syncthreads();
  };
  if (!are_siblings) fill(0);
  const bool is_whole = are_siblings || list.n_parts() == n_parts;

  // Slices at once, and groups of threads: as many as there are threads for, and room for the largest stack of each; of
  // siblings no more than take so many as are merged at once. Powers of two, so that there are no divisions.
  const int n_places = (scratch.n_floats - kJoinFloats) / States::kFloats, covering = 2 * width_of(n_units) + 1,
            listed = are_siblings ? width_of(Count(n_parts)) : list.size(),
            most = is_whole && listed < covering ? listed : covering;
  const auto fit = [&](int log) { return 1 << log <= n_threads && most << log <= n_places; };
  int log_once = slices.log_size(), log_groups = 0;
  TREE_ATTN_LOOP
  while (log_once > 0 && !fit(log_once)) --log_once;
  TREE_ATTN_LOOP
  while (log_groups < kLogJoinGroups && fit(log_once + log_groups + 1) && !(are_siblings && 2 << log_groups >= n_parts))
    ++log_groups;
  const int at_once = 1 << log_once, n_groups = 1 << log_groups, group = thread >> log_once,
            stride = 4 << (log_once + log_groups), room = n_places >> (log_once + log_groups);
  const States states(scratch.memory + (kJoinFloats + 4 * thread), stride);

  TREE_ATTN_LOOP
  for (int first_slice = 0; first_slice < slices.size(); first_slice += at_once) {
    const int own = first_slice + (thread & (at_once - 1));
    const StateSlice<ThreadGroup> slice = slices[own];
    const bool merges = group < n_groups && slices.contain(own);
    const auto states_of = [&](int i) {
      return States(scratch.memory + (kJoinFloats + 4 * (thread + i * at_once)), stride);
    };
    JoinedRoots<ThreadGroup> roots(states);
    if (are_siblings) {
      typename States::State state;
      const int n_own = n_parts >> log_groups;
      const Count first = all.begin + Count(group * n_own) * each;
      TREE_ATTN_LOOP
      for (int i = 0; merges && i < n_own; i += 2) {
        slice.load(forest_of(slice, group * n_own + i), 0, state);
        if (n_own > 1) {
          typename States::State right;
          slice.load(forest_of(slice, group * n_own + i + 1), 0, right);
          merge(state, right);
        }
        roots.push(first, first + Count(i) * each, n_own > 1 ? 2 * each : each, state);
      }
      if (n_groups > 1 || StateSlice<ThreadGroup>::kOfLane > 1) __syncthreads();
      TREE_ATTN_LOOP
      for (int i = 1; merges && group == 0 && i < n_groups; ++i) {
        states_of(i).load(0, state);
        roots.push(first, first + Count(i * n_own) * each, Count(n_own) * each, state);
      }
    }
    TREE_ATTN_LOOP
    for (int first = are_siblings ? n_parts : 0; first < n_parts; first += list.n_parts()) {
      if (first_slice + first > 0) {
        __syncthreads();
        if (!is_whole) fill(first);
      }
      const int n = list.size();
      const auto first_of = [n, log_groups](int i) { return i * n >> log_groups; };
      typename States::State state;
      if (merges) {
        if (group > 0) roots = JoinedRoots<ThreadGroup>(states);
        const int end = first_of(group + 1);
        int from = first_of(group), copied = from;
        const Count begin = group == 0 ? all.begin : list.begin(from);
        TREE_ATTN_LOOP
        while (from < end) {
          int place = roots.size();
          TREE_ATTN_LOOP
          for (; place < room && copied < end; ++copied, ++place)
            states.copy(place, slice, forest_of(slice, list.part(copied)), list.index(copied));
          copy_async_commit();
          copy_async_wait<0>();
          place -= copied - from;
          TREE_ATTN_LOOP
          for (; from < copied; ++from, ++place) {
            states.load(place, state);
            roots.push(begin, list.begin(from), list.begin(from + 1) - list.begin(from), state);
          }
        }
      }
      __syncthreads();
      if (!merges || group > 0) continue;
      TREE_ATTN_LOOP
      for (int i = 1; i < n_groups; ++i) {
        const States others = states_of(i);
        // What they have left covers their subtrees.
        JoinRange rest{list.begin(first_of(i)), list.begin(first_of(i + 1))};
        TREE_ATTN_LOOP
        for (int place = 0; rest.begin != rest.end; ++place) {
          const Count size = rest.subtree();
          others.load(place, state);
          roots.push(all.begin, rest.begin, size, state);
          rest.begin += size;
        }
      }
    }
    if (merges && group == 0) use(slice, roots);
  }
}

/// join_parts() for the n parts of a range that split_range() has cut, their forests in global memory one after the other.
/// @param n_rows queries of the thread group @param parts [n_parts][n_slots][n_part] @param first_slot of the thread group
template <IsThreadGroup ThreadGroup, class Use>
__device__ __forceinline__ void join_splits(Scratch scratch, int n_rows, const float* parts, std::int64_t n_part,
                                            KeyRange range, int n_parts, const Use& use, int n_slots = ThreadGroup::kSlots,
                                            int first_slot = 0) {
  join_parts<ThreadGroup>(
      scratch, n_rows, range, n_parts, [range, n_parts](int i) { return split_range(range, i, n_parts); },
      [=](const auto& slice, int i) { return parts + (i * n_slots + first_slot + slice.slot) * n_part; }, use);
}

/// Leaves a joined forest in memory, for another block to join.
/// @param to forest of slot 0 @param n_forest floats from there to that of the next slot
template <IsThreadGroup ThreadGroup, class Where = InGlobal>
__device__ __forceinline__ void store_forest(const StateSlice<ThreadGroup>& slice, const JoinedRoots<ThreadGroup>& roots,
                                             typename Where::Memory to, std::int64_t n_forest) {
  TREE_ATTN_LOOP
  for (int i = 0; i < roots.size(); ++i) {
    typename StateSlice<ThreadGroup>::State state;
    roots.load(i, state);
    slice.template store<Where>(to + slice.slot * n_forest, i, state);
  }
}

/// Writes one slice of a state. By store_fresh(): what reads it comes later, and the emulator holds it to that order.
/// @param to [2 + d_v]
template <IsThreadGroup ThreadGroup>
__device__ __forceinline__ void write_state(float* to, const StateSlice<ThreadGroup>& slice,
                                            const typename StateSlice<ThreadGroup>::State& state, int d_v) {
  if (slice.component(0) == 0) store_fresh(to + kShift, state.shift), store_fresh(to + kSum, state.sum);
  TREE_ATTN_UNROLL
  for (int c = 0; c < StateSlice<ThreadGroup>::kElements; ++c) {
    const int j = slice.component(c);
    if (j < d_v) store_fresh(to + kValues + j, state.n[c]);
  }
}

/// Writes one slice of the result: z = n / D and lse, or if there is more to come one state for every subtree that covers
/// the shard.
/// @param first_row of the thread group's rows in the group of the kv head
/// @param held range of the tree that the roots cover; the rest of the shard is the empty set
/// @paper{alg_3, Alg. 3}
template <IsThreadGroup ThreadGroup, class Params>
__device__ __forceinline__ void write_output(const Params& params, const DeviceOutput& output, std::int64_t kv_head,
                                             std::int64_t first_row, const StateSlice<ThreadGroup>& slice,
                                             const JoinedRoots<ThreadGroup>& roots, KeyRange held) {
  const std::int64_t row = kv_head * params.group + first_row + slice.row();
  typename StateSlice<ThreadGroup>::State state;

  // The finished row.
  if (output.out != nullptr) {
    roots.fold(0, roots.size(), state);
    const float e_and_sum[] = {state.shift, state.sum};
    if (slice.component(0) == 0) store_fresh(output.lse + row, finish_lse(e_and_sum));
    TREE_ATTN_UNROLL
    for (int c = 0; c < StateSlice<ThreadGroup>::kElements; ++c) {
      const int j = slice.component(c);
      if (j < params.d_v) store_fresh(output.out + row * params.d_v + j, finish_value(e_and_sum, state.n[c]));
    }
    return;
  }

  // Or one state per subtree, in the layout of Forest<float>.
  float* to = output.states + row * state_size(params.d_v);
  int from = 0;
  for (KeyRange shard = params.shard(kv_head); !shard.empty(); to += params.n_rows() * state_size(params.d_v)) {
    shard.begin = first_subtree(shard.begin, shard.end).end();
    int n = 0;
    for (; !held.empty() && held.begin < shard.begin; ++n) held.begin = first_subtree(held.begin, held.end).end();
    roots.fold(from, from + n, state);
    from += n;
    write_state(to, slice, state, params.d_v);
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
