// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reduction of N elements with an associative operator on p workers, counting dependent steps (Thm. 1, proof E).
///
/// Each worker reduces its chunk sequentially; the partial results are then merged pairwise in a tree. n_steps is the length
/// of the longest chain of operations in which each needs the result of the one before. It is the running time if an
/// operation takes unit time and messages take none.
#pragma once

#include "reference/state/require.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace tree_attn {

/// The result of a reduction and its cost.
template <class T>
struct Reduction {
  T value;                 ///< x_0 op x_1 op ... op x_{N-1}
  std::int64_t n_steps;    ///< longest chain of dependent operations
  std::int64_t n_workers;  ///< p', workers with at least one element
};

/// x_0 op x_1 op ... op x_{N-1} on p workers.
///
///     n_steps = ceil(N/p) - 1  +  ceil(log2 p'),      p' = ceil(N / ceil(N/p)) <= min(N, p)
///
/// which is O(N/p + log p). The order of the elements is kept, so op need not commute.
///
/// Edges: with N < p some workers are idle and p' = N; with p = 1 the reduction is a chain of N - 1 steps; N = 1 takes no
/// step. Every chunk has at most ceil(N/p) elements; the last nonempty one may be shorter, and chunks after it are empty.
/// Example: 9 elements on 6 workers give chunks of 2, 2, 2, 2, 1 and 0.
/// @param[in] x elements [N], N >= 1; there is no result for N = 0, because op has no known identity
/// @param p workers, >= 1
/// @param op associative operator, (T, T) -> T
/// @throws std::invalid_argument if x is empty or p < 1
/// @paper{thm_1, Thm. 1}
template <class T, class Op>
Reduction<T> tree_reduce(std::span<const T> x, std::int64_t p, Op op) {
  const std::size_t N = x.size();
  require(N >= 1, "tree_reduce: no elements");
  require(p >= 1, "tree_reduce: ", p, " workers");

  // Store with each value the length of the chain of operations that produced it.
  struct Partial {
    T value;
    std::int64_t n_steps;
  };
  const auto merge_pair = [&op](const Partial& a, const Partial& b) {
    return Partial{op(a.value, b.value), std::max(a.n_steps, b.n_steps) + 1};
  };

  // Reduce each chunk sequentially: ceil(N/p) - 1 steps, all workers in parallel.
  const std::size_t chunk = (N - 1) / static_cast<std::size_t>(p) + 1;
  std::vector<Partial> partials;
  for (std::size_t begin = 0; begin < N; begin += chunk) {
    Partial partial{x[begin], 0};
    for (std::size_t a = begin + 1; a < std::min(begin + chunk, N); ++a) partial = merge_pair(partial, {x[a], 0});
    partials.push_back(std::move(partial));
  }

  // Merge the partial results pairwise until one is left: ceil(log2 p') steps.
  for (std::size_t stride = 1; stride < partials.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < partials.size(); i += 2 * stride)
      partials[i] = merge_pair(partials[i], partials[i + stride]);
  }
  return {partials[0].value, partials[0].n_steps, std::ssize(partials)};
}

}  // namespace tree_attn
