// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 11.1: gather the states of all ranks.
///
/// Expected: Every rank gets the states of all ranks by one collective and merges them in the order of ranks. So all ranks
/// have the same bits, whatever MPI does.
///
/// Run: ./run exercise 11.1
#include "notebooks_cpp/exercises/ranks.hpp"

#include <mpi.h>

#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/11_1_gather.hpp"
#else

// Change from here ...
/// The merged state of all ranks of `group`, on every rank. Words: MPI_Comm_size, MPI_Allgather of 6 MPI_FLOAT,
/// merge_into(left, right).
inline State gather(const State& own, MPI_Comm group) {
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

  for (int size = 1; size <= world_size; ++size) {
    MPI_Comm group = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank < size ? 0 : 1, world_rank, &group);
    if (world_rank < size) {
      State want = leaf_state(0);
      for (int rank = 1; rank < size; ++rank) merge_into(want, leaf_state(rank));
      const State got = gather(leaf_state(world_rank), group);
      for (int i = 0; i < 6; ++i)
        expect_bits(
            got.element[i], want.element[i],
            "element " + std::to_string(i) + " on rank " + std::to_string(world_rank) + " of " + std::to_string(size));
    }
    MPI_Comm_free(&group);
  }
  return result_of_ranks();
}
