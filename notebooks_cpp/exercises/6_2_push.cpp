// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 6.2: a forest that carries.
///
/// Expected: Append a leaf on the right of a forest and merge subtrees that become siblings, as a binary counter carries;
/// return the number of merges.
///
/// Run: ./run exercise 6.2
#include "notebooks_cpp/exercises/check.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/6_2_push.hpp"
#else

// Change from here ...
/// A subtree: 2^level leaves, the index-th of its level from the left.
struct Subtree {
  int level;
  std::int64_t index;
};

/// Appends leaf number a. @returns the number of merges
inline int push(std::vector<Subtree>& forest, std::int64_t a) {
  forest.push_back({0, a});
  return 0;
}
// ... to here.

#endif

int main() {
  for (std::int64_t begin = 0; begin < 20; ++begin) {
    std::vector<Subtree> forest;
    int n_merges = 0;
    for (std::int64_t a = begin; a < 100; ++a) {
      n_merges += push(forest, a);
      std::int64_t at = begin;
      bool sound = true;
      for (std::size_t i = 0; i < forest.size(); ++i) {
        sound = sound && forest[i].index << forest[i].level == at;
        at = (forest[i].index + 1) << forest[i].level;
        sound = sound && !(i > 0 && forest[i].level == forest[i - 1].level && forest[i - 1].index % 2 == 0);
      }
      const std::string where = "leaves " + std::to_string(begin) + " to " + std::to_string(a);
      expect(sound && at == a + 1, where + " are held in order, without siblings: the end of the last, subtrees", at,
             forest.size());
      expect_equal(n_merges, int(a - begin + 1) - int(forest.size()),
                   where + ": each merge makes one subtree of two; merges");
    }
  }
  std::vector<Subtree> forest;
  for (std::int64_t a = 0; a < 1024; ++a) push(forest, a);
  expect(forest.size() == 1 && forest[0].level == 10, "1024 leaves are one subtree of level 10: subtrees, level",
         forest.size(), forest.empty() ? -1 : forest[0].level);
  return result();
}
