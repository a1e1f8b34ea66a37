// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 7.2: the causal edge on a shard.
///
/// Expected: How many of a shard's keys query j of l sees, where it stands at position N - l + j and sees what is not after
/// it: the shards together show it N - l + 1 + j keys, and attention over what they show is attention with a causal edge.
///
/// Run: ./run exercise 7.2
#include "notebooks_cpp/exercises/check.hpp"

#include <algorithm>
#include <cmath>
#include <string>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/7_2_edge.hpp"
#else

// Change from here ...
/// Number of keys that query j of l sees, of the n keys of a shard, at positions begin, ..., begin + n - 1 of a sequence of
/// N.
inline long n_seen(long N, long l, long j, long begin, long n) {
  return (void)N, (void)l, (void)j, (void)begin, n;  // All of them: right for a shard that ends before the queries begin.
}
// ... to here.

#endif

int main() {
  const auto weight = [](long a) { return std::exp(std::sin(double(a))); };
  for (const long p : {1L, 2L, 3L, 5L}) {
    for (long N = 1; N <= 20; ++N) {
      for (long l = 1; l <= N; ++l) {
        for (long j = 0; j < l; ++j) {
          // Attention of query j: over all shards, and over the keys at positions 0, ..., N - l + j.
          long n_all = 0;
          double n_shards = 0, D_shards = 0, n = 0, D = 0;
          for (long r = 0; r < p; ++r) {
            const long begin = r * N / p, end = (r + 1) * N / p, seen = n_seen(N, l, j, begin, end - begin);
            expect(0 <= seen && seen <= end - begin, "a shard of " + std::to_string(end - begin) + " keys shows no more",
                   seen);
            n_all += seen;
            for (long a = begin; a < std::min(end, begin + seen); ++a)
              n_shards += weight(a) * double(a), D_shards += weight(a);
          }
          for (long a = 0; a <= N - l + j; ++a) n += weight(a) * double(a), D += weight(a);
          const std::string query = "query " + std::to_string(j) + " of " + std::to_string(l) + " and " + std::to_string(N) +
                                    " keys, " + std::to_string(p) + " shards";
          expect_equal(n_all, N - l + 1 + j, query + ": keys that are seen");
          expect_near(D_shards > 0 ? n_shards / D_shards : -1, n / D, 1e-12, query);
        }
      }
    }
  }
  return result();
}
