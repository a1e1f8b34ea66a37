// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of every kernel: forests of neighbouring ranges become one, and that becomes the result, in the block that
/// comes last (Alg. 3, Thm. 1).
///
/// The subtrees of neighbouring parts form a list of entries. Every entry but the first begins at a boundary b, and each
/// boundary is one merge: of all that lies between b and the nearest higher boundary on its left with all that lies between
/// b and the nearest higher one on its right. Its height is that of the smallest node of the canonical tree that has b
/// inside, ctz(b) + 1. So a boundary finds its merge by looking at the heights of the others, and needs no other merge for
/// it: all threads of a block work the order out at once. The result takes the place of its leftmost entry; merges of one
/// height do not depend on each other.
#pragma once

#include "tree_attn/gpu/engine/params.hpp"
#include "tree_attn/gpu/engine/scalar.cuh"
#include "tree_attn/gpu/platform/device.hpp"

#include <bit>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Parts, and subtrees of them, that are listed at once.
inline constexpr int kListedParts = 64, kListedEntries = 256;
/// Level of a boundary between subtrees that stay apart; that of others is ctz(b).
inline constexpr int kStaysLevel = 64;

/// A subtree in the list: subtree j of part i; and the level of the boundary at which it begins.
struct JoinEntry {
  std::int32_t part_of, subtree_and_level;

  __device__ __forceinline__ int part() const { return part_of; }
  __device__ __forceinline__ int subtree() const { return subtree_and_level >> 16; }
  __device__ __forceinline__ int level() const { return subtree_and_level & 0xFFFF; }
};

/// A merge: the entries at which its two sides begin, and how many steps of its level there are from this one on.
struct JoinStep {
  static_assert(kListedEntries <= 256);
  std::int32_t packed;

  __device__ __forceinline__ static JoinStep of(int left, int right, int n_level) {
    return {left | right << 8 | n_level << 16};
  }
  __device__ __forceinline__ int left() const { return packed & 0xFF; }
  __device__ __forceinline__ int right() const { return packed >> 8 & 0xFF; }
  __device__ __forceinline__ int n_level() const { return packed >> 16; }
};

/// Entries of a list, and merges among them.
struct JoinSize {
  int n_entries, n_merges;
  __device__ __forceinline__ int n_roots() const { return n_entries - n_merges; }
};

/// Floats of shared memory that the list and the steps take.
inline constexpr int kJoinFloats = kListedParts + 32 + 3 * kListedEntries;

/// The list, the steps, and the threads' work on them. A barrier of the block stands between count() and place(), list() and
/// order(), order() and step().
class JoinSteps {
 public:
  /// @param memory [kJoinFloats], a multiple of 8 bytes
  __device__ __forceinline__ explicit JoinSteps(Shared<float> memory)
      : counts_(shared_as<int>(memory)),
        entries_(shared_as<JoinEntry>(memory + (kListedParts + 32))),
        steps_(shared_as<JoinStep>(memory + (kListedParts + 32 + 2 * kListedEntries))) {}

