// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reducing N elements with an associative operator on p workers, with its dependent steps counted (Thm. 1, proof E).
///
/// Each worker reduces its chunk in a chain, then the partial results meet in a tree of pairs. What is counted is the
/// longest chain of operations of which each needs the result of the one before: the time, if operations take one unit
/// and workers never wait for a message.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {

/// The result of a reduction and what it took.
template <class T>
struct Reduction {
  T value;                 ///< x_0 op x_1 op ... op x_{N-1}
  std::int64_t n_steps;    ///< longest chain of dependent operations
  std::int64_t n_workers;  ///< p', workers that had any element
};

/// x_0 op x_1 op ... op x_{N-1} on p workers.
///
///     n_steps = ceil(N/p) - 1  +  ceil(log2 p'),      p' = ceil(N / ceil(N/p)) <= min(N, p)
///
/// which is O(N/p + log p). The order of the elements is kept, so op need not commute.
///
/// Edges: with N < p some workers have nothing to do and p' = N; with p = 1 it is the chain of N - 1 steps; N = 1 takes
/// none. No chunk is longer than ceil(N/p), the last may be shorter, and some at the end empty: 9 elements on 6 workers
/// are 2, 2, 2, 2, 1, 0.
/// @param[in] x elements [N], N >= 1: an operator alone knows no identity
/// @param p workers, >= 1
/// @param op associative operator, (T, T) -> T
/// @throws std::invalid_argument if x is empty or p < 1
/// @paper{thm_1, Thm. 1}
template <class T, class Op>
Reduction<T> tree_reduce(std::span<const T> x, std::int64_t p, Op op) {
  const auto N = static_cast<std::int64_t>(x.size());
  if (N < 1) throw std::invalid_argument("tree_reduce: no elements");
  if (p < 1) throw std::invalid_argument("tree_reduce: " + std::to_string(p) + " workers");

  // Carry with every value how many operations had to come before it.
  struct Partial {
    T value;
    std::int64_t n_steps;
  };
  const auto join = [&op](const Partial& a, const Partial& b) {
    return Partial{op(a.value, b.value), std::max(a.n_steps, b.n_steps) + 1};
  };

  // Reduce each chunk in a chain: ceil(N/p) - 1 steps, all workers at once.
  const std::int64_t chunk = (N + p - 1) / p;
  std::vector<Partial> partials;
  for (std::int64_t begin = 0; begin < N; begin += chunk) {
    Partial partial{x[static_cast<std::size_t>(begin)], 0};
    for (std::int64_t a = begin + 1; a < std::min(begin + chunk, N); ++a) {
      partial = join(partial, {x[static_cast<std::size_t>(a)], 0});
    }
    partials.push_back(std::move(partial));
  }

  // Halve the number of partial results until one is left: ceil(log2 p') steps.
  for (std::size_t stride = 1; stride < partials.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < partials.size(); i += 2 * stride)
      partials[i] = join(partials[i], partials[i + stride]);
  }
  return {partials[0].value, partials[0].n_steps, static_cast<std::int64_t>(partials.size())};
}

}  // namespace tree_attn
