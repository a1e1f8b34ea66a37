// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of every kernel: forests of neighbouring ranges become one, and that becomes the result (Alg. 3).
#pragma once

#include "gpu/parts/join_steps.cuh"
#include "gpu/parts/sub_warp.cuh"

#include <bit>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The forest of one slot of a worker.
template <IsWorker Worker>
using WorkerForest = LaneForest<Worker::kElements, Worker::kLanes>;

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

/// What one thread merges by itself: two neighbouring elements of a lane in one slot of a worker, together with the shift
/// and the sum of their row. That is 16 bytes, and so few elements that even one row keeps many threads busy.
template <IsWorker Worker>
struct Column {
  static constexpr int kElements = 2;
  static constexpr int kOfLane = Worker::kElements / kElements;
  static constexpr int kColumns = Worker::kSlots * Worker::kLanes * kOfLane;  ///< of a worker
  /// A part of them that a warp can take: kColumns halved.
  static constexpr int kOfWarp = [] {
    int n = kColumns;
    while (n > kWarp) n /= 2;
    return n;
  }();
  static_assert(Worker::kElements % kElements == 0);
  using State = LaneState<kElements>;
  static_assert(sizeof(State) == sizeof(Bytes16));

  int slot, place, first;  ///< first: of the elements of the lane at the place

  /// Which of the worker's queries it is about, and which element of the row element c is.
  __device__ __forceinline__ int row() const { return Worker::row(Worker::lane_at(place), slot); }
  __device__ __forceinline__ int component(int c) const { return Worker::component(Worker::lane_at(place), first + c); }

  /// Where number `plane` of its part of subtree i of a forest lies, as a LaneForest has it: shift, sum, elements.
  __device__ __forceinline__ int offset(int i, int plane) const {
    return i * WorkerForest<Worker>::kEntry + (plane < 2 ? plane : plane + first) * Worker::kLanes + place;
  }
  /// Writes its part of subtree i of a forest.
  template <class Where = InGlobal>
  __device__ __forceinline__ void store(typename Where::Memory forest, int i, const State& state) const {
    if (first == 0) Where::store(forest + offset(i, 0), state.shift), Where::store(forest + offset(i, 1), state.sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c) Where::store(forest + offset(i, 2 + c), state.n[c]);
  }
};

/// The columns of the first n_rows queries of a worker, and few others: slots and places that no query has are left out. How
/// many they are is kOfWarp times a power of two.
template <IsWorker Worker>
class UsedColumns {
 public:
  __device__ __forceinline__ explicit UsedColumns(int n_rows) : n_rows_(n_rows) {
    // The places of half of the queries are the first half of all places.
    while (log_places_ > 0 && Worker::row(Worker::lane_at(1 << (log_places_ - 1)), 0) >= n_rows) --log_places_;
  }
  __device__ __forceinline__ int size() const {
    return ((n_rows_ < Worker::kSlots ? n_rows_ : Worker::kSlots) * Column<Worker>::kOfLane) << log_places_;
  }
  /// Column i of them. Neighbouring threads have neighbouring places.
  __device__ __forceinline__ Column<Worker> operator[](int i) const {
    const int of_lane = i >> log_places_;
    return {of_lane / Column<Worker>::kOfLane, i - (of_lane << log_places_),
            of_lane % Column<Worker>::kOfLane * Column<Worker>::kElements};
  }
  /// Whether a column is about a query.
  __device__ __forceinline__ bool contain(const Column<Worker>& column) const { return column.row() < n_rows_; }

 private:
  int n_rows_, log_places_ = std::bit_width(unsigned{Worker::kLanes}) - 1;
};

/// The states of the entries of one column, in shared memory. Once they are there a single thread merges them, and no
/// barrier orders the merges.
template <IsWorker Worker>
class ColumnStates {
 public:
  using State = typename Column<Worker>::State;
  static constexpr int kFloats = sizeof(State) / sizeof(float);  ///< of one state