  /// Subtrees of part 0.
  __device__ __forceinline__ int n_first() const { return counts_[0]; }
  /// Thread i stores the number of subtrees of part i.
  __device__ __forceinline__ void count(KeyRange part, int i, int n_parts) const {
    if (i < n_parts) counts_[i] = n_subtrees(part.begin, part.end);
  }
  /// The first entry of part i. @param[out] n_entries of all parts
  __device__ __forceinline__ int place(int i, int n_parts, int& n_entries) const {
    int at = 0;
    n_entries = 0;
    for (int j = 0; j < n_parts; ++j) {
      const int count = counts_[j];
      at += j < i ? count : 0;
      n_entries += count;
    }
    return at;
  }
  /// How many of the parts fit: at least the first two. @param[in,out] n_entries of all parts; of those that fit
  __device__ __forceinline__ int take(int n_parts, int room, int& n_entries) const {
    while (n_entries > room && n_parts > 2) n_entries -= counts_[--n_parts];
    return n_parts;
  }
  /// Lists the subtrees of a range. @param joined see level_of()
  __device__ __forceinline__ void list(KeyRange range, int part, int entry, KeyRange joined) const {
    TREE_ATTN_LOOP
    for (int i = 0; !range.empty(); ++i, ++entry) {
      entries_[entry] = JoinEntry{part, i << 16 | level_of(range.begin, joined)};
      range.begin = first_subtree(range.begin, range.end).end();
    }
  }
  /// The level of a boundary inside the range that is joined: two subtrees meet there and merge, unless the node that has
  /// the boundary inside reaches past the range.
  __device__ __forceinline__ static int level_of(std::int64_t boundary, KeyRange joined) {
    const std::int64_t half = boundary & -boundary;
    if (boundary - half < joined.begin || boundary + half > joined.end || half == 0) return kStaysLevel;
#if defined(__CUDA_ARCH__)
    return __ffsll(static_cast<long long>(half)) - 1;
#else
    return std::countr_zero(static_cast<std::uint64_t>(half));
#endif
  }
  /// Finds the merge of every boundary, and its place in the order: by level, from left to right.
  __device__ __forceinline__ void order(int thread, int n_threads, int n_entries) const {
    int n_merges = 0;
    for (int right = thread + 1; right < n_entries; right += n_threads) {
      const int own = JoinEntry(entries_[right]).level();
      int left = 0, n_before = 0, n_level = 0;
      n_merges = 0;
      for (int i = 1; i < n_entries; ++i) {
        const int level = JoinEntry(entries_[i]).level();
        if (i < right && level > own) left = i;
        n_before += level < own || (level == own && i < right) ? 1 : 0;
        n_level += level == own && i >= right ? 1 : 0;
        n_merges += level < kStaysLevel ? 1 : 0;
      }
      steps_[n_before] = JoinStep::of(left, right, n_level);
    }
    if (thread == 0) counts_[kMerges] = n_merges;
  }

  __device__ __forceinline__ JoinEntry entry(int i) const { return entries_[i]; }
  __device__ __forceinline__ JoinStep step(int i) const { return steps_[i]; }
  __device__ __forceinline__ int n_merges() const { return counts_[kMerges]; }
  /// The entry at which the i-th subtree that is left begins: after the merges come the boundaries that stay.
  __device__ __forceinline__ int root(int i, JoinSize size) const {
    return i == 0 ? 0 : JoinStep(steps_[size.n_merges + i - 1]).right();
  }

 private:
  /// The place of the number of merges, after the counts of what is done and of kListedParts parts.
  static constexpr int kMerges = kListedParts + 1;

  Shared<int> counts_;
  Shared<JoinEntry> entries_;
  Shared<JoinStep> steps_;
};

/// The forest of one slot of a thread group.
template <IsThreadGroup ThreadGroup>
using GroupForest = LaneForest<ThreadGroup::kElements, ThreadGroup::kLanes>;

/// Where a block leaves a joined forest: in global memory for another block, or in its shared memory for those of its
/// cluster.
struct InGlobal {
  using Memory = float*;
  __device__ static void store(float* to, float x) { store_fresh(to, x); }
};
struct InShared {
  using Memory = Shared<float>;
  __device__ static void store(Shared<float> to, float x) { to[0] = x; }
};

/// Where a block joins: shared memory that the block does not use any more.
struct Scratch {
  Shared<float> memory;
  int n_floats;
};

/// What one thread merges by itself: two neighbouring elements of a lane in one slot of a thread group, together with the
/// shift and the sum of their row. That is 16 bytes, and so few elements that even one row keeps many threads busy.
template <IsThreadGroup ThreadGroup>
struct ElementPair {
  static constexpr int kElements = 2;
  static constexpr int kOfLane = ThreadGroup::kElements / kElements;
  static constexpr int kPairs = ThreadGroup::kSlots * ThreadGroup::kLanes * kOfLane;  ///< of a thread group
  /// A part of them that a warp can take: kPairs halved.
  static constexpr int kOfWarp = [] {
    int n = kPairs;
    while (n > kWarp) n /= 2;
    return n;
  }();
  static_assert(ThreadGroup::kElements % kElements == 0);
  using State = LaneState<kElements>;
  static_assert(sizeof(State) == sizeof(Bytes16));

