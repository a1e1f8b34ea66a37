// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 13.1: from how many keys on the tree is faster.
///
/// Expected: A step of Ring Attention is p - 1 rounds that each move keys and values of N / p positions; a step of Tree
/// Attention is 2 log2 p rounds that each move a state. From the latency and the bandwidth of a link follows the N from
/// which the tree takes less time.
///
/// Run: ./run exercise 13.1
#include "notebooks_cpp/exercises/check.hpp"

#include <cmath>
#include <string>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/13_1_crossover.hpp"
#else

// Change from here ...
/// The N at which both times are equal, or 0 where the tree is faster for every N: (p - 1) (latency + bytes_per_key N / (p
/// bandwidth)) = rounds (latency + bytes_of_state / bandwidth), with rounds = 2 log2 p. @param latency seconds @param
/// bandwidth bytes per second
inline double crossover(int p, double latency, double bandwidth, double bytes_per_key, double bytes_of_state) {
  // One key.
  (void)p, (void)latency, (void)bandwidth, (void)bytes_per_key, (void)bytes_of_state;
  return 1;
}
// ... to here.

#endif

int main() {
  for (const int p : {2, 4, 8, 64, 1024}) {
    for (const double latency : {1e-6, 5e-6, 2e-5}) {
      for (const double bandwidth : {25e9, 450e9}) {
        const double bytes_per_key = 16 * 2 * 128 * 2, bytes_of_state = 16 * 130 * 4;
        const auto ring = [&](double n) { return (p - 1) * (latency + bytes_per_key * n / (p * bandwidth)); };
        const double tree = 2 * std::log2(double(p)) * (latency + bytes_of_state / bandwidth);
        const double n = crossover(p, latency, bandwidth, bytes_per_key, bytes_of_state);
        const std::string where = " on " + std::to_string(p) + " devices, " + std::to_string(latency * 1e6) + " us";
        expect(n >= 0, "a number of keys" + where, n);
        expect(ring(n * 1.001 + 1e-6) > tree, "above it the ring is slower" + where, ring(n * 1.001 + 1e-6), tree);
        if (n > 0) expect(ring(n * 0.999) < tree, "below it the ring is faster" + where, ring(n * 0.999), tree);
      }
    }
  }
  return result();
}
