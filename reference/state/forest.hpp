// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The canonical merge tree: positions, subtrees, and ranges of positions as forests of subtrees (section 5, Thm. 1).
///
/// The keys stand at the leaves 0, 1, 2, ... of one perfect binary tree. Positions without a key hold the empty set, which
/// merges without changing a bit, so the value at every node is a function of the keys below it alone: not of N, not of who
/// computes it, not of what else is in the batch. A range of positions [begin, end) is covered by a few maximal subtrees;
/// neighbouring ranges join by merging the subtrees that have become siblings, as a binary counter carries.
#pragma once

#include "reference/state/state.hpp"
#include "reference/state/subtree.hpp"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// The maximal subtrees that cover the positions [begin, end), left to right: at most 2 log2(N) of them, and just one when
/// the range is an aligned power of two.
inline std::vector<Subtree> cover(std::int64_t begin, std::int64_t end) {
  std::vector<Subtree> subtrees;
  for (; begin < end; begin = subtrees.back().end()) subtrees.push_back(first_subtree(begin, end));
  return subtrees;
}

/// States of a range of consecutive positions, as its maximal subtrees, for n_rows queries at once.
///
/// push() appends on the right and carries. Pushing the keys of a range one by one, or its leaves, or the forests of
/// neighbouring ranks in order, always ends with the same subtrees and the same bits in them.
template <class Real>
class Forest {
 public:
  /// @param n_rows queries that share the tree (b * n_h * l on a rank)
  /// @param d_v length of a value vector
  Forest(std::int64_t n_rows, std::int64_t d_v) : n_rows_(n_rows), d_v_(d_v) {}

  std::int64_t n_rows() const { return n_rows_; }
  std::int64_t d_v() const { return d_v_; }
  /// Numbers in one subtree: n_rows states.
  std::int64_t block_size() const { return n_rows_ * state_size(d_v_); }
  /// The subtrees held, left to right.
  const std::vector<Subtree>& subtrees() const { return subtrees_; }
  /// Their states, [subtrees][n_rows][2 + d_v], in the same order: what travels between ranks.
  std::span<const Real> states() const {
    return {states_.data(), subtrees_.size() * static_cast<std::size_t>(block_size())};
  }
  /// Bytes held.
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(states_.size() * sizeof(Real) + subtrees_.capacity() * sizeof(Subtree));
  }
  /// Merges done so far, counted once for all rows.
  std::int64_t n_merges() const { return n_merges_; }
  /// Forgets every subtree, keeps the memory.
  void clear() {
    subtrees_.clear();
    n_merges_ = 0;
  }

  /// Takes the memory for n subtrees, so that no push() of so many allocates.
  void reserve(std::size_t n) {
    subtrees_.reserve(n);
    if (states_.size() < n * static_cast<std::size_t>(block_size()))
      states_.resize(n * static_cast<std::size_t>(block_size()));
  }
  /// Holds other subtrees, neighbours of which none are siblings, and shows where their states go, [subtrees][n_rows][2 +
  /// d_v].
  std::span<Real> assign(std::span<const Subtree> subtrees) {
    clear();
    reserve(subtrees.size());
    subtrees_.assign(subtrees.begin(), subtrees.end());
    return {states_.data(), subtrees.size() * static_cast<std::size_t>(block_size())};
  }

  /// Room for the states of one more subtree, [n_rows][2 + d_v]; push() takes it from there.
  Real* slot() {
    const std::size_t needed = (subtrees_.size() + 1) * static_cast<std::size_t>(block_size());
    if (states_.size() < needed) states_.resize(needed);
    return block(subtrees_.size());
  }

  /// Appends the subtree whose states were written to slot(), then merges while the last two are siblings.
  void push(Subtree next) {
    assert(subtrees_.empty() || subtrees_.back().end() == next.begin());
    subtrees_.push_back(next);
    while (subtrees_.size() >= 2 && subtrees_[subtrees_.size() - 2].is_left_sibling_of(subtrees_.back())) {
      const Subtree joined = subtrees_.back().parent();
      merge_last_two();
      subtrees_.back() = joined;
    }
  }

  /// Appends subtrees with their states, [subtrees][n_rows][2 + d_v]: the forest of the neighbour on the right.
  void append(std::span<const Subtree> subtrees, const Real* states) {
    for (const Subtree& subtree : subtrees) {
      std::copy(states, states + block_size(), slot());
      states += block_size();
      push(subtree);
    }
  }

  /// Merges all that is held into one state per row, [n_rows][2 + d_v], right to left; the empty state if there is nothing.
  ///
  /// Right to left is what the perfect tree does once its missing positions are filled with the empty set, so the result
  /// of a forest that starts at position 0 is the value at the root. The forest is used up.
  std::span<const Real> fold() {
    if (subtrees_.empty()) {
      Real* states = slot();
      for (std::int64_t r = 0; r < n_rows_; ++r) set_empty(states + r * state_size(d_v_), d_v_);
      return {states, static_cast<std::size_t>(block_size())};
    }
    while (subtrees_.size() >= 2) merge_last_two();
    return states();
  }

 private:
  Real* block(std::size_t i) { return states_.data() + i * static_cast<std::size_t>(block_size()); }

  void merge_last_two() {
    const std::size_t last = subtrees_.size() - 1;
    Real* left = block(last - 1);
    const Real* right = block(last);
    for (std::int64_t r = 0; r < n_rows_; ++r) merge(left + r * state_size(d_v_), right + r * state_size(d_v_), d_v_);
    subtrees_.pop_back();
    ++n_merges_;
  }

  std::int64_t n_rows_, d_v_;
  std::int64_t n_merges_ = 0;
  std::vector<Subtree> subtrees_;
  std::vector<Real> states_;
};

}  // namespace tree_attn
