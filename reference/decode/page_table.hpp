// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Table of the pages of a pool that hold the leaves of each batch entry (section 5.3).
///
/// A page has 64 rows of every key/value head. A leaf is a set of positions wherever its rows lie, so no bit depends on the
/// table.
#pragma once

#include "reference/state/owned_leaves.hpp"
#include "reference/tensor/shape.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tree_attn {

/// The pool of a cache in pages, and what its steps will see.
struct PageRule {
  std::int64_t n_pages = 0;  ///< for all batch entries
  std::int64_t window =
      0;  ///< most keys of a query's sliding window, SeenRule::window; 0: no page is given back while it is used
  std::int64_t sinks = 0;         ///< most keys that it sees before its window
  std::int64_t most_queries = 1;  ///< l of the steps whose windows keep their pages; a longer one may see too few
  bool operator==(const PageRule&) const = default;
};

/// A pool of pages, and a list of pages for each batch entry.
///
/// Entries may share a page, which is free again when none of them has it. With a sliding window, a page of which no row to
/// come sees a key is given back: for l queries and a last row at position t those are the leaves in
///
///     [sinks, t + 1 - (l - 1) - window),
///
/// so an entry keeps at most ceil(sinks / 64) + (window + l) / 64 + 2 pages, however long it is.
class PageTable {
 public:
  /// The page of a leaf that has been given back.
  static constexpr std::int64_t kNone = -1;

  /// @param leaves of the cache, whose rows are those of an entry
  /// @throws std::invalid_argument for a negative number
  PageTable(const PageRule& rule, const AttentionShape& shape, const OwnedLeaves& leaves);

  const PageRule& rule() const { return rule_; }
  /// Rows of the pool for each key/value head: the rows of page p are 64 p, ...
  std::int64_t n_rows() const { return rule_.n_pages * kLeafKeys; }
  /// Pages that no entry has.
  std::int64_t n_free() const { return std::ssize(free_); }
  /// The page with leaf i of an entry, in the order of storage; kNone if there is none any more.
  std::int64_t page(std::int64_t entry, std::int64_t i) const { return of(entry).pages[static_cast<std::size_t>(i)]; }
  /// The row of the pool that holds row a of an entry; kNone if its page has been given back.
  std::int64_t row(std::int64_t entry, std::int64_t a) const {
    const std::int64_t on = page(entry, a / kLeafKeys);
    return on == kNone ? kNone : on * kLeafKeys + a % kLeafKeys;
  }
  /// Tests whether another entry also has the page of row a.
  bool is_shared(std::int64_t entry, std::int64_t a) const {
    const std::int64_t on = page(entry, a / kLeafKeys);
    return on != kNone && n_users_[static_cast<std::size_t>(on)] > 1;
  }
  /// The positions of an entry that lie between the first and the last page that it has given back.
  KeyRange given_back(std::int64_t entry) const;
  /// The first position in the window of any row to come, after `end` positions.
  std::int64_t first_seen(std::int64_t end) const { return end - (rule_.most_queries - 1) - rule_.window; }
  /// Another number after every change of an entry's list.
  std::int64_t version(std::int64_t entry) const { return of(entry).version; }

  /// The first n rows of a page, to be copied to another one.
  struct Copy {
    std::int64_t from = kNone, to = kNone, n = 0;
  };
  /// Throws what extend() would throw, and takes the memory for its list: extend() then throws nothing, so that pages that
  /// it gives back are not missed.
  void check_room(std::int64_t entry, std::int64_t n, std::int64_t end) const;
  /// Takes the pages for the rows [n, end) of an entry that has n, and gives those back that no row to come sees. If its
  /// last page has room and is shared, the entry gets one of its own.
  /// @returns what must be copied before a row is written @throws std::out_of_range if there are too few pages; nothing
  /// changes then
  Copy extend(std::int64_t entry, std::int64_t n, std::int64_t end);
  /// Gives the pages after the first n rows of an entry back. @throws std::out_of_range if row n would follow rows in a page
  /// that has been given back
  void cut(std::int64_t entry, std::int64_t n);
  /// Takes all pages back, for the rows of other leaves.
  void reset(const OwnedLeaves& leaves);
  /// Lets an entry without rows begin with the first n rows of another one. @throws as cut()
  void share(std::int64_t from, std::int64_t to, std::int64_t n);

 private:
  struct Entry {
    mutable std::vector<std::int32_t> pages{};  ///< by leaf, in the order of storage; with room for more
    std::int64_t gone_end = 0;                  ///< leaves without a page are [n_sink_leaves_, gone_end)
    std::int64_t version = 0;
  };
  const Entry& of(std::int64_t entry) const { return entries_[static_cast<std::size_t>(entry)]; }
  std::int64_t n_leaves(std::int64_t n_rows) const { return (n_rows + kLeafKeys - 1) / kLeafKeys; }
  /// Changes that extend() will make.
  struct Plan {
    std::int64_t before, after, gone_end;  ///< leaves now and then, and where those begin that keep a page
    KeyRange given_back;                   ///< leaves
    bool copies;                           ///< whether the last page is shared and has room
    std::int64_t n_sink_leaves;
    bool stays(std::int64_t leaf) const { return leaf < n_sink_leaves || leaf >= gone_end; }
  };
  Plan plan(std::int64_t entry, std::int64_t n, std::int64_t end) const;
  /// Number of leaves of n rows, the last of which has a page if it has room.
  std::int64_t checked_leaves(const char* function, std::int64_t entry, std::int64_t n) const;
  std::int32_t& n_users(std::int64_t page) { return n_users_[static_cast<std::size_t>(page)]; }
  std::int32_t take();
  void give_back(std::int64_t page);

  PageRule rule_;
  OwnedLeaves leaves_;
  std::int64_t n_sink_leaves_, n_changes_ = 0;
  std::vector<std::int32_t> free_;     ///< the next one last
  std::vector<std::int32_t> n_users_;  ///< [n_pages] entries that have it
  std::vector<Entry> entries_;         ///< [b]
};

}  // namespace tree_attn
