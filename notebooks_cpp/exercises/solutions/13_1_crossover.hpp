// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 13.1: from how many keys on the tree is faster.
///
/// Hint: Set both times equal and solve for N. The tree has 2 log2 p rounds; if its time per hop is below the latency of
/// the ring, it is faster for every N.
#pragma once

#include "notebooks_cpp/exercises/check.hpp"

/// The N at which both times are equal, or 0 where the tree is faster for every N: (p - 1) (latency + bytes_per_key N / (p
/// bandwidth)) = rounds (latency + bytes_of_state / bandwidth), with rounds = 2 log2 p. @param latency seconds @param
/// bandwidth bytes per second
inline double crossover(int p, double latency, double bandwidth, double bytes_per_key, double bytes_of_state) {
  const double rounds = 2 * std::log2(double(p)), tree = rounds * (latency + bytes_of_state / bandwidth);
  const double left = tree / (p - 1) - latency;  // for the keys of one round
  return left > 0 ? left * p * bandwidth / bytes_per_key : 0;
}
