// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache in pages beside a dense one and a model of its pages: any operations, the same bits.
#pragma once

#include "reference/decode/backend.hpp"
#include "reference/decode/page_table.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensors.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::test {

/// Applies operations to two caches, with pages and without, and to a model, in which a page is a number and a row knows its
/// own. A difference from the model is a std::logic_error.
class PagedPair {
 public:
  PagedPair(const Backend& backend, AttentionShape shape, const OwnedLeaves& leaves, const PageRule& rule)
      : paged(backend.make_cache(shape, leaves, 1)),
        rule_(rule),
        model_{std::vector<Sequence>(static_cast<std::size_t>(shape.batch)), 0} {
    const bool values_in_keys = std::exchange(shape.values_in_keys, false);  // the dense cache stores values apart
    dense = backend.make_cache(shape, leaves, 1);
    if (dense->shape().dtype == DType::F8_E4M3) {  // for all entries the same, so that they can share rows
      KvScales scales;
      for (std::int64_t i = 0; i < shape.batch * shape.kv_heads; ++i)
        scales.k.push_back(0.3f + static_cast<float>(i % shape.kv_heads)), scales.v.push_back(1 / scales.k.back());
      if (values_in_keys) scales.v = scales.k;
      dense->set_scales(scales), paged->set_scales(scales);
    }
    paged->use_pages(rule);
    steps_of_dense_ = dense->open(0.25), steps_of_paged_ = paged->open(0.25);
  }

  /// Bytes of keys and values that the last step has read.
  std::int64_t bytes_of_dense() const { return steps_of_dense_->bytes_read(); }
  std::int64_t bytes_of_paged() const { return steps_of_paged_->bytes_read(); }
  /// Keys of a sequence, over all ranks.
  std::int64_t length(std::int64_t entry) const { return std::ssize(model_.of(entry).keys); }
  int n_refused = 0;   ///< times that pages were too few
  int n_copied = 0;    ///< pages
  int n_steps = 0;     ///< steps that were compared
  int n_saved = 0;     ///< those of them that have read less than the dense cache
  int n_together = 0;  ///< those of them in which a device has read a shared prefix once
  int n_blind = 0;     ///< steps that would have seen keys that were given back

  /// The next n positions of a sequence, of which the caches take those in their range.
  void append(std::int64_t entry, std::int64_t n) {
    Model after = model_;
    Sequence& sequence = after.of(entry);
    const std::int64_t before = std::ssize(sequence.keys), first = rows(before), n_rows = rows(before + n) - first;
    // What no row to come sees is given back before a page is taken.
    for (std::int64_t i = 0; i < n; ++i) sequence.keys.push_back(n_keys_++);
    if (n_rows > 0) {
      const std::int64_t last = leaves().position(first + n_rows - 1);
      for (std::int64_t a = 0; a < first + n_rows; ++a) {
        const std::int64_t leaf = leaves().position(a) / kLeafKeys;
        if (is_past(leaf, last)) after.put(entry, leaf, kGone);
      }
      for (std::int64_t a = first; a < first + n_rows; ++a) {
        const std::int64_t leaf = leaves().position(a) / kLeafKeys;
        const auto at = sequence.pages.find(leaf);
        if (at == sequence.pages.end() || (at->second != kGone && after.users(at->second) > 1)) {
          n_copied += at != sequence.pages.end();
          after.put(entry, leaf, after.next++);
        }
      }
    }
    const bool fits = std::ssize(after.in_use()) <= rule_.n_pages;
    const Rows rows_of(*this, std::span(sequence.keys).subspan(static_cast<std::size_t>(before)), before, n_rows);
    if (!happens(fits, "pages were too few", [&] { paged->append(entry, rows_of.k.view(), rows_of.v_of(*paged)); })) {
      ++n_refused;
      return check_pages();
    }
    dense->append(entry, rows_of.k.view(), rows_of.v_of(*dense));
    model_ = std::move(after);
    check_pages();
  }

  void truncate(std::int64_t entry, std::int64_t n) {
    if (!happens(may_follow(entry, n), kFollowsGone, [&] { paged->truncate(entry, rows(n)); })) return;
    dense->truncate(entry, rows(n));
    cut(entry, n);
    check_pages();
  }

  /// Removes all rows, for those of other leaves.
  void reset(const OwnedLeaves& other) {
    for (KvCache* cache : {dense.get(), paged.get()}) cache->reset(other);
    for (Sequence& sequence : model_.sequences) sequence = {};
    check_pages();
  }

