// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The reduction of Thm. 1 on threads, one per worker, synchronised only along the edges of the tree (proof E).
#pragma once

#include "tree_attn/reference/state/tree_reduce.hpp"

#include <algorithm>
#include <cstdint>
#include <future>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {

/// x_0 op x_1 op ... op x_{N-1} on p parallel workers, with the chunks, the tree and therefore the bits of tree_reduce().
///
///     n_steps = ceil(N/p) - 1  +  ceil(log2 p')       steps of worker 0, the longest chain
///
/// Worker i reduces its chunk, then merges the results of the workers at distance 1, 2, 4, ... while i is a multiple of
/// twice the distance. A worker ends when its result is complete.
///
/// Edges: as in tree_reduce(). If op throws in any thread, this function rethrows the exception after all threads have
/// ended.
/// @param[in] x elements [N], N >= 1
/// @param p workers, >= 1; p' threads are started
/// @param op associative operator, (T, T) -> T; may be called by several threads at once
/// @throws std::invalid_argument if x is empty or p < 1
/// @throws std::system_error if a thread cannot be started
/// @paper{thm_1, Thm. 1}
template <class T, class Op>
Reduction<T> tree_reduce_threads(std::span<const T> x, std::int64_t p, const Op& op) {
  const std::size_t N = x.size();
  if (N < 1) throw std::invalid_argument("tree_reduce_threads: no elements");
  if (p < 1) throw std::invalid_argument("tree_reduce_threads: " + std::to_string(p) + " workers");
  const std::size_t chunk = (N - 1) / static_cast<std::size_t>(p) + 1;
  const std::size_t n_workers = (N + chunk - 1) / chunk;

  // Start the workers from right to left: a worker waits only for workers to its right.
  std::vector<std::future<Reduction<T>>> workers(n_workers);
  for (std::size_t i = n_workers; i-- > 0;) {
    workers[i] = std::async(std::launch::async, [=, &workers, &op] {
      Reduction<T> mine = tree_reduce(x.subspan(i * chunk, std::min(chunk, N - i * chunk)), 1, op);
      for (std::size_t stride = 1; i % (2 * stride) == 0 && i + stride < n_workers; stride *= 2) {
        const Reduction<T> right = workers[i + stride].get();
        mine = {op(mine.value, right.value), std::max(mine.n_steps, right.n_steps) + 1, mine.n_workers + right.n_workers};
      }
      return mine;
    });
  }
  return workers[0].get();
}

}  // namespace tree_attn
