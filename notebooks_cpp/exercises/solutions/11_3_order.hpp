// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 11.3: an order of your own.
///
/// Hint: Ranks may not occur in the order: gather all leaves to every rank, with MPI_Allgatherv for unequal counts, and
/// merge by the number of a leaf alone.
#pragma once

#include "notebooks_cpp/exercises/ranks.hpp"
#include "reference/state/state.hpp"

/// The merged state of all leaves on every rank of `group`, in an order of your choice in which ranks do not occur. `own`
/// are the states of this rank's leaves; some ranks may have none. Words: MPI_Allgather of counts, MPI_Allgatherv of 6
/// MPI_FLOAT per state, merge_into(left, right), no_leaf().
inline State in_order(const std::vector<State>& own, MPI_Comm group) {
  int n = 0, sum = 0;
  MPI_Comm_size(group, &n);
  const int n_own = 6 * static_cast<int>(own.size());
  std::vector<int> counts(static_cast<std::size_t>(n)), offsets;
  MPI_Allgather(&n_own, 1, MPI_INT, counts.data(), 1, MPI_INT, group);
  for (const int count : counts) offsets.push_back(sum), sum += count;
  std::vector<State> all(static_cast<std::size_t>(sum / 6), no_leaf());
  MPI_Allgatherv(own.data(), n_own, MPI_FLOAT, all.data(), counts.data(), offsets.data(), MPI_FLOAT, group);
  // Adjacent pairs of leaves: the canonical tree of the book. From the first leaf to the last would do as well.
  for (std::size_t width = 1; width < all.size(); width *= 2)
    for (std::size_t i = 0; i + width < all.size(); i += 2 * width) merge_into(all[i], all[i + width]);
  return all.empty() ? no_leaf() : all[0];
}
