// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The canonical merge tree: ranges of positions as forests of subtrees (section 5, Thm. 1).
///
/// The keys are the lowest subtrees 0, 1, 2, ... of one perfect binary tree. A position without a key holds the empty set,
/// which is neutral bit for bit. The value of a subtree is therefore a function of the keys below it alone. It does not
/// depend on N, on the rank that computes it, or on the other sequences of the batch. A range of positions [begin, end) is
/// covered by its maximal subtrees. Neighbouring ranges are joined by merging subtrees that become siblings, as carries
/// propagate in a binary counter.
#pragma once

#include "reference/state/require.hpp"
#include "reference/state/state.hpp"
#include "reference/state/subtree.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// The maximal subtrees that cover the positions [begin, end), from left to right: at most 2 log2(end - begin) of them for
/// two or more positions, and exactly one if the range is an aligned power of two.
inline std::vector<Subtree> cover(std::int64_t begin, std::int64_t end) {
  std::vector<Subtree> subtrees;
  for (; begin < end; begin = subtrees.back().end()) subtrees.push_back(first_subtree(begin, end));
  return subtrees;
}

/// @throws std::invalid_argument unless the next subtree begins where the last one ends @param function for the message
inline void require_next(const char* function, const Subtree& last, const Subtree& next) {
  require(next.begin() == last.end(), function, ": a subtree from position ", next.begin(), " on, after one that ends at ",
          last.end());
}

/// Appends a subtree on the right, then carries: merges the last two subtrees while they are siblings.
/// @param merge_last_two merges what belongs to the last two subtrees into what belongs to the first of them
/// @throws std::invalid_argument if it does not begin where the last subtree ends
template <class MergeLastTwo>
void push_subtree(std::vector<Subtree>& subtrees, Subtree next, const MergeLastTwo& merge_last_two) {
  if (!subtrees.empty()) require_next("Forest::push", subtrees.back(), next);
  subtrees.push_back(next);
  while (subtrees.size() >= 2 && subtrees[subtrees.size() - 2].is_left_sibling_of(subtrees.back())) {
    merge_last_two();
    const Subtree joined = subtrees.back().parent();
    subtrees.pop_back();
    subtrees.back() = joined;
  }
}

/// States of a range of consecutive positions, stored as its maximal subtrees, for n_rows queries at once.
///
/// push() appends a subtree on the right and carries. The final subtrees and their bits are the same whether the keys of a
/// range are pushed one by one, as leaves, or as the forests of consecutive ranks.
template <class Real>
class Forest {
 public:
  /// @param n_rows queries that share the tree (b * n_h * l on a rank)
  /// @param d_v length of a value vector
  /// @throws std::invalid_argument if one is negative
  Forest(std::int64_t n_rows, std::int64_t d_v) : n_rows_(n_rows), d_v_(d_v) {
    require(n_rows >= 0 && d_v >= 0, "Forest: ", n_rows, " rows of ", d_v, " components");
  }

  std::int64_t n_rows() const { return n_rows_; }
  std::int64_t d_v() const { return d_v_; }
  /// Elements per subtree: n_rows states.
  std::int64_t block_size() const { return n_rows_ * state_size(d_v_); }
  /// The subtrees held, left to right.
  const std::vector<Subtree>& subtrees() const { return subtrees_; }
  /// Their states, [subtrees][n_rows][2 + d_v], in the same order. Ranks exchange these.
  std::span<const Real> states() const { return {states_.data(), n_elements(subtrees_.size())}; }
  /// Merges so far, each counted once for all rows.
  std::int64_t n_merges() const { return n_merges_; }
  /// Removes all subtrees and keeps the memory.
  void clear() {
    subtrees_.clear();
    n_merges_ = 0;
  }
  /// Removes all subtrees, for another number of rows. @throws std::invalid_argument if it is negative
  void set_rows(std::int64_t n_rows) {
    require(n_rows >= 0, "Forest: ", n_rows, " rows");
    clear();
    n_rows_ = n_rows;
  }

  /// Allocates memory for n subtrees, so that push() does not allocate until there are more.
  void reserve(std::size_t n) {
    subtrees_.reserve(n);
    if (states_.size() < n_elements(n)) states_.resize(n_elements(n));
  }
  /// Replaces the contents by consecutive subtrees, no two of them siblings. Returns the memory for their states,
  /// [subtrees][n_rows][2 + d_v], which the caller fills.
  /// @throws std::invalid_argument if a subtree does not begin where the one before it ends, or is its sibling
  std::span<Real> assign(std::span<const Subtree> subtrees) {
    clear();
    for (std::size_t i = 1; i < subtrees.size(); ++i) {
      require_next("Forest::assign", subtrees[i - 1], subtrees[i]);
      require(!subtrees[i - 1].is_left_sibling_of(subtrees[i]), "Forest::assign: subtrees ", i - 1, " and ", i,
              " are siblings");
    }
    reserve(subtrees.size());
    subtrees_.assign(subtrees.begin(), subtrees.end());
    return {states_.data(), n_elements(subtrees.size())};
  }

  /// Memory for the states of one more subtree, [n_rows][2 + d_v], which the next push() appends.
  Real* next() {
    const std::size_t needed = n_elements(subtrees_.size() + 1);
    if (states_.size() < needed) states_.resize(needed);
    return block(subtrees_.size());
  }

  /// Appends the subtree whose states the caller has written to next(), then merges the last two subtrees while they are
  /// siblings.
  /// @throws std::invalid_argument if it does not begin where the last subtree ends
  void push(Subtree next) {
    push_subtree(subtrees_, next, [this] { merge_last_two(); });
  }

  /// Appends subtrees and their states, [subtrees][n_rows][2 + d_v], such as the forest of the next rank.
  void append(std::span<const Subtree> subtrees, const Real* states) {
    for (const Subtree& subtree : subtrees) {
      std::copy(states, states + block_size(), next());
      states += block_size();
      push(subtree);
    }
  }

  /// Merges all subtrees into one state per row, [n_rows][2 + d_v], from right to left. Gives the empty state if there are
  /// none.
  ///
  /// The perfect tree, filled up with empty positions, merges in the same order. The result for a forest that starts at
  /// position 0 is therefore the value at the root. The forest is consumed, and the caller may change the result.
  std::span<Real> fold() {
    if (subtrees_.empty()) {
      Real* states = next();
      for (std::int64_t r = 0; r < n_rows_; ++r) set_empty(states + r * state_size(d_v_), d_v_);
      return {states, n_elements(1)};
    }
    for (; subtrees_.size() >= 2; subtrees_.pop_back()) merge_last_two();
    return {states_.data(), n_elements(1)};
  }

 private:
  std::size_t n_elements(std::size_t n_subtrees) const { return n_subtrees * static_cast<std::size_t>(block_size()); }
  Real* block(std::size_t i) { return states_.data() + n_elements(i); }

  void merge_last_two() {
    const std::size_t last = subtrees_.size() - 1;
    Real* left = block(last - 1);
    const Real* right = block(last);
    for (std::int64_t r = 0; r < n_rows_; ++r) merge(left + r * state_size(d_v_), right + r * state_size(d_v_), d_v_);
    ++n_merges_;
  }

  std::int64_t n_rows_, d_v_;
  std::int64_t n_merges_ = 0;
  std::vector<Subtree> subtrees_;
  std::vector<Real> states_;
};

}  // namespace tree_attn
