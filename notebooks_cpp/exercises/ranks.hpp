// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Functions that the exercises on several MPI ranks share: small states, and the outcome.
#pragma once

#include "notebooks_cpp/exercises/check.hpp"
#include "reference/state/state.hpp"

#include <mpi.h>

#include <random>

namespace tree_attn::exercise {

/// The attention of one query over some keys: shift, weight sum and weighted values.
struct State {
  float element[2 + 4];
};
inline void merge_into(State& left, const State& right) { tree_attn::merge(left.element, right.element, 4); }

/// The state of leaf i, and that of no leaf.
inline State leaf_state(int i) {
  State state;
  std::mt19937 random{unsigned(i)};
  const auto next = [&] { return float(random() % 20001) / 7000 - 1; };
  const float value[4] = {next(), next(), next(), next()};
  tree_attn::set_key(state.element, 9 * next(), value, 4);
  return state;
}
inline State no_leaf() {
  State state;
  tree_attn::set_empty(state.element, 4);
  return state;
}

/// Adds up the claims of all ranks, ends MPI, and prints the outcome on rank 0. @returns the status of the program
inline int result_of_ranks() {
  int rank = 0, counts[2] = {claims.n, claims.n_failed};
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(MPI_IN_PLACE, counts, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  claims.n = counts[0], claims.n_failed = counts[1];
  if (rank == 0) return result();
  return claims.n_failed > 0 ? 1 : 0;
}

}  // namespace tree_attn::exercise
