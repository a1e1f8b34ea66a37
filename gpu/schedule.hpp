// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Equal runs of work over all blocks, whatever the lengths in a batch (section 5.3: shards of equal size).
///
/// The work is one long row of cells: strip after strip, and in each the pieces of kCut positions of its keys. Block g of G
/// takes the cells [n g / G, n (g + 1) / G): it begins in the middle of one strip, may do some whole ones, and ends in the
/// middle of another. Who takes what follows from the lengths alone, so every block works it out for itself.
#pragma once

#include "gpu/problem.hpp"

namespace tree_attn {

/// What one block does on one strip.
struct Segment {
  std::int64_t strip = 0;              ///< number of the strip
  std::int64_t line = 0;               ///< its line: batch entry and key/value head
  std::int64_t first_row = 0;          ///< its first row in the group of the line
  std::int64_t cell = 0, n_cells = 0;  ///< where the strip begins in the row of all cells, and its cells
  Run whole;                           ///< positions of the strip
  Run run;                             ///< those of this segment
};

/// The schedule of a launch.
/// @paper{thm_1, Thm. 1}
class Schedule {
 public:
  /// @param n_rows rows of a strip
  /// @param n_blocks of the grid; those that are more than there are cells stay idle
  TREE_ATTN_HOST_DEVICE Schedule(const DeviceProblem& problem, int n_rows, std::int64_t n_blocks)
      : problem_(problem), n_rows_(n_rows), strips_per_line_((problem.group + n_rows - 1) / n_rows) {
    for (std::int64_t i = 0; i < problem.batch; ++i) n_cells_ += strips_per_entry() * cells_of(i);
    n_blocks_ = n_blocks < n_cells_ ? n_blocks : n_cells_;
  }

  TREE_ATTN_HOST_DEVICE std::int64_t n_cells() const { return n_cells_; }
  TREE_ATTN_HOST_DEVICE std::int64_t n_strips() const { return problem_.batch * strips_per_entry(); }
  /// First cell of a block, and of those that have nothing to do the end.
  TREE_ATTN_HOST_DEVICE std::int64_t begin_of(std::int64_t block) const {
    return block < n_blocks_ ? n_cells_ * block / n_blocks_ : n_cells_;
  }
  /// The block that takes a cell.
  TREE_ATTN_HOST_DEVICE std::int64_t block_of(std::int64_t cell) const { return ((cell + 1) * n_blocks_ - 1) / n_cells_; }
  /// The strip that a cell lies in, and of it the cells [cell, end).
  TREE_ATTN_HOST_DEVICE Segment segment_at(std::int64_t cell, std::int64_t end) const {
    // The batch entry.
    std::int64_t i = 0, first = 0;
    while (cell >= first + strips_per_entry() * cells_of(i)) first += strips_per_entry() * cells_of(i++);
    // The strip in it.
    Segment segment;
    segment.n_cells = cells_of(i);
    const std::int64_t s = (cell - first) / segment.n_cells;
    segment.strip = i * strips_per_entry() + s;
    segment.line = i * problem_.kv_heads + s / strips_per_line_;
    segment.first_row = s % strips_per_line_ * n_rows_;
    segment.cell = first + s * segment.n_cells;
    segment.whole = problem_.padded(segment.line);
    segment.run = positions(segment, cell, end);
    return segment;
  }
  /// Positions of the cells [cell, end) of all, as far as they lie in the strip of a segment.
  TREE_ATTN_HOST_DEVICE Run positions(const Segment& segment, std::int64_t cell, std::int64_t end) const {
    if (segment.whole.empty()) return segment.whole;
    const std::int64_t first_piece = segment.whole.begin / kCut;
    const std::int64_t from = (first_piece + cell - segment.cell) * kCut, to = (first_piece + end - segment.cell) * kCut;
    return {from > segment.whole.begin ? from : segment.whole.begin, to < segment.whole.end ? to : segment.whole.end};
  }

 private:
  TREE_ATTN_HOST_DEVICE std::int64_t strips_per_entry() const { return problem_.kv_heads * strips_per_line_; }
  /// Cells of one strip of a batch entry. One without keys has a cell as well: somebody must write its rows.
  TREE_ATTN_HOST_DEVICE std::int64_t cells_of(std::int64_t i) const {
    const Run run = problem_.padded(i * problem_.kv_heads);
    return run.empty() ? 1 : (run.end + kCut - 1) / kCut - run.begin / kCut;
  }

  const DeviceProblem& problem_;
  std::int64_t n_rows_, strips_per_line_, n_cells_ = 0, n_blocks_ = 0;
};

}  // namespace tree_attn
