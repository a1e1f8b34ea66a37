// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Alg. 3 in two levels, with MPI alone: ranks of a node join their states, then nodes do (section 5.3).
///
/// The output has the bits of `two-level` for any nodes, ranges and order of leaves. Both end with the states of all
/// subtrees of the whole sequence, and the value of a subtree does not depend on the rank that merges it
/// (docs/II.2-tree.md).
#include "reference/decode/plain.hpp"

#include <mpi.h>

namespace tree_attn {
namespace {

/// The states of the keys in a range.
struct Part {
  KeyRange range;
  Forest<float> forest;
};

/// The parts of the ranks of a communicator, joined from left to right; the same on all of them.
/// @param mine begins where that of the rank before it ends
Part gather_and_join(MPI_Comm comm, const Part& mine) {
  // Gather the ranges. How many states a rank sends follows from its range, and so do their subtrees.
  int n_ranks = 0;
  MPI_Comm_size(comm, &n_ranks);
  std::vector<KeyRange> ranges(static_cast<std::size_t>(n_ranks));
  MPI_Allgather(&mine.range, 2, MPI_INT64_T, ranges.data(), 2, MPI_INT64_T, comm);
  std::vector<int> counts, offsets{0};
  for (const KeyRange& range : ranges) {
    counts.push_back(n_subtrees(range.begin, range.end) * static_cast<int>(mine.forest.block_size()));
    offsets.push_back(offsets.back() + counts.back());
  }

  // Gather the states.
  std::vector<float> states(static_cast<std::size_t>(offsets.back()));
  MPI_Allgatherv(mine.forest.states().data(), static_cast<int>(mine.forest.states().size()), MPI_FLOAT, states.data(),
                 counts.data(), offsets.data(), MPI_FLOAT, comm);

  // Merge those of subtrees that become siblings.
  Part joined{{ranges.front().begin, ranges.back().end}, Forest<float>(mine.forest.n_rows(), mine.forest.d_v())};
  for (std::size_t i = 0; i < ranges.size(); ++i)
    joined.forest.append(cover(ranges[i].begin, ranges[i].end), states.data() + offsets[i]);
  return joined;
}

}  // namespace

/// The attention over the keys of all ranks, on every rank. An error of MPI ends the job, as its default handler does.
/// @param world all ranks, in the order of their ranges; those of a node are neighbours
/// @param node the ranks of this node in the same order, as MPI_Comm_split_type() gives them
/// @param step, k, v, leaves, scale as of plain::decode()
/// @param[out] out, lse [b, n_h, l, d_v] and [b, n_h, l]
/// @paper{alg_3, Alg. 3}
void plain_two_level(MPI_Comm world, MPI_Comm node, const Step& step, const TensorView& k, const TensorView& v,
                     const OwnedLeaves& leaves, double scale, float* out, float* lse) {
  // Line 2: every rank decodes its own keys.
  Part part{closed(leaves.range(), step.longest()), plain::decode(step, k, v, leaves, scale)};

  // Lines 3 to 5, first in a node, then between the first ranks of all nodes.
  part = gather_and_join(node, part);
  int local_rank = 0;
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm leaders;
  MPI_Comm_split(world, local_rank == 0 ? 0 : MPI_UNDEFINED, 0, &leaders);
  if (local_rank == 0) part = gather_and_join(leaders, part), MPI_Comm_free(&leaders);

  // Line 6, z = n / D. The first rank of a node has all keys, and its output replaces that of the others.
  const std::int64_t n_rows = part.forest.n_rows(), d_v = v.shape[3];
  float* state = part.forest.fold().data();
  for (std::int64_t r = 0; r < n_rows; ++r, state += state_size(d_v)) {
    if (!step.sink.empty()) add_sink(state, step.sink_of(r), d_v);
    lse[r] = finish(state, out + r * d_v, d_v);
  }
  MPI_Bcast(out, static_cast<int>(n_rows * d_v), MPI_FLOAT, 0, node);
  MPI_Bcast(lse, static_cast<int>(n_rows), MPI_FLOAT, 0, node);
}

}  // namespace tree_attn