  int slot, place, first;  ///< first: of the elements of the lane at the place

  /// Which of the thread group's queries it is about, and which element of the row element c is.
  __device__ __forceinline__ int row() const { return ThreadGroup::row(ThreadGroup::lane_at(place), slot); }
  __device__ __forceinline__ int component(int c) const {
    return ThreadGroup::component(ThreadGroup::lane_at(place), first + c);
  }

  /// Offset of plane `plane` (shift, sum, elements) of subtree i, in the layout of LaneForest.
  __device__ __forceinline__ int offset(int i, int plane) const {
    return i * GroupForest<ThreadGroup>::kEntry + (plane < 2 ? plane : plane + first) * ThreadGroup::kLanes + place;
  }
  /// Writes its part of subtree i of a forest.
  template <class Where = InGlobal>
  __device__ __forceinline__ void store(typename Where::Memory forest, int i, const State& state) const {
    if (first == 0) Where::store(forest + offset(i, 0), state.shift), Where::store(forest + offset(i, 1), state.sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) Where::store(forest + offset(i, 2 + c), state.n[c]);
  }
};

/// The pairs of the first n_rows queries of a thread group, and few others: slots and places that no query has are left out.
/// How many they are is kOfWarp times a power of two.
template <IsThreadGroup ThreadGroup>
class UsedPairs {
 public:
  __device__ __forceinline__ explicit UsedPairs(int n_rows) : n_rows_(n_rows) {
    // The places of half of the queries are the first half of all places.
    while (log_places_ > 0 && ThreadGroup::row(ThreadGroup::lane_at(1 << (log_places_ - 1)), 0) >= n_rows) --log_places_;
  }
  __device__ __forceinline__ int size() const {
    return ((n_rows_ < ThreadGroup::kSlots ? n_rows_ : ThreadGroup::kSlots) * ElementPair<ThreadGroup>::kOfLane)
           << log_places_;
  }
  /// Pair i of them. Neighbouring threads have neighbouring places.
  __device__ __forceinline__ ElementPair<ThreadGroup> operator[](int i) const {
    const int of_lane = i >> log_places_;
    return {of_lane / ElementPair<ThreadGroup>::kOfLane, i - (of_lane << log_places_),
            of_lane % ElementPair<ThreadGroup>::kOfLane * ElementPair<ThreadGroup>::kElements};
  }
  /// Whether a pair is about a query.
  __device__ __forceinline__ bool contain(const ElementPair<ThreadGroup>& pair) const { return pair.row() < n_rows_; }

 private:
  int n_rows_, log_places_ = std::bit_width(unsigned{ThreadGroup::kLanes}) - 1;
};

/// The states of the entries of one pair, in shared memory. Once they are there a single thread merges them, and no
/// barrier orders the merges.
template <IsThreadGroup ThreadGroup>
class PairStates {
 public:
  using State = typename ElementPair<ThreadGroup>::State;
  static constexpr int kFloats = sizeof(State) / sizeof(float);  ///< of one state

  /// @param memory of this pair @param stride floats from one entry to the next
  __device__ __forceinline__ PairStates(Shared<float> memory, int stride) : memory_(memory), stride_(stride) {}
  /// Starts to copy subtree i of a forest in global memory to a place; or copies it from shared memory at once.
  __device__ __forceinline__ void copy(int place, const ElementPair<ThreadGroup>& pair, const float* forest, int i) const {
    TREE_ATTN_UNROLL
    for (int plane = 0; plane < kFloats; ++plane)
      copy_async4(memory_ + (place * stride_ + plane), forest + pair.offset(i, plane));
  }
  /// All elements are read before the first is stored: no compiler can know that the two places are apart, and a remote read
  /// takes longer than all the rest.
  __device__ __forceinline__ void copy_shared(int place, const ElementPair<ThreadGroup>& pair, Shared<float> forest,
                                              int i) const {
    State state;
    state.shift = forest[pair.offset(i, 0)];
    state.sum = forest[pair.offset(i, 1)];
    TREE_ATTN_UNROLL
    for (int c = 0; c < ElementPair<ThreadGroup>::kElements; ++c) state.n[c] = forest[pair.offset(i, 2 + c)];
    store(place, state);
  }
  __device__ __forceinline__ void load(int place, State& state) const {
    const Bytes16 bytes = load16(memory_ + place * stride_);
    std::memcpy(&state, &bytes, sizeof state);
  }
  __device__ __forceinline__ void store(int place, const State& state) const {
    Bytes16 bytes;
    std::memcpy(&bytes, &state, sizeof bytes);
    store16(memory_ + place * stride_, bytes);
  }

