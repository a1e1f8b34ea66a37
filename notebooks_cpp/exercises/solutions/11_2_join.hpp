// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 11.2: join ranks in rounds.
///
/// Hint: In round i the peer is rank ^ 2^i. The state of the lower rank is the left operand: swap before the merge where
/// it is the other's.
#pragma once

#include "notebooks_cpp/exercises/ranks.hpp"
#include "reference/state/state.hpp"

/// The merged state of all p ranks of `group`, p a power of two: the tree of adjacent pairs. The lower rank is on the left.
/// Words: MPI_Comm_rank, MPI_Comm_size, swap_with(peer, state, group), which sends a state and returns the state of the
/// peer.
inline State join(State own, MPI_Comm group) {
  int rank = 0, n = 0;
  MPI_Comm_rank(group, &rank), MPI_Comm_size(group, &n);
  for (int bit = 1; bit < n; bit *= 2) {
    State other = swap_with(rank ^ bit, own, group);
    if ((rank & bit) != 0) std::swap(own, other);
    merge_into(own, other);
  }
  return own;
}
