// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Chunks that batch entries of a cache in pages have in common: one of them computes the chunk for all (section 5).
#pragma once

#include "reference/cpu/cpu_cache.hpp"
#include "reference/decode/page_table.hpp"
#include "reference/decode/step.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tree_attn {

/// Chunks of a step that entries share, because they begin with the same pages.
class SharedChunks {
 public:
  explicit SharedChunks(const CpuCache& cache) : cache_(cache) {}

  /// Returns whether entries may share chunks.
  bool are_possible() const { return cache_.pages() != nullptr && cache_.shape().batch > 1; }
  /// Finds the rows at which two entries part that begin with the same pages. Chunks end there.
  void find_cuts(const Step& step) {
    cuts_.clear();
    const OwnedLeaves& leaves = cache_.leaves();
    for (std::size_t i = 1; i < step.lengths.size() && are_possible(); ++i) {
      const std::int64_t n = leaves.n_keys(step.lengths[i]), entry = static_cast<std::int64_t>(i);
      std::int64_t a = 0;  // where the entry parts from all before it, which share no more than a prefix with it
      for (std::size_t j = 0; j < i && n > 0 && cache_.pages()->is_shared(entry, 0); ++j) {
        const std::int64_t of_both = std::min(n, leaves.n_keys(step.lengths[j]));
        const auto share_row = [&](std::int64_t at) {
          const std::int64_t row = cache_.pages()->row(entry, at);
          return row != PageTable::kNone && row == cache_.pages()->row(static_cast<std::int64_t>(j), at);
        };
        while (a < of_both && leaves.end_of_leaf(a) <= of_both && share_row(a)) a = leaves.end_of_leaf(a);
      }
      if (a > 0) cuts_.push_back(a);
    }
    std::sort(cuts_.begin(), cuts_.end());
  }
  /// The first cut after a row.
  std::int64_t next_cut(std::int64_t a) const {
    const auto next = std::upper_bound(cuts_.begin(), cuts_.end(), a);
    return next == cuts_.end() ? kOpenEnd : *next;
  }
  /// Finds the first of the entries that share a chunk, which computes it for all of them. With a mask none share.
  /// @param rows_of the rows of a chunk that an entry sees
  template <class RowsOf>
  void find(const Step& step, std::int64_t n_chunks, const RowsOf& rows_of) {
    first_.clear(), n_chunks_ = n_chunks;
    const std::int64_t b = cache_.shape().batch;
    for (std::int64_t i = 0; i < b && are_possible() && step.mask.data == nullptr; ++i) {
      for (std::int64_t c = 0; c < n_chunks; ++c) {
        const KeyRange rows = rows_of(i, c);
        std::int64_t first = 0;
        if (rows.empty() || !cache_.pages()->is_shared(i, rows.begin)) first = i;
        while (first < i && !(rows == rows_of(first, c) && share(step, first, i, rows))) ++first;
        first_.push_back(first);
      }
    }
  }
  /// The entry that computes a chunk for this one.
  std::int64_t first_of(std::int64_t entry, std::int64_t c) const {
    return first_.empty() ? entry : first_[static_cast<std::size_t>(entry * n_chunks_ + c)];
  }
  /// Calls use(head) for a head of an entry, and of those for which it computes a chunk.
  template <class Use>
  void for_each(std::int64_t head, std::int64_t c, const Use& use) const {
    const AttentionShape& shape = cache_.shape();
    const std::int64_t entry = head / shape.kv_heads;
    use(head);
    for (std::int64_t i = entry + 1; i < shape.batch && !first_.empty(); ++i) {
      if (first_of(i, c) == entry) use(i * shape.kv_heads + head % shape.kv_heads);
    }
  }

 private:
  /// Tests whether two entries have these rows in the same pages, and all of their queries see all keys of them.
  bool share(const Step& step, std::int64_t i, std::int64_t j, KeyRange rows) const {
    const Seen a = step.seen_by_all(i), b = step.seen_by_all(j);
    for (std::int64_t row = rows.begin; row < rows.end; row += kLeafKeys) {
      const std::int64_t first = cache_.leaves().position(row), last = first + std::min(kLeafKeys, rows.end - row) - 1;
      const auto sees = [&](const Seen& s) { return s.contains(last) && (first >= s.begin || last < s.sinks); };
      if (cache_.pages()->row(i, row) != cache_.pages()->row(j, row) || !sees(a) || !sees(b)) return false;
    }
    return !rows.empty();
  }

  const CpuCache& cache_;
  std::vector<std::int64_t> cuts_;   ///< rows at which entries part, ascending
  std::vector<std::int64_t> first_;  ///< [b][chunks] the entry that computes the chunk; empty: each its own
  std::int64_t n_chunks_ = 0;
};

}  // namespace tree_attn