  /// @param memory of this column @param stride floats from one entry to the next
  __device__ __forceinline__ ColumnStates(Shared<float> memory, int stride) : memory_(memory), stride_(stride) {}
  /// Starts to copy subtree i of a forest in global memory to a place; or copies it from shared memory at once.
  __device__ __forceinline__ void copy(int place, const Column<Worker>& column, const float* forest, int i) const {
    TREE_ATTN_UNROLL
    for (int plane = 0; plane < kFloats; ++plane)
      copy_async4(memory_ + (place * stride_ + plane), forest + column.offset(i, plane));
  }
  /// All elements are read before the first is stored: no compiler can know that the two places are apart, and a remote read
  /// takes longer than all the rest.
  __device__ __forceinline__ void copy_shared(int place, const Column<Worker>& column, Shared<float> forest, int i) const {
    State state;
    state.shift = forest[column.offset(i, 0)];
    state.sum = forest[column.offset(i, 1)];
    TREE_ATTN_UNROLL
    for (int c = 0; c < Column<Worker>::kElements; ++c) state.n[c] = forest[column.offset(i, 2 + c)];
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

/// The subtrees that are left of a join, from left to right, one column of them.
template <IsWorker Worker>
class JoinedRoots {
 public:
  __device__ __forceinline__ JoinedRoots(const ColumnStates<Worker>& states, const JoinSteps& steps, JoinSize size)
      : states_(states), steps_(steps), size_(size) {}
  __device__ __forceinline__ int size() const { return size_.n_roots(); }
  /// The i-th.
  __device__ __forceinline__ void load(int i, typename Column<Worker>::State& state) const {
    states_.load(steps_.root(i, size_), state);
  }
  /// Merges the roots [from, to) into one state, right to left, as the perfect tree does where positions are missing. The
  /// identity if there are none.
  __device__ __forceinline__ void fold(int from, int to, typename Column<Worker>::State& state) const {
    set_empty(state);
    TREE_ATTN_LOOP
    for (int i = to - 1; i >= from; --i) {
      typename Column<Worker>::State left;
      load(i, left);
      merge(left, state);
      state = left;
    }
  }

 private:
  const ColumnStates<Worker>& states_;
  const JoinSteps& steps_;
  JoinSize size_;
};

/// Joins the forests of neighbouring parts of a range, left to right. All threads of the block call it and none of them uses
/// the scratch memory any more; after it a barrier is needed before any of them does.
///
/// Which subtrees merge, and in what order, follows from the ranges alone (JoinSteps). So the threads list the subtrees side
/// by side; they start to copy the states of all of them; and while the copies are under way the merges are worked
/// out side by side. Then every thread merges its column alone. Of as many parts at a time as are listed and fit: what is
/// joined of them is the first part of the next round.
/// @param n_rows queries of the worker
/// @param range of all parts
/// @param positions (i) -> KeyRange of part i
/// @param copy (column, i, j, states, place) starts to copy subtree j of part i to a place of the column's states
/// @param use (column, roots) what to do with the result; called once per column
template <IsWorker Worker, class Positions, class Copy, class Use>
__device__ __forceinline__ void join_parts(Scratch scratch, int n_rows, KeyRange range, int n_parts,
                                           const Positions& positions, const Copy& copy, const Use& use) {
  using State = typename Column<Worker>::State;
  constexpr int kOfWarp = Column<Worker>::kOfWarp, kState = ColumnStates<Worker>::kFloats;
  const UsedColumns<Worker> columns(n_rows);
  const int thread = opaque(static_cast<int>(threadIdx.x)), n_threads = static_cast<int>(blockDim.x);
  const JoinSteps steps(scratch.memory);
  const Shared<float> states = scratch.memory + kJoinFloats;

  // Columns at once, kOfWarp times a power of two: all, if there is room for a good number of subtrees of each. Shifts take
  // the place of divisions by a number that the compiler does not know.
  const int n_floats = scratch.n_floats - kJoinFloats, wanted = n_parts < 24 ? 2 * n_parts + 16 : 64;
  int n_doubled = 0, fit = n_floats / (kOfWarp * kState);
  TREE_ATTN_LOOP
  while (kOfWarp << n_doubled < columns.size() && fit / 2 >= wanted) ++n_doubled, fit /= 2;
  const int at_once = kOfWarp << n_doubled, room = fit < kListedEntries ? fit : kListedEntries;

  const int most = n_threads <= kListedParts ? n_threads - 1 : kListedParts;  // parts at once

  TREE_ATTN_LOOP
  for (int first_column = 0; first_column < columns.size(); first_column += at_once) {
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

      // Copy, several threads per column if there are, a few entries each at a time; meanwhile work out the merges.
      const int n_copiers = n_threads > at_once ? n_threads / kOfWarp >> n_doubled : 1;
      TREE_ATTN_LOOP
      for (int i = thread; i < at_once * n_copiers; i += n_threads) {
        constexpr int kListed = 4;
        const int copier = i / kOfWarp >> n_doubled, of_copier = i - copier * at_once;
        const Column<Worker> column = columns[first_column + of_copier];
        if (!columns.contain(column)) continue;
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
            copy(column, from[j].part(), from[j].subtree(),
                 ColumnStates<Worker>(states + of_copier * kState, at_once * kState), place + j * n_copiers);
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
        const Column<Worker> column = columns[first_column + i];
        if (!columns.contain(column)) continue;
        const ColumnStates<Worker> own_states(states + i * kState, at_once * kState);
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
          use(column, JoinedRoots<Worker>(own_states, steps, size));
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
/// @param n_rows queries of the worker @param parts [n_parts][kSlots][n_part]
template <IsWorker Worker, class Use>
__device__ __forceinline__ void join_splits(Scratch scratch, int n_rows, const float* parts, std::int64_t n_part,
                                            KeyRange range, int n_parts, const Use& use) {
  join_parts<Worker>(
      scratch, n_rows, range, n_parts, [range, n_parts](int i) { return split_range(range, i, n_parts); },
      [parts, n_part](const auto& column, int i, int j, const auto& states, int place) {
        states.copy(place, column, parts + (i * Worker::kSlots + column.slot) * n_part, j);
      },
      use);
}

/// Leaves a joined forest in memory, for another block to join.
/// @param to forest of slot 0 @param n_forest floats from there to that of the next slot
template <IsWorker Worker, class Where = InGlobal>
__device__ __forceinline__ void store_forest(const Column<Worker>& column, const JoinedRoots<Worker>& roots,
                                             typename Where::Memory to, std::int64_t n_forest) {
  TREE_ATTN_LOOP
  for (int i = 0; i < roots.size(); ++i) {
    typename Column<Worker>::State state;
    roots.load(i, state);
    column.template store<Where>(to + column.slot * n_forest, i, state);
  }
}

/// Writes one column of the result: z = n / D and lse, or if there is more to come one state for every subtree that covers
/// the shard. By store_fresh(): what reads the result comes later, and the emulator holds it to that order.
/// @param first_row of the worker's rows in the group of the kv head
/// @param held range of the tree that the roots cover; the rest of the shard is the empty set
/// @paper{alg_3, Alg. 3}
template <IsWorker Worker, class Params>
__device__ __forceinline__ void write_output(const Params& params, const DeviceOutput& output, std::int64_t kv_head,
                                             std::int64_t first_row, const Column<Worker>& column,
                                             const JoinedRoots<Worker>& roots, KeyRange held) {
  const std::int64_t row = kv_head * params.group + first_row + column.row();
  typename Column<Worker>::State state;

  // The finished row.
  if (output.out != nullptr) {
    roots.fold(0, roots.size(), state);
    const float e_and_sum[] = {state.shift, state.sum};
    if (column.component(0) == 0) store_fresh(output.lse + row, finish_lse(e_and_sum));
    TREE_ATTN_UNROLL
    for (int c = 0; c < Column<Worker>::kElements; ++c) {
      const int j = column.component(c);
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
    if (column.component(0) == 0) store_fresh(to + kShift, state.shift), store_fresh(to + kSum, state.sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < Column<Worker>::kElements; ++c) {
      const int j = column.component(c);
      if (j < params.d_v) store_fresh(to + kValues + j, state.n[c]);
    }
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
