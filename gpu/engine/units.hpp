// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Units of work: aligned subtrees of 2^c leaves, and their division among the thread groups of a device, whatever
/// the lengths in a batch (section 5.3: shards of equal size).
///
/// A unit is an aligned subtree of 2^c leaves over slots; a subtree of fewer leaves that covers an end of a shard is a unit
/// of its own. A work item is a unit and a query tile. Work items are numbered query tile after query tile, and in each from
/// left to right. One taker, a warp, a team or a block, decodes a work item and leaves one state a row; which one changes no
/// bit. The numbers, and c, follow from the lengths, so every block works them out for itself. Hosts compile it too: plans
/// and figures ask it.
#pragma once

#include "gpu/engine/params.hpp"

namespace tree_attn {

/// A batch entry, and the work items of those before it.
struct FoundEntry {
  Count entry = 0, first = 0;
};

/// Sums over a batch by one thread; WarpScan of unit_forest.cuh does the same by a warp.
struct SerialScan {
  /// of(0) + ... + of(n - 1)
  template <class Of>
  TREE_ATTN_HOST_DEVICE static Count sum(Count n, const Of& of) {
    Count sum = 0;
    for (Count i = 0; i < n; ++i) sum += of(i);
    return sum;
  }
  /// The entry that a work item lies in, of n entries with of(i) work items each, and the work items before it.
  /// @param found that entry, or one before it
  /// @pre work_item < sum(n, of)
  template <class Of>
  TREE_ATTN_HOST_DEVICE static FoundEntry find(Count n, Count work_item, const Of& of, FoundEntry found = {}) {
    while (found.entry + 1 < n && work_item >= found.first + of(found.entry)) found.first += of(found.entry++);
    return found;
  }
};

/// Ends of the units of a shard: each is the largest aligned subtree of at most 2^log leaves that has room there.
struct UnitEnds {
  Count end = 0;  ///< of the whole leaves, in slots
  int log = 0;

  /// The end of a unit that begins at a slot. The leaf in which a shard ends is one of its own.
  TREE_ATTN_HOST_DEVICE Count of(Count begin) const {
    Count size = Count{1} << log;
    while (size > 1 && ((begin & (size - 1)) != 0 || begin + size > end)) size >>= 1;
    return begin + size;
  }
};

/// The units of a shard of one sequence that have leaves. Slots are counted from the first of the tree.
class Units {
 public:
  Units() = default;
  /// @param shard positions in the tree @param used its slots with leaves @param log c
  /// @param is_whole whether one state of all is wanted: then units at the ends are not cut
  TREE_ATTN_HOST_DEVICE Units(KeyRange shard, const UsedSlots& used, int log, bool is_whole) : log_(log) {
    const std::int64_t mask = (std::int64_t{1} << log) - 1;
    begin_ = leaf_at(shard.begin), end_ = leaf_at(shard.end);
    if (is_whole) begin_ &= ~mask, end_ = (leaf_at(shard.end + kLeafKeys - 1) + mask) & ~mask;
    head_ = (begin_ + mask) & ~mask, tail_ = end_ & ~mask;
    if (head_ > tail_) head_ = tail_ = end_;
    n_head_ = Count(n_subtrees(begin_, head_));
    if (used.size() == 0) return;
    // Units before the gap, and those after it that none of these is.
    first_ = index_of(used.first);
    n_first_ = index_of(std::int64_t{used.gap} - 1) - first_ + 1;
    second_ = first_ + n_first_;
    if (used.after == used.end) return;
    const Count after = index_of(used.after);
    second_ = after > second_ ? after : second_;
    const Count end = index_of(std::int64_t{used.end} - 1) + 1;
    n_second_ = end > second_ ? end - second_ : 0;
  }

