// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of every kernel: forests of neighbouring ranges become one, and that becomes the result (Alg. 3).
#pragma once

#include "gpu/parts/sub_warp.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The forest of one slot of a worker.
template <IsWorker Worker, class Where = InGlobal>
using WorkerForest = LaneForest<Worker::kElements, Worker::kLanes, Where>;

/// A part of a range, and the forests that somebody has left of it in global memory, one a slot.
struct Part {
  KeyRange range;
  float* forests;
};

/// Where a block joins: shared memory that nobody needs any more.
struct Scratch {
  Shared<float> memory;
  int n_floats;
};

/// A subtree that is to be joined: which, and where its states begin.
struct Entry {
  std::int64_t index;
  float* states;  ///< of its slot 0
  int level;
};

/// Parts whose subtrees are listed at once, and how many of those; floats of scratch memory in front of the joined forest,
/// which hold the counts and the list.
inline constexpr int kListedParts = 64, kListedEntries = 256, kCountFloats = 96;
inline constexpr int kListFloats = kCountFloats + kListedEntries * static_cast<int>(sizeof(Entry) / sizeof(float));
static_assert(kCountFloats > kListedParts && kCountFloats % 2 == 0);

/// Joins the forests of neighbouring parts, left to right. All threads of the block call it, none of them uses the scratch
/// memory any more, and behind it a barrier is needed before anybody does.
///
/// One read after the other from global memory, and one thread that finds out which, would take longer than all the rest of
/// a short decode. So threads list the subtrees side by side, a part each; all workers fetch their states side by side, into
/// shared memory and as many as fit; and one worker a slot merges them there, in place: what is held is never more than what
/// has been taken.
/// @param n_part floats of one forest of a part
/// @param begin first position of the first part
/// @param part (i) -> Part
/// @param self this thread among all workers that the block's threads make
/// @param use (slot, joined forest) what to do with the result; called by one worker for each slot
template <IsWorker Worker, class PartOf, class Use>
__device__ __forceinline__ void join_parts(Scratch scratch, std::int64_t n_part, std::int64_t begin, int n_parts,
                                           const PartOf& part, WorkerThread self, const Use& use) {
  using Forest = WorkerForest<Worker, InShared>;
  // The list, and room for states: of all slots at once, if there is enough for a good number of subtrees of each.
  constexpr int kRoom = 64;
  const Shared<int> counts = shared_as<int>(scratch.memory);
  const Shared<Entry> entries = shared_as<Entry>(scratch.memory + kCountFloats);
  const Shared<float> states = scratch.memory + kListFloats;
  const int fit = (scratch.n_floats - kListFloats) / Forest::kEntry;
  int at_once = Worker::kSlots;
  while (at_once > 1 && fit / at_once < kRoom) at_once /= 2;
  const int room = fit / at_once, thread = static_cast<int>(threadIdx.x);

  for (int first_slot = 0; first_slot < Worker::kSlots; first_slot += at_once) {
    const int own_slot = self.worker < at_once ? self.worker : -1;
    Forest forest(states + (own_slot < 0 ? 0 : own_slot) * room * Forest::kEntry, self.lane, begin);
    int depth = 0;
    for (int first = 0; first < n_parts;) {
      // Count, a part a thread.
      const int n_here = n_parts - first < kListedParts ? n_parts - first : kListedParts;
      Part own{};
      if (thread < n_here) {
        own = part(first + thread);
        counts[thread] = n_subtrees(own.range.begin, own.range.end);
      }
      __syncthreads();
      // As many parts as fit, at least one; and the index of one's own.
      int n_taken = 0, n = 0, index = 0;
      for (; n_taken < n_here; ++n_taken) {
        const int count = counts[n_taken];
        if (n_taken > 0 && (depth + n + count > room || n + count > kListedEntries)) break;
        if (n_taken == thread) index = n;
        n += count;
      }
      // List.
      if (thread < n_taken) {
        for (int i = 0; !own.range.empty(); ++i) {
          const Subtree subtree = first_subtree(own.range.begin, own.range.end);
          entries[index + i] = Entry{subtree.index, own.forests + i * Forest::kEntry, subtree.level};
          own.range.begin = subtree.end();
        }
      }
      __syncthreads();
      // Fetch.
      for (int i = self.worker; i < n; i += self.n_workers) {
        const float* const from = Entry(entries[i]).states;
        for (int slot = 0; slot < at_once; ++slot) {
          LaneState<Worker::kElements> state;
          WorkerForest<Worker>(const_cast<float*>(from) + (first_slot + slot) * n_part, self.lane, 0).load(0, state);
          Forest(states + slot * room * Forest::kEntry, self.lane, begin).store(depth + i, state);
        }
      }
      __syncthreads();
      // Merge.
      if (own_slot >= 0) {
        for (int i = 0; i < n; ++i) {
          const Entry entry = entries[i];
          LaneState<Worker::kElements> state;
          forest.load(depth + i, state);
          forest.push({entry.level, entry.index}, state);
        }
        if (self.lane == 0 && self.worker == 0) counts[kListedParts] = forest.depth();
      }
      __syncthreads();
      depth = counts[kListedParts];
      first += n_taken;
    }
    if (own_slot >= 0) use(first_slot + own_slot, forest);
  }
}

