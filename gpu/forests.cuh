// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of every kernel: forests of neighbouring runs become one, and that becomes the result (Alg. 3).
#pragma once

#include "gpu/team.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The forest of one slot of a worker.
template <class Worker, class Where = InGlobal>
using ForestOf = Counter<Worker::kNumbers, Worker::kLanes, Where>;

/// A part of a run, and the forests that somebody has left of it in global memory, one a slot.
struct Part {
  Run run;
  float* forests;
};

/// Where a block joins: shared memory that nobody needs any more.
struct Scratch {
  Shared<float> memory;
  int n_floats;
};

/// Goes through the subtrees of neighbouring parts, left to right.
template <class PartOf>
class PartsCursor {
 public:
  __device__ __forceinline__ PartsCursor(const PartOf& part, int n_parts) : part_(part), n_parts_(n_parts) { find(); }
  __device__ __forceinline__ bool is_at_end() const { return next_ > n_parts_; }
  /// The subtree at hand, and where its part has its forests; entry of it.
  __device__ __forceinline__ Subtree subtree() const { return first_subtree(left_.begin, left_.end); }
  __device__ __forceinline__ float* forests() const { return forests_; }
  __device__ __forceinline__ int entry() const { return entry_; }
  __device__ __forceinline__ void go_on() {
    left_.begin = subtree().end();
    ++entry_;
    if (left_.empty()) find();
  }

 private:
  /// The next part that holds something.
  __device__ __forceinline__ void find() {
    for (left_ = {}; left_.empty() && next_ <= n_parts_; ++next_) {
      if (next_ == n_parts_) continue;
      const Part part = part_(next_);
      left_ = part.run, forests_ = part.forests, entry_ = 0;
    }
  }

  const PartOf& part_;
  int n_parts_, next_ = 0, entry_ = 0;
  Run left_;
  float* forests_ = nullptr;
};

/// Joins the forests of neighbouring parts, left to right. All threads of the block call it, none of them uses the scratch
/// memory any more, and behind it a barrier is needed before anybody does.
///
/// One read after the other from global memory would take longer than all the rest of a short decode. So all workers fetch
/// states side by side, into shared memory and as many as fit, and one worker a slot merges them there, in place: what is held
/// is never more than what has been taken.
/// @param n_part floats of one forest of a part
/// @param begin first position of the first part
/// @param part (i) -> Part
/// @param worker, n_workers place of the thread among all workers that the block's threads make
/// @param use (slot, joined forest) what to do with the result; called by one worker for each slot
template <class Worker, class PartOf, class Use>
__device__ __forceinline__ void join_parts(Scratch scratch, std::int64_t n_part, std::int64_t begin, int n_parts, const PartOf& part,
                                           int lane, int worker, int n_workers, const Use& use) {
  using Forest = ForestOf<Worker, InShared>;
  // Slots at once: all, if there is room for a good number of subtrees of each.
  constexpr int kRoom = 64;
  const int n_entries = scratch.n_floats / Forest::kEntry;
  int at_once = Worker::kSlots;
  while (at_once > 1 && n_entries / at_once < kRoom) at_once /= 2;
  const int room = n_entries / at_once;

  for (int first_slot = 0; first_slot < Worker::kSlots; first_slot += at_once) {
    const int own_slot = worker < at_once ? worker : -1;
    Forest forest(scratch.memory + (own_slot < 0 ? 0 : own_slot) * room * Forest::kEntry, lane, begin);
    PartsCursor<PartOf> at(part, n_parts);
    std::int64_t taken_end = begin;
    while (!at.is_at_end()) {
      // Fetch.
      const int depth = n_subtrees(begin, taken_end);
      PartsCursor<PartOf> ahead = at;
      int n = 0;
      for (; !ahead.is_at_end() && depth + n < room; ++n, ahead.go_on()) {
        if (n % n_workers != worker) continue;
        LaneState<Worker::kNumbers> state;
        for (int slot = 0; slot < at_once; ++slot) {
          ForestOf<Worker>(ahead.forests() + (first_slot + slot) * n_part, lane, 0).load(ahead.entry(), state);
          Forest(scratch.memory + slot * room * Forest::kEntry, lane, begin).store(depth + n, state);
        }
      }
      __syncthreads();
      // Merge.
      for (int i = 0; i < n; ++i, at.go_on()) {
        const Subtree subtree = at.subtree();
        taken_end = subtree.end();
        if (own_slot < 0) continue;
        LaneState<Worker::kNumbers> state;
        forest.load(depth + i, state);
        forest.push(subtree, state);
      }
      __syncthreads();
    }
    if (own_slot >= 0) use(first_slot + own_slot, forest);
    if (first_slot + at_once < Worker::kSlots) __syncthreads();
  }
}

