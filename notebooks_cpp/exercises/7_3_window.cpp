// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 7.3: the leaves that a window reads.
///
/// Expected: The leaves of 64 keys in which some query of a step sees a key, each once and in order: those of the sinks and
/// those of the window of l queries, as many for a sequence of 2^50 keys as for one of 2^20.
///
/// Run: ./run exercise 7.3
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/7_3_window.hpp"
#else

// Change from here ...
/// Leaf i has the keys at positions 64 i, ..., 64 i + 63. Query j of l, 0 <= j < l <= N, sees those below N - l + 1 + j:
/// the last w of them, and the first s of the sequence. @pre w >= 1
inline std::vector<long> leaves_read(long N, long l, long w, long s) {
  // The window of the last query. What do the others see, and who reads the sinks?
  std::vector<long> leaves;
  for (long i = std::max(0L, N - w) / 64; i <= (N - 1) / 64; ++i) leaves.push_back(i);
  return (void)l, (void)s, leaves;
}
// ... to here.

#endif

int main() {
  for (const long N : {1L, 63L, 64L, 65L, 300L, 640L, 1000L}) {
    for (const long l : {1L, 2L, 17L, 64L, 130L}) {
      for (const long w : {1L, 2L, 63L, 64L, 65L, 200L, 2000L}) {
        for (const long s : {0L, 1L, 64L, 65L, 128L, 900L}) {
          if (l > N) continue;
          std::vector<long> wanted;
          for (long a = 0; a < N; ++a) {
            bool seen = false;
            for (long j = 0; j < l; ++j) {
              const long end = N - l + 1 + j;
              seen = seen || (a < end && (a < s || a >= end - w));
            }
            if (seen && (wanted.empty() || wanted.back() != a / 64)) wanted.push_back(a / 64);
          }
          expect_equal(leaves_read(N, l, w, s), wanted,
                       std::to_string(N) + " keys, l = " + std::to_string(l) + ", window " + std::to_string(w) + ", " +
                           std::to_string(s) + " sinks");
        }
      }
    }
  }
  const long far = 1L << 50;
  expect_equal(leaves_read(far, 8, 64, 4), {0, far / 64 - 2, far / 64 - 1}, "2^50 keys: three leaves");
  return result();
}