  /// c, and the units with leaves, which are counted from left to right.
  TREE_ATTN_HOST_DEVICE int log() const { return log_; }
  TREE_ATTN_HOST_DEVICE Count size() const { return n_first_ + n_second_; }
  /// Units before the gap: those of a run on one side of it touch.
  TREE_ATTN_HOST_DEVICE Count n_first() const { return n_first_; }
  /// The slot where unit i begins, and where a unit that begins at a slot ends.
  TREE_ATTN_HOST_DEVICE std::int64_t begin_of(Count i) const {
    return begin_at(i < n_first_ ? first_ + i : second_ + (i - n_first_));
  }
  TREE_ATTN_HOST_DEVICE std::int64_t end_of(std::int64_t begin) const { return ends().of(Count(begin)); }
  TREE_ATTN_HOST_DEVICE UnitEnds ends() const { return {Count(end_), log_}; }
  /// The number of the unit of a slot, or size() or more if it has no leaves.
  TREE_ATTN_HOST_DEVICE Count number_of(std::int64_t slot) const {
    if (slot < begin_ || slot > end_) return ~Count{0};
    const Count i = index_of(slot);
    if (i < second_) return i - first_ < n_first_ ? i - first_ : ~Count{0};
    return n_first_ + (i - second_);
  }

 private:
  /// Units of the shard from the left, whether they have leaves or not: the one of a slot, and where one begins.
  TREE_ATTN_HOST_DEVICE Count index_of(std::int64_t slot) const {
    if (slot >= head_ && slot < tail_) return n_head_ + Count((slot - head_) >> log_);
    Count i = slot < head_ ? 0 : n_head_ + Count((tail_ - head_) >> log_);
    for (std::int64_t at = slot < head_ ? begin_ : tail_, end = end_of(at); end <= slot; ++i) at = end, end = end_of(at);
    return i;
  }
  TREE_ATTN_HOST_DEVICE std::int64_t begin_at(Count i) const {
    const Count n_full = Count((tail_ - head_) >> log_);
    if (i >= n_head_ && i - n_head_ <= n_full) return head_ + (std::int64_t{i - n_head_} << log_);
    std::int64_t at = i < n_head_ ? begin_ : tail_;
    for (Count n = i < n_head_ ? i : i - n_head_ - n_full; n > 0; --n) at = end_of(at);
    return at;
  }

  int log_ = 0;
  std::int64_t begin_ = 0, end_ = 0;  ///< of the whole leaves
  std::int64_t head_ = 0, tail_ = 0;  ///< full units are those of [head, tail)
  Count n_head_ = 0;                  ///< units before them
  Count first_ = 0, n_first_ = 0, second_ = 0, n_second_ = 0;
};

/// The rule that c follows from, beside the lengths.
struct UnitRule {
  int least_log = 0;     ///< c, at least: so that states are at most an eighth of the keys and values that lie in memory
  Count most_items = 0;  ///< work items, beside those of the ends: four for each taker
  Count n_takers = 1;    ///< runs that they are divided into
  Count n_blocks = 1;    ///< work items at least, if there are so many leaves: one for each cluster
  bool is_whole = false;

  /// The smallest c that keeps to both. Of few large units some takers have one more than others: if that is more than an
  /// eighth of a run, units are smaller, up to four times as many.
  /// @param n_tiles query tiles of a batch entry @param n_slots of all entries that have leaves
  TREE_ATTN_HOST_DEVICE int log_of(Count n_tiles, Count n_slots) const {
    const auto n = [=](int log) { return std::uint64_t{n_tiles} * (n_slots >> log); };
    int log = least_log;
    while (log < 31 && n(log) > most_items) ++log;
    while (log > least_log && are_uneven(Count(n(log)))) --log;
    while (log > 0 && n(log) < n_blocks) --log;
    return log;
  }