/// The same for the n parts of a run that part_of() has cut, their forests one behind the other.
template <class Worker, class Use>
__device__ __forceinline__ void join(Scratch scratch, float* parts, std::int64_t n_part, Run whole, int n_parts, int lane, int worker,
                                     int n_workers, const Use& use) {
  const auto part = [parts, n_part, whole, n_parts](int i) {
    return Part{part_of(whole, i, n_parts), parts + i * Worker::kSlots * n_part};
  };
  join_parts<Worker>(scratch, n_part, whole.begin, n_parts, part, lane, worker, n_workers, use);
}

/// Leaves a joined forest in global memory, for another block to join.
template <class Worker>
__device__ __forceinline__ void keep(const ForestOf<Worker, InShared>& forest, float* to, int lane) {
  for (int i = 0; i < forest.depth(); ++i) {
    LaneState<Worker::kNumbers> state;
    forest.load(i, state);
    ForestOf<Worker>(to, lane, 0).store(i, state);
  }
}

/// Writes what one slot of a worker is about: z = n / D and lse, or if there is more to come one state for every subtree that
/// covers the shard.
/// @param first_row of the worker's rows in the group of the line; those behind the group are padding
/// @param held positions whose subtrees are in the forest, problem.padded(line); the rest of the shard is the empty set
/// @paper{alg_3, Alg. 3}
template <class Worker, class Forest>
__device__ __forceinline__ void deliver(const DeviceProblem& problem, const DeviceOutput& output, std::int64_t line,
                                        std::int64_t first_row, int slot, const Forest& forest, Run held, int lane) {
  const std::int64_t r = first_row + Worker::row(lane, slot), row = line * problem.group + r;
  if (r >= problem.group) return;
  LaneState<Worker::kNumbers> state;

  // The finished row.
  if (output.out != nullptr) {
    forest.fold(0, forest.depth(), state);
    const float e_and_sum[] = {state.shift, state.sum};
    if (Worker::component(lane, 0) == 0) output.lse[row] = finish_lse(e_and_sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < Worker::kNumbers; ++c) {
      const int j = Worker::component(lane, c);
      if (j < problem.d_v) output.out[row * problem.d_v + j] = finish_value(e_and_sum, state.n[c]);
    }
    return;
  }

  // Or one state a subtree, in the layout of Forest<float>.
  float* to = output.states + row * state_size(problem.d_v);
  int from = 0;
  for (Run shard{problem.begin, problem.end}; !shard.empty(); to += problem.n_rows() * state_size(problem.d_v)) {
    shard.begin = first_subtree(shard.begin, shard.end).end();
    int n = 0;
    for (; !held.empty() && held.begin < shard.begin; ++n) held.begin = first_subtree(held.begin, held.end).end();
    forest.fold(from, from + n, state);
    from += n;
    if (Worker::component(lane, 0) == 0) to[kShift] = state.shift, to[kSum] = state.sum;
    TREE_ATTN_UNROLL
    for (int c = 0; c < Worker::kNumbers; ++c) {
      const int j = Worker::component(lane, c);
      if (j < problem.d_v) to[kValues + j] = state.n[c];
    }
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