/// The same for the n parts of a range that split_range() has cut, their forests one behind the other.
template <IsWorker Worker, class Use>
__device__ __forceinline__ void join_splits(Scratch scratch, float* parts, std::int64_t n_part, KeyRange whole, int n_parts,
                                            WorkerThread self, const Use& use) {
  const auto part = [parts, n_part, whole, n_parts](int i) {
    return Part{split_range(whole, i, n_parts), parts + i * Worker::kSlots * n_part};
  };
  join_parts<Worker>(scratch, n_part, whole.begin, n_parts, part, self, use);
}

/// Leaves a joined forest in global memory, for another block to join.
template <IsWorker Worker>
__device__ __forceinline__ void store_forest(const WorkerForest<Worker, InShared>& forest, float* to, int lane) {
  for (int i = 0; i < forest.depth(); ++i) {
    LaneState<Worker::kElements> state;
    forest.load(i, state);
    WorkerForest<Worker>(to, lane, 0).store(i, state);
  }
}

/// Writes what one slot of a worker is about: z = n / D and lse, or if there is more to come one state for every subtree
/// that covers the shard.
/// @param first_row of the worker's rows in the group of the kv head; those behind the group are padding
/// @param held positions whose subtrees are in the forest, params.padded(kv_head); the rest of the shard is the empty set
/// @paper{alg_3, Alg. 3}
template <IsWorker Worker, class Forest>
__device__ __forceinline__ void write_output(const DecodeParams& params, const DeviceOutput& output, std::int64_t kv_head,
                                             std::int64_t first_row, int slot, const Forest& forest, KeyRange held,
                                             int lane) {
  const std::int64_t r = first_row + Worker::row(lane, slot), row = kv_head * params.group + r;
  if (r >= params.group) return;
  LaneState<Worker::kElements> state;

  // The finished row.
  if (output.out != nullptr) {
    forest.fold(0, forest.depth(), state);
    const float e_and_sum[] = {state.shift, state.sum};
    if (Worker::component(lane, 0) == 0) output.lse[row] = finish_lse(e_and_sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < Worker::kElements; ++c) {
      const int j = Worker::component(lane, c);
      if (j < params.d_v) output.out[row * params.d_v + j] = finish_value(e_and_sum, state.n[c]);
    }
    return;
  }

  // Or one state a subtree, in the layout of Forest<float>.
  float* to = output.states + row * state_size(params.d_v);
  int from = 0;
  for (KeyRange shard{params.begin, params.end}; !shard.empty(); to += params.n_rows() * state_size(params.d_v)) {
    shard.begin = first_subtree(shard.begin, shard.end).end();
    int n = 0;
    for (; !held.empty() && held.begin < shard.begin; ++n) held.begin = first_subtree(held.begin, held.end).end();
    forest.fold(from, from + n, state);
    from += n;
    if (Worker::component(lane, 0) == 0) to[kShift] = state.shift, to[kSum] = state.sum;
    TREE_ATTN_UNROLL
    for (int c = 0; c < Worker::kElements; ++c) {
      const int j = Worker::component(lane, c);
      if (j < params.d_v) to[kValues + j] = state.n[c];
    }
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