 private:
  TREE_ATTN_HOST_DEVICE bool are_uneven(Count n) const { return (n + n_takers - 1) / n_takers * n_takers > n + n / 8; }
};

/// Neighbouring work items of one query tile, on one side of a gap.
struct UnitRun {
  FoundEntry found;                 ///< its batch entry
  Count kv_head = 0;                ///< its kv head: batch entry and key/value head
  Count first_row = 0;              ///< the first row of the query tile in the group of the kv head
  Count first = 0, last = 0;        ///< work items [first, last) of all
  std::int64_t begin = 0, end = 0;  ///< slots
  Units units;                      ///< of the sequence
};

/// The work items of a step.
class Division {
 public:
  Division() = default;
  /// @param log_rows rows of a query tile, as a power of two: a division takes twenty instructions before the first copy
  /// @param log c, if it is known
  template <class Params>
  TREE_ATTN_HOST_DEVICE Division(const Params& params, const UnitRule& rule, int log_rows, int log)
      : is_whole_(rule.is_whole),
        log_(log),
        log_rows_(Count(log_rows)),
        tiles_per_kv_head_(((Count(params.group) - 1) >> log_rows_) + 1),
        tiles_per_entry_(Count(params.kv_heads) * tiles_per_kv_head_) {}
  /// @tparam Scan sums over the batch
  template <class Params, class Scan = SerialScan>
  TREE_ATTN_HOST_DEVICE Division(const Params& params, const UnitRule& rule, int log_rows, Scan = {})
      : Division(params, rule, log_rows, 0) {
    log_ =
        rule.log_of(tiles_per_entry_, Scan::sum(Count(params.batch), [&](Count i) { return params.used_slots(i).size(); }));
  }

  TREE_ATTN_HOST_DEVICE int log() const { return log_; }
  TREE_ATTN_HOST_DEVICE Count tiles_per_kv_head() const { return tiles_per_kv_head_; }
  TREE_ATTN_HOST_DEVICE Count log_rows() const { return log_rows_; }
  template <class Params>
  TREE_ATTN_HOST_DEVICE Units units(const Params& params, Count entry) const {
    return Units(params.shard_of_entry(entry), params.used_slots(entry), log_, is_whole_);
  }
  /// Work items of the first n entries.
  template <class Params, class Scan = SerialScan>
  TREE_ATTN_HOST_DEVICE Count n_items(const Params& params, Count n, Scan = {}) const {
    return Scan::sum(n, [&](Count i) { return tiles_per_entry_ * units(params, i).size(); });
  }
  /// The work items of [item, end) that lie in the query tile of the first of them, on its side of the gap.
  /// @param from UnitRun::found of the run before this one: a search from the first entry each time would read the lengths
  /// of the batch as often as there are runs
  template <class Params, class Scan = SerialScan>
  TREE_ATTN_HOST_DEVICE UnitRun run_at(const Params& params, Count item, Count end, FoundEntry from = {}, Scan = {}) const {
    UnitRun run;
    run.found = Scan::find(
        Count(params.batch), item, [&](Count entry) { return tiles_per_entry_ * units(params, entry).size(); }, from);
    const auto [entry, first] = run.found;
    run.units = units(params, entry);
    const Count size = run.units.size(), tile = (item - first) / size, head = tile / tiles_per_kv_head_,
                tile_begin = first + tile * size;
    run.kv_head = entry * Count(params.kv_heads) + head;
    run.first_row = (tile - head * tiles_per_kv_head_) << log_rows_;
    run.first = item;
    const Count unit = item - tile_begin, n_side = unit < run.units.n_first() ? run.units.n_first() : size;
    run.last = tile_begin + n_side < end ? tile_begin + n_side : end;
    run.begin = run.units.begin_of(unit);
    run.end = run.units.end_of(run.units.begin_of(run.last - 1 - tile_begin));
    return run;
  }

 private:
  bool is_whole_ = false;
  int log_ = 0;
  Count log_rows_ = 0, tiles_per_kv_head_ = 1, tiles_per_entry_ = 1;
};

/// Equal runs of n work items for so many takers, up to one work item: the first ones are longer.
struct EqualRuns {
  Count n_items = 0, n_takers = 1;
  TREE_ATTN_HOST_DEVICE Count begin_of(Count taker) const {
    const Count each = n_items / n_takers, rest = n_items - each * n_takers;
    return each * taker + (taker < rest ? taker : rest);
  }
  /// Taker i of a block. Neighbours are in one block; but where some have nothing to take, every block has as many as
  /// another.
  TREE_ATTN_HOST_DEVICE Count taker(Count block, Count i, Count n_blocks) const {
    return n_items < n_takers ? i * n_blocks + block : block * (n_takers / n_blocks) + i;
  }
};

}  // namespace tree_attn
