// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 11.3: an order of your own.
///
/// Expected: 12 leaves lie on p ranks, in order but unevenly. The merged state of all has the same bits for every p and
/// every rank: the order of merges follows from the leaves alone.
///
/// Run: ./run exercise 11.3
#include "notebooks_cpp/exercises/ranks.hpp"

#include <mpi.h>

#include <cmath>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/11_3_order.hpp"
#else

// Change from here ...
/// The merged state of all leaves on every rank of `group`, in an order of your choice in which ranks do not occur. `own`
/// are the states of this rank's leaves; some ranks may have none. Words: MPI_Allgather of counts, MPI_Allgatherv of 6
/// MPI_FLOAT per state, merge_into(left, right), no_leaf().
inline State in_order(const std::vector<State>& own, MPI_Comm group) {
  // Equal on all ranks, but each p has bits of its own: ranks merge what they have first.
  State state = no_leaf();
  for (const State& each : own) merge_into(state, each);
  int n = 0;
  MPI_Comm_size(group, &n);
  std::vector<State> all(static_cast<std::size_t>(n));
  MPI_Allgather(&state, 6, MPI_FLOAT, all.data(), 6, MPI_FLOAT, group);
  for (int rank = 1; rank < n; ++rank) merge_into(all[0], all[static_cast<std::size_t>(rank)]);
  return all[0];
}
// ... to here.

#endif

int main() {
  MPI_Init(nullptr, nullptr);
  int world_rank = 0, world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), MPI_Comm_size(MPI_COMM_WORLD, &world_size);

  constexpr int kLeaves = 12;
  State first{};
  for (int size = 1; size <= world_size; ++size) {
    // Rank r of p has the leaves from 12 r^2 / p^2 on: unequal parts, of which the first is empty for p = 4.
    const auto begin_of = [&](int rank) { return kLeaves * rank * rank / (size * size); };
    MPI_Comm group = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank < size ? 0 : 1, world_rank, &group);
    State got{};
    if (world_rank < size) {
      std::vector<State> own;
      for (int i = begin_of(world_rank); i < begin_of(world_rank + 1); ++i) own.push_back(leaf_state(i));
      got = in_order(own, group);
    }
    MPI_Comm_free(&group);
    if (size == 1) {
      first = got;
      MPI_Bcast(&first, 6, MPI_FLOAT, 0, MPI_COMM_WORLD);
      double sum = 0;
      for (int i = 0; i < kLeaves; ++i) {
        const State leaf = leaf_state(i);
        sum += double(leaf.element[1]) * std::exp2(double(leaf.element[0]) - double(first.element[0]));
      }
      expect_near(double(first.element[1]), sum, 1e-5, "the weight sum of all leaves");
    } else if (world_rank < size) {
      for (int i = 0; i < 6; ++i)
        expect_bits(got.element[i], first.element[i],
                    "element " + std::to_string(i) + " on rank " + std::to_string(world_rank) + " of " +
                        std::to_string(size) + " has the bits of one rank");
    }
  }
  return result_of_ranks();
}
