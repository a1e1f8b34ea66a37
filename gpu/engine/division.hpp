// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Equal runs of work over all blocks, whatever the lengths in a batch (section 5.3: shards of equal size).
///
/// The work is one long sequence of work items: query tile after query tile, and in each the leaves of kLeafKeys positions
/// of its keys. Each block takes an equal run of them, up to one work item: it begins in the middle of one query tile, may
/// do some whole ones, and ends in the middle of another. The division follows from the lengths alone, so every block
/// works it out for itself. Hosts compile it too: plans and figures ask it.
#pragma once

#include "gpu/engine/params.hpp"

namespace tree_attn {

/// A batch entry, and the work items of those before it.
struct FoundEntry {
  Count entry = 0, first = 0;
};

/// What one block does on one query tile.
struct WorkRange {
  FoundEntry found;      ///< its batch entry
  Count query_tile = 0;  ///< number of the query tile
  Count kv_head = 0;     ///< its kv head: batch entry and key/value head
  Count first_row = 0;   ///< its first row in the group of the kv head
  Count tile_begin = 0,
        n_tile_items = 0;     ///< where the query tile begins in the sequence of all work items, and its work items
  Count first = 0, last = 0;  ///< work items [first, last) of all that are this work range
  KeyRange whole;             ///< positions of the query tile
  KeyRange positions;         ///< those of this work range

  /// Positions of the work items [from, to) of all, as far as they lie in the query tile.
  TREE_ATTN_HOST_DEVICE KeyRange positions_of(Count from, Count to) const {
    const std::int64_t leaf = leaf_at(whole.begin) - tile_begin, begin = (leaf + from) * kLeafKeys,
                       end = (leaf + to) * kLeafKeys;
    return {begin > whole.begin ? begin : whole.begin, end < whole.end ? end : whole.end};
  }
};

/// Sums over a batch by one thread; WarpScan of equal_runs.cuh does the same by a warp.
struct SerialScan {
  /// of(0) + ... + of(n - 1)
  template <class Of>
  TREE_ATTN_HOST_DEVICE static Count sum(Count n, const Of& of) {
    Count sum = 0;
    for (Count i = 0; i < n; ++i) sum += of(i);
    return sum;
  }
  /// The entry that a work item lies in, of n entries with of(i) work items each.
  /// @param found that entry, or one before it
  /// @pre 0 < of(i), work_item < sum(n, of)
  template <class Of>
  TREE_ATTN_HOST_DEVICE static FoundEntry find(Count n, Count work_item, const Of& of, FoundEntry found = {}) {
    while (found.entry + 1 < n && work_item >= found.first + of(found.entry)) found.first += of(found.entry++);
    return found;
  }
};

/// The partition of the work of a launch.
class WorkPartition {
 public:
  WorkPartition() = default;
  /// @param log_rows rows of a query tile, as a power of two: a division takes twenty instructions before the first copy
  /// @param n_blocks of the grid; those that are more than there are work items stay idle
  /// @tparam Scan sums over the batch
  /// @pre at least one row, and at most kMostWorkItems work items
  template <class Params, class Scan = SerialScan>
  TREE_ATTN_HOST_DEVICE WorkPartition(const Params& params, int log_rows, Count n_blocks, Scan = {})
      : log_rows_(Count(log_rows)),
        tiles_per_kv_head_(((Count(params.group) - 1) >> log_rows_) + 1),
        tiles_per_entry_(Count(params.kv_heads) * tiles_per_kv_head_) {
    n_work_items_ = tiles_per_entry_ * Scan::sum(Count(params.batch), [&](Count i) { return work_items_of(params, i); });
    n_blocks_ = n_blocks < n_work_items_ ? n_blocks : n_work_items_;
    each_ = n_work_items_ / n_blocks_;
    rest_ = n_work_items_ - each_ * n_blocks_;
  }

  /// First work item of a block, and of those that have nothing to do the end. The first blocks are the ones with a work
  /// item more.
  TREE_ATTN_HOST_DEVICE Count begin_of(Count block) const {
    return block < n_blocks_ ? each_ * block + (block < rest_ ? block : rest_) : n_work_items_;
  }
  /// The block that takes a work item.
  TREE_ATTN_HOST_DEVICE Count block_of(Count work_item) const {
    const Count of_longer = rest_ * (each_ + 1);
    return work_item < of_longer ? work_item / (each_ + 1) : rest_ + (work_item - of_longer) / each_;
  }
  /// The query tile that a work item lies in, and of it the work items [work_item, end).
  /// @param from WorkRange::found of the work range before this one: a block that searched from the first entry each time
  /// would read the lengths of the batch as often as it has work ranges
  template <class Params, class Scan = SerialScan>
  TREE_ATTN_HOST_DEVICE WorkRange work_range_at(const Params& params, Count work_item, Count end, FoundEntry from = {},
                                                Scan = {}) const {
    WorkRange work_range;
    work_range.found = Scan::find(
        Count(params.batch), work_item, [&](Count entry) { return tiles_per_entry_ * work_items_of(params, entry); }, from);
    // The query tile in the batch entry.
    const auto [i, first] = work_range.found;
    work_range.n_tile_items = work_items_of(params, i);
    const Count s = (work_item - first) / work_range.n_tile_items, head = s / tiles_per_kv_head_;
    work_range.query_tile = i * tiles_per_entry_ + s;
    work_range.kv_head = i * Count(params.kv_heads) + head;
    work_range.first_row = (s - head * tiles_per_kv_head_) << log_rows_;
    work_range.tile_begin = first + s * work_range.n_tile_items;
    work_range.whole = params.leaves_by_entry(i);
    // What of it is asked for.
    work_range.first = work_item;
    work_range.last =
        work_range.tile_begin + work_range.n_tile_items < end ? work_range.tile_begin + work_range.n_tile_items : end;
    work_range.positions = work_range.positions_of(work_range.first, work_range.last);
    return work_range;
  }

 private:
  /// Work items of one query tile of a batch entry.
  template <class Params>
  TREE_ATTN_HOST_DEVICE static Count work_items_of(const Params& params, Count i) {
    return Count(leaves_of(params.leaves_by_entry(i)));
  }

  Count log_rows_ = 0, tiles_per_kv_head_ = 1, tiles_per_entry_ = 1, n_work_items_ = 0, n_blocks_ = 0, each_ = 0, rest_ = 0;
};

}  // namespace tree_attn