 private:
  Shared<float> memory_;
  int stride_;
};

/// The subtrees that are left of a join, from left to right, one pair of them.
template <IsThreadGroup ThreadGroup>
class JoinedRoots {
 public:
  __device__ __forceinline__ JoinedRoots(const PairStates<ThreadGroup>& states, const JoinSteps& steps, JoinSize size)
      : states_(states), steps_(steps), size_(size) {}
  __device__ __forceinline__ int size() const { return size_.n_roots(); }
  /// The i-th.
  __device__ __forceinline__ void load(int i, typename ElementPair<ThreadGroup>::State& state) const {
    states_.load(steps_.root(i, size_), state);
  }
  /// Merges the roots [from, to) into one state, right to left, as the perfect tree does where positions are missing. The
  /// identity if there are none.
  __device__ __forceinline__ void fold(int from, int to, typename ElementPair<ThreadGroup>::State& state) const {
    set_empty(state);
    TREE_ATTN_LOOP
    for (int i = to - 1; i >= from; --i) {
      typename ElementPair<ThreadGroup>::State left;
      load(i, left);
      merge(left, state);
      state = left;
    }
  }

 private:
  const PairStates<ThreadGroup>& states_;
  const JoinSteps& steps_;
  JoinSize size_;
};

/// Joins the forests of neighbouring parts of a range, left to right. All threads of the block call it and none of them uses
/// the scratch memory any more; after it a barrier is needed before any of them does.
///
/// Which subtrees merge, and in what order, follows from the ranges alone (JoinSteps). So the threads list the subtrees side
/// by side; they start to copy the states of all of them; and while the copies are under way the merges are worked
/// out side by side. Then every thread merges its pair alone. Parts are joined in rounds of as many as fit; the
/// result of a round is the first part of the next.
/// @param n_rows queries of the thread group
/// @param range of all parts
/// @param positions (i) -> KeyRange of part i
/// @param copy (pair, i, j, states, place) starts to copy subtree j of part i to a place of the pair's states
/// @param use (pair, roots) what to do with the result; called once per pair
template <IsThreadGroup ThreadGroup, class Positions, class Copy, class Use>
__device__ __forceinline__ void join_parts(Scratch scratch, int n_rows, KeyRange range, int n_parts,
                                           const Positions& positions, const Copy& copy, const Use& use) {
  using State = typename ElementPair<ThreadGroup>::State;
  constexpr int kOfWarp = ElementPair<ThreadGroup>::kOfWarp, kState = PairStates<ThreadGroup>::kFloats;
  const UsedPairs<ThreadGroup> pairs(n_rows);
  const int thread = opaque(static_cast<int>(threadIdx.x)), n_threads = static_cast<int>(blockDim.x);
  const JoinSteps steps(scratch.memory);
  const Shared<float> states = scratch.memory + kJoinFloats;

  // Pairs at once, kOfWarp times a power of two: all, if there is room for a good number of subtrees of each. Shifts take
  // the place of divisions by a number that the compiler does not know.
  const int n_floats = scratch.n_floats - kJoinFloats, wanted = n_parts < 24 ? 2 * n_parts + 16 : 64;
  int n_doubled = 0, fit = n_floats / (kOfWarp * kState);
  TREE_ATTN_LOOP
  while (kOfWarp << n_doubled < pairs.size() && fit / 2 >= wanted) ++n_doubled, fit /= 2;
  const int at_once = kOfWarp << n_doubled, room = fit < kListedEntries ? fit : kListedEntries;

  const int most = n_threads <= kListedParts ? n_threads - 1 : kListedParts;  // parts at once

  TREE_ATTN_LOOP
  for (int first_pair = 0; first_pair < pairs.size(); first_pair += at_once) {
    KeyRange done{range.begin, range.begin};
    TREE_ATTN_LOOP
    for (int first = 0; first < n_parts;) {
      // List what is done, and the parts of this round: thread i part first + i - 1. Counts are written again only here,
      // where no thread reads those of the round before this one any more.
      const int n_listed = n_parts - first < most ? n_parts - first + 1 : most + 1;
      const KeyRange own = thread == 0 ? done : thread < n_listed ? positions(first + thread - 1) : KeyRange{};
      steps.count(own, thread, n_listed);
      __syncthreads();
      JoinSize size{};
      const int own_entry = steps.place(thread, n_listed, size.n_entries), n_done = steps.n_first();
      const int n_taken = steps.take(n_listed, room, size.n_entries) - 1;
      const bool is_last = first + n_taken == n_parts;
      const KeyRange joined{range.begin, is_last ? range.end : positions(first + n_taken - 1).end};
      if (thread <= n_taken) steps.list(own, first + thread - 1, own_entry, joined);
      __syncthreads();

      // Copy, several threads per pair if there are, a few entries each at a time; meanwhile work out the merges.
      const int n_copiers = n_threads > at_once ? n_threads / kOfWarp >> n_doubled : 1;
      TREE_ATTN_LOOP
      for (int i = thread; i < at_once * n_copiers; i += n_threads) {
        constexpr int kListed = 4;
        const int copier = i / kOfWarp >> n_doubled, of_copier = i - copier * at_once;
        const ElementPair<ThreadGroup> pair = pairs[first_pair + of_copier];
        if (!pairs.contain(pair)) continue;
        TREE_ATTN_LOOP
        for (int place = n_done + copier; place < size.n_entries; place += kListed * n_copiers) {
          JoinEntry from[kListed];
          TREE_ATTN_UNROLL
          for (int j = 0; j < kListed; ++j) {
            if (place + j * n_copiers < size.n_entries) from[j] = steps.entry(place + j * n_copiers);
          }
          TREE_ATTN_UNROLL
          for (int j = 0; j < kListed; ++j) {
            if (place + j * n_copiers >= size.n_entries) continue;
            copy(pair, from[j].part(), from[j].subtree(),
                 PairStates<ThreadGroup>(states + of_copier * kState, at_once * kState), place + j * n_copiers);
          }
        }
      }
      copy_async_commit();
      steps.order(thread, n_threads, size.n_entries);
      copy_async_wait<0>();
      __syncthreads();
      size.n_merges = steps.n_merges();

      // Merge. Steps of one level do not depend on each other, so several are under way at once.
      TREE_ATTN_LOOP
      for (int i = thread; i < at_once; i += n_threads) {
        constexpr int kMerged = 4;
        const ElementPair<ThreadGroup> pair = pairs[first_pair + i];
        if (!pairs.contain(pair)) continue;
        const PairStates<ThreadGroup> own_states(states + i * kState, at_once * kState);
        TREE_ATTN_LOOP
        for (int step = 0; step < size.n_merges;) {
          // A batch that is not full does its last step again, without a branch: the same state to the same place.
          const int n_level = steps.step(step).n_level(), n = n_level < kMerged ? n_level : kMerged;
          State left[kMerged], right[kMerged];
          int place[kMerged];
          TREE_ATTN_UNROLL
          for (int j = 0; j < kMerged; ++j) {
            const JoinStep now = steps.step(step + (j < n ? j : n - 1));
            place[j] = now.left();
            own_states.load(now.left(), left[j]);
            own_states.load(now.right(), right[j]);
          }
          TREE_ATTN_UNROLL
          for (int j = 0; j < kMerged; ++j) merge(left[j], right[j]);
          TREE_ATTN_UNROLL
          for (int j = 0; j < kMerged; ++j) own_states.store(place[j], left[j]);
          step += n;
        }
        if (is_last) {
          use(pair, JoinedRoots<ThreadGroup>(own_states, steps, size));
          continue;
        }
        // Move what is left to the front.
        TREE_ATTN_LOOP
        for (int root = 1; root < size.n_roots(); ++root) {
          State state;
          own_states.load(steps.root(root, size), state);
          own_states.store(root, state);
        }
      }
      done = joined;
      first += n_taken;
    }
  }
}

