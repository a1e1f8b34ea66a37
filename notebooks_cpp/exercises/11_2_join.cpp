// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 11.2: join ranks in rounds.
///
/// Expected: In round r a rank exchanges its state with the rank whose number differs in bit r, and both merge. After log2
/// p rounds each of p = 2^a ranks has the merged state of all, with equal bits, and has sent log2 p messages.
///
/// Run: ./run exercise 11.2
#include "notebooks_cpp/exercises/ranks.hpp"

#include <mpi.h>

#include <string>
#include <utility>
#include <vector>

using namespace tree_attn::exercise;

/// Messages that this rank has sent.
inline int n_swaps = 0;
/// Sends a state to another rank, and returns the state of that one.
inline State swap_with(int peer, State state, MPI_Comm group) {
  ++n_swaps;
  MPI_Sendrecv_replace(&state, 6, MPI_FLOAT, peer, 0, peer, 0, group, MPI_STATUS_IGNORE);
  return state;
}

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/11_2_join.hpp"
#else

// Change from here ...
/// The merged state of all p ranks of `group`, p a power of two: the tree of adjacent pairs. The lower rank is on the left.
/// Words: MPI_Comm_rank, MPI_Comm_size, swap_with(peer, state, group), which sends a state and returns the state of the
/// peer.
inline State join(State own, MPI_Comm group) {
  // One rank alone.
  (void)group;
  return own;
}
// ... to here.

#endif

int main() {
  MPI_Init(nullptr, nullptr);
  int world_rank = 0, world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), MPI_Comm_size(MPI_COMM_WORLD, &world_size);

  for (int size = 1, n_rounds = 0; size <= world_size; size *= 2, ++n_rounds) {
    MPI_Comm group = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank < size ? 0 : 1, world_rank, &group);
    if (world_rank < size) {
      std::vector<State> tree;
      for (int rank = 0; rank < size; ++rank) tree.push_back(leaf_state(rank));
      for (std::size_t width = 1; width < tree.size(); width *= 2)
        for (std::size_t i = 0; i + width < tree.size(); i += 2 * width) merge_into(tree[i], tree[i + width]);
      n_swaps = 0;
      const State got = join(leaf_state(world_rank), group);
      const std::string where = " on rank " + std::to_string(world_rank) + " of " + std::to_string(size);
      for (int i = 0; i < 6; ++i) expect_bits(got.element[i], tree[0].element[i], "element " + std::to_string(i) + where);
      expect_equal(n_swaps, n_rounds, "messages" + where);
    }
    MPI_Comm_free(&group);
  }
  return result_of_ranks();
}