  /// Ends the sequence of `to`, and begins it with n keys of another one.
  void share(std::int64_t from, std::int64_t to, std::int64_t n) {
    if (from == to) return;
    if (length(to) > 0) truncate(to, 0);
    if (!happens(may_follow(from, n), kFollowsGone, [&] { paged->share(from, to, rows(n)); })) return;
    model_.of(to) = model_.of(from);
    cut(to, n);
    const Rows rows_of(*this, model_.of(to).keys, 0, rows(n));
    dense->append(to, rows_of.k.view(), rows_of.v_of(*dense));
    check_pages();
  }

  /// A step with other queries has the same bits in both caches, and is refused where it sees what was given back.
  void check(const SeenRule& rule) {
    const AttentionShape& s = dense->shape();
    const Tensor q = normal_tensor(random_, {s.batch, s.heads, rule_.most_queries, s.head_dim}, s.dtype);
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < s.batch; ++i) lengths.push_back(length(i));
    const Step step{q.view(), lengths, rule};
    bool sees_all = true;
    for (std::int64_t i = 0; i < s.batch; ++i) {
      for (const auto& [leaf, page] : model_.of(i).pages)
        sees_all = sees_all && (page != kGone || !step.seen_by_any(i).touches(first_of(leaf), (leaf + 1) * kLeafKeys));
    }
    try {
      const Forest<float>& got = steps_of_paged_->decode(step).host();
      expect(sees_all, "a step sees what was given back");
      expect(same_bits(got, steps_of_dense_->decode(step).host()), "other bits than the dense cache");
      ++n_steps, n_saved += bytes_of_paged() < bytes_of_dense();
      n_together += steps_of_paged_->describe().find("once for all entries") != std::string::npos;
    } catch (const std::invalid_argument& error) {
      expect(!sees_all, error.what());
      ++n_blind;
    }
  }

  std::unique_ptr<KvCache> dense, paged;

 private:
  static constexpr int kGone = -1;
  static constexpr const char* kFollowsGone = "a key would follow keys that were given back";

  struct Sequence {
    std::vector<std::uint32_t> keys{};    ///< [length] of which key and value are a function
    std::map<std::int64_t, int> pages{};  ///< of each leaf in the range
  };
  struct Model {
    std::vector<Sequence> sequences;
    int next;  ///< page

    Sequence& of(std::int64_t entry) { return sequences[static_cast<std::size_t>(entry)]; }
    const Sequence& of(std::int64_t entry) const { return sequences[static_cast<std::size_t>(entry)]; }
    std::int64_t users(int page) const {
      return std::ranges::count_if(sequences, [&](const Sequence& s) {
        return std::ranges::any_of(s.pages, [&](const auto& each) { return each.second == page; });
      });
    }
    std::set<int> in_use() const {
      std::set<int> pages;
      for (const Sequence& s : sequences) {
        for (const auto& [leaf, page] : s.pages) pages.insert(page);
      }
      pages.erase(kGone);
      return pages;
    }
    void put(std::int64_t entry, std::int64_t leaf, int page) { of(entry).pages[leaf] = page; }
  };
  /// The rows of the range among some keys of a sequence, of which the first is at a position.
  struct Rows {
    Tensor k, v;
    TensorView v_of(const KvCache& cache) const {
      return cache.shape().values_in_keys ? k.view().components(v.shape[3]) : v.view();
    }
    Rows(const PagedPair& pair, std::span<const std::uint32_t> keys, std::int64_t begin, std::int64_t n_rows)
        : k({}, {1, pair.dense->shape().kv_heads, n_rows, pair.dense->shape().head_dim}, pair.dense->shape().dtype),
          v({}, {1, pair.dense->shape().kv_heads, n_rows, pair.dense->shape().value_dim}, pair.dense->shape().value_dtype) {
      for (Tensor* tensor : {&k, &v}) {
        tensor->bytes.resize(static_cast<std::size_t>(n_elements(tensor->shape)) * bytes_of(tensor->dtype));
        for (std::int64_t h = 0; h < tensor->shape[1]; ++h) {
          for (std::int64_t a = 0; a < n_rows; ++a) {
            const std::int64_t position = pair.leaves().position(pair.rows(begin) + a);
            const bool is_apart = tensor == &v && !pair.paged->shape().values_in_keys;
            std::uint32_t x = keys[static_cast<std::size_t>(position - begin)] * 2654435761u + is_apart + 2 * h;
            for (std::int64_t c = 0; c < tensor->shape[3]; ++c) {
              x = (x ^ x >> 15) * 2246822519u + 374761393u;
              tensor->set(0, h, a, c, static_cast<float>(x >> 8) * 0x1p-22f - 2);
            }
          }
        }
      }
    }
  };

  static void expect(bool condition, const std::string& what) {
    if (!condition) throw std::logic_error("pages: " + what);
  }
  /// Calls an operation on the pages, which is to be refused for a reason unless it may happen. @returns may
  template <class Operation>
  static bool happens(bool may, const std::string& reason, const Operation& operation) {
    try {
      operation();
      expect(may, reason + ", and it was not refused");
    } catch (const std::out_of_range& error) {
      expect(!may && std::string(error.what()).starts_with("KvCache::"), error.what());
    }
    return may;
  }
  const OwnedLeaves& leaves() const { return dense->leaves(); }
  std::int64_t rows(std::int64_t n) const { return leaves().n_keys(n); }
  /// The first position of a leaf that is in the range.
  std::int64_t first_of(std::int64_t leaf) const {
    return leaves().order() == LeafOrder::kDealt ? leaf * kLeafKeys : std::max(leaf * kLeafKeys, leaves().range().begin);
  }
  void cut(std::int64_t entry, std::int64_t n) {
    model_.of(entry).keys.resize(static_cast<std::size_t>(n));
    std::erase_if(model_.of(entry).pages, [&](const auto& each) { return first_of(each.first) >= n; });
  }
  /// Tests whether no query of a later step sees a key of a leaf, once the cache holds the key of a position.
  bool is_past(std::int64_t leaf, std::int64_t position) const {
    if (rule_.window == 0 || first_of(leaf) < rule_.sinks) return false;
    return (leaf + 1) * kLeafKeys <= position + 1 - (rule_.most_queries - 1) - rule_.window;
  }
  /// Tests whether row n can be appended after the rows before it: they are in pages, or fill theirs.
  bool may_follow(std::int64_t entry, std::int64_t n) const {
    const std::int64_t n_rows = rows(n);
    if (n_rows == 0 || leaves().end_of_leaf(n_rows - 1) == n_rows) return true;
    return model_.of(entry).pages.at(leaves().position(n_rows - 1) / kLeafKeys) != kGone;
  }
  void check_pages() const {
    expect(paged->pages()->n_free() == rule_.n_pages - std::ssize(model_.in_use()),
           std::to_string(paged->pages()->n_free()) + " are free of " + std::to_string(rule_.n_pages) + ", " +
               std::to_string(model_.in_use().size()) + " are in use");
    expect(std::ranges::equal(paged->lengths(), dense->lengths()), "other lengths");
  }

  PageRule rule_;
  Model model_;
  std::uint32_t n_keys_ = 0;
  std::mt19937 random_{7};
  std::unique_ptr<DecodeSession> steps_of_dense_, steps_of_paged_;
};