/// join_parts() for the n parts of a range that split_range() has cut, their forests in global memory one after the other.
/// @param n_rows queries of the thread group @param parts [n_parts][kSlots][n_part]
template <IsThreadGroup ThreadGroup, class Use>
__device__ __forceinline__ void join_splits(Scratch scratch, int n_rows, const float* parts, std::int64_t n_part,
                                            KeyRange range, int n_parts, const Use& use) {
  join_parts<ThreadGroup>(
      scratch, n_rows, range, n_parts, [range, n_parts](int i) { return split_range(range, i, n_parts); },
      [parts, n_part](const auto& pair, int i, int j, const auto& states, int place) {
        states.copy(place, pair, parts + (i * ThreadGroup::kSlots + pair.slot) * n_part, j);
      },
      use);
}

/// Leaves a joined forest in memory, for another block to join.
/// @param to forest of slot 0 @param n_forest floats from there to that of the next slot
template <IsThreadGroup ThreadGroup, class Where = InGlobal>
__device__ __forceinline__ void store_forest(const ElementPair<ThreadGroup>& pair, const JoinedRoots<ThreadGroup>& roots,
                                             typename Where::Memory to, std::int64_t n_forest) {
  TREE_ATTN_LOOP
  for (int i = 0; i < roots.size(); ++i) {
    typename ElementPair<ThreadGroup>::State state;
    roots.load(i, state);
    pair.template store<Where>(to + pair.slot * n_forest, i, state);
  }
}

