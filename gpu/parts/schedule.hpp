// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Equal runs of work over all blocks, whatever the lengths in a batch (section 5.3: shards of equal size).
///
/// The work is one long row of cells: strip after strip, and in each the pieces of kLeafKeys positions of its keys. Each block
/// takes an equal run of them, up to one cell: it begins in the middle of one strip, may do some whole ones, and ends in the
/// middle of another. Who takes what follows from the lengths alone, so every block works it out for itself.
#pragma once

#include "gpu/parts/problem.hpp"

namespace tree_attn {

/// What one block does on one strip.
struct Segment {
  std::int64_t strip = 0;              ///< number of the strip
  std::int64_t line = 0;               ///< its line: batch entry and key/value head
  std::int64_t first_row = 0;          ///< its first row in the group of the line
  std::int64_t cell = 0, n_cells = 0;  ///< where the strip begins in the row of all cells, and its cells
  std::int64_t first = 0, last = 0;    ///< cells [first, last) of all that are this segment
  Run whole;                           ///< positions of the strip
  Run run;                             ///< those of this segment

  /// Whether nobody else has a part of the strip.
  TREE_ATTN_HOST_DEVICE bool is_whole() const { return first == cell && last == cell + n_cells; }
  /// Positions of the cells [from, to) of all, as far as they lie in the strip.
  TREE_ATTN_HOST_DEVICE Run positions(std::int64_t from, std::int64_t to) const {
    if (whole.empty()) return whole;
    const std::int64_t piece = whole.begin / kLeafKeys - cell, begin = (piece + from) * kLeafKeys, end = (piece + to) * kLeafKeys;
    return {begin > whole.begin ? begin : whole.begin, end < whole.end ? end : whole.end};
  }
};

/// The schedule of a launch.
class Schedule {
 public:
  Schedule() = default;
  /// @param n_rows rows of a strip
  /// @param n_blocks of the grid; those that are more than there are cells stay idle
  TREE_ATTN_HOST_DEVICE Schedule(const DeviceProblem& problem, int n_rows, std::int64_t n_blocks)
      : n_rows_(n_rows), strips_per_line_((problem.group + n_rows - 1) / n_rows), strips_per_entry_(problem.kv_heads * strips_per_line_) {
    for (std::int64_t i = 0; i < problem.batch; ++i) n_cells_ += strips_per_entry_ * cells_of(problem, i);
    n_blocks_ = n_blocks < n_cells_ ? n_blocks : n_cells_;
    each_ = n_blocks_ == 0 ? 0 : divide(n_cells_, n_blocks_);
    rest_ = n_cells_ - each_ * n_blocks_;
  }

  TREE_ATTN_HOST_DEVICE std::int64_t n_cells() const { return n_cells_; }
  /// First cell of a block, and of those that have nothing to do the end. The first blocks are the ones with a cell more.
  TREE_ATTN_HOST_DEVICE std::int64_t begin_of(std::int64_t block) const {
    return block < n_blocks_ ? each_ * block + (block < rest_ ? block : rest_) : n_cells_;
  }
  /// The block that takes a cell.
  TREE_ATTN_HOST_DEVICE std::int64_t block_of(std::int64_t cell) const {
    const std::int64_t of_longer = rest_ * (each_ + 1);
    return cell < of_longer ? divide(cell, each_ + 1) : rest_ + divide(cell - of_longer, each_);
  }
  /// The strip that a cell lies in, and of it the cells [cell, end).
  TREE_ATTN_HOST_DEVICE Segment segment_at(const DeviceProblem& problem, std::int64_t cell, std::int64_t end) const {
    // The batch entry.
    std::int64_t i = 0, first = 0;
    while (cell >= first + strips_per_entry_ * cells_of(problem, i)) first += strips_per_entry_ * cells_of(problem, i++);
    // The strip in it.
    Segment segment;
    segment.n_cells = cells_of(problem, i);
    const std::int64_t s = divide(cell - first, segment.n_cells);
    segment.strip = i * strips_per_entry_ + s;
    const std::int64_t head = divide(s, strips_per_line_);
    segment.line = i * problem.kv_heads + head;
    segment.first_row = (s - head * strips_per_line_) * n_rows_;
    segment.cell = first + s * segment.n_cells;
    segment.whole = problem.padded(segment.line);
    // What of it is asked for.
    segment.first = cell;
    segment.last = segment.cell + segment.n_cells < end ? segment.cell + segment.n_cells : end;
    segment.run = segment.positions(segment.first, segment.last);
    return segment;
  }

 private:
  /// Cells of one strip of a batch entry. One without keys has a cell as well: somebody must write its rows.
  TREE_ATTN_HOST_DEVICE static std::int64_t cells_of(const DeviceProblem& problem, std::int64_t i) {
    const Run run = problem.padded(i * problem.kv_heads);
    return run.empty() ? 1 : (run.end + kLeafKeys - 1) / kLeafKeys - run.begin / kLeafKeys;
  }

  /// a / b. A division of 64 bits is a long story on a device, and hardly ever needed.
  TREE_ATTN_HOST_DEVICE static std::int64_t divide(std::int64_t a, std::int64_t b) {
    if ((a | b) >> 32 != 0) return a / b;
    return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  }

  std::int64_t n_rows_ = 1, strips_per_line_ = 1, strips_per_entry_ = 1, n_cells_ = 0, n_blocks_ = 0, each_ = 0, rest_ = 0;
};

}  // namespace tree_attn