/// Random operations on a pair. @param shards to which it is reset @param draw a number from 0 to n
template <class Draw>
void operate(PagedPair& pair, int n_operations, std::int64_t most_keys, const SeenRule& rule,
             std::span<const OwnedLeaves> shards, const Draw& draw) {
  const std::int64_t batch = pair.dense->shape().batch;
  for (int i = 0; i < n_operations; ++i) {
    const std::int64_t entry = draw(batch - 1), length = pair.length(entry);
    switch (draw(7)) {
      case 0: pair.truncate(entry, draw(1) == 0 ? 0 : draw(length)); break;
      case 1:
        if (draw(3) == 0) {
          pair.reset(shards[static_cast<std::size_t>(draw(std::ssize(shards) - 1))]);
          break;
        }
        // A row that may wait on the host is shared right after it was appended.
        if (const std::int64_t to = draw(batch - 1); to != entry) {
          pair.truncate(to, 0), pair.append(entry, std::min<std::int64_t>(most_keys - length, 1));
          pair.share(entry, to, pair.length(entry)), pair.append(to, std::min<std::int64_t>(most_keys - pair.length(to), 1));
        }
        break;
      case 2: pair.share(entry, draw(batch - 1), draw(2) == 0 ? length : draw(length)); break;
      case 3: pair.append(entry, std::min(most_keys - length, draw(300))); break;
      default: pair.append(entry, std::min(most_keys - length, draw(70)));
    }
    if (draw(2) == 0) pair.check(rule);
  }
  pair.check(rule);
}

}  // namespace tree_attn::test
