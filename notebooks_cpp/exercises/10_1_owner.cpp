// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 10.1: who holds a leaf in the dealt order.
///
/// Expected: The rank of leaf j among p = 2^a ranks: the a low bits of j in reversed order, so that shards are even at every
/// length and each is one subtree.
///
/// Run: ./run exercise 10.1
#include "notebooks_cpp/exercises/check.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/10_1_owner.hpp"
#else

// Change from here ...
/// The rank that holds leaf j. @param a log2 of the number of ranks
inline int owner(std::int64_t j, int a) {
  // Round robin: even, but neighbours in the tree are apart.
  return int(j % (std::int64_t{1} << a));
}
// ... to here.

#endif

int main() {
  for (int a = 0; a <= 6; ++a) {
    const int p = 1 << a;
    std::vector<int> n(std::size_t(p), 0);
    for (std::int64_t j = 0; j < 1000; ++j) {
      const int rank = owner(j, a);
      expect(rank >= 0 && rank < p, "leaf " + std::to_string(j) + " has a rank of " + std::to_string(p), rank);
      if (rank < 0 || rank >= p) continue;
      ++n[std::size_t(rank)];
      // One rank of p / 2 splits into two of p: the tree above the ranks is the same for every p.
      if (a > 0)
        expect_equal(rank / 2, owner(j, a - 1),
                     "leaf " + std::to_string(j) + ": ranks 2 r and 2 r + 1 of " + std::to_string(p) +
                         " share what rank r of half as many holds");
    }
    for (const int each : n)
      expect(each == 1000 / p || each == 1000 / p + 1, "1000 leaves on " + std::to_string(p) + " ranks: even up to one leaf",
             each);
  }
  return result();
}