/// Writes one pair of the result: z = n / D and lse, or if there is more to come one state for every subtree that covers
/// the shard. By store_fresh(): what reads the result comes later, and the emulator holds it to that order.
/// @param first_row of the thread group's rows in the group of the kv head
/// @param held range of the tree that the roots cover; the rest of the shard is the empty set
/// @paper{alg_3, Alg. 3}
template <IsThreadGroup ThreadGroup, class Params>
__device__ __forceinline__ void write_output(const Params& params, const DeviceOutput& output, std::int64_t kv_head,
                                             std::int64_t first_row, const ElementPair<ThreadGroup>& pair,
                                             const JoinedRoots<ThreadGroup>& roots, KeyRange held) {
  const std::int64_t row = kv_head * params.group + first_row + pair.row();
  typename ElementPair<ThreadGroup>::State state;

  // The finished row.
  if (output.out != nullptr) {
    roots.fold(0, roots.size(), state);
    const float e_and_sum[] = {state.shift, state.sum};
    if (pair.component(0) == 0) store_fresh(output.lse + row, finish_lse(e_and_sum));
    TREE_ATTN_UNROLL
    for (int c = 0; c < ElementPair<ThreadGroup>::kElements; ++c) {
      const int j = pair.component(c);
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
    if (pair.component(0) == 0) store_fresh(to + kShift, state.shift), store_fresh(to + kSum, state.sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < ElementPair<ThreadGroup>::kElements; ++c) {
      const int j = pair.component(c);
      if (j < params.d_v) store_fresh(to + kValues + j, state.n[c]);
    }
  }
}

/// Says that this block has written its part. All threads of the block call it.
///
/// The barrier orders the block's writes before thread 0, whose count releases them; the last count acquires those of all
/// blocks, and the barrier after it hands them to the whole block. The counter wraps to zero, ready for the next launch, so
/// that a CUDA graph may replay it.
/// @param counter blocks that have arrived
/// @param n blocks that will
/// @param[out] is_last one flag in shared memory
/// @returns whether this block is the last one
/// @paper{alg_3, Alg. 3}
__device__ __forceinline__ bool arrives_last(unsigned* counter, unsigned n, Shared<int> is_last) {
  __syncthreads();
  if (threadIdx.x == 0) {
    *is_last = atomic_inc_acq_rel(counter, n - 1) == n - 1 ? 1 : 0;
  }
  __syncthreads();
  return *is_last != 0;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
