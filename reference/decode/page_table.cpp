// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pages are counted before the first of them changes hands.
#include "reference/decode/page_table.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tree_attn {

PageTable::PageTable(const PageRule& rule, const AttentionShape& shape, const OwnedLeaves& leaves)
    : rule_(rule), leaves_(leaves), entries_(static_cast<std::size_t>(shape.batch)) {
  require(
      rule.n_pages >= 0 && rule.n_pages <= std::numeric_limits<std::int32_t>::max() && rule.window >= 0 && rule.sinks >= 0,
      "PageTable: ", rule.n_pages, " pages, a window of ", rule.window, " keys and ", rule.sinks,
      " sinks; 0 to 2^31 - 1 pages, and none is negative");
  require(rule.most_queries >= 1, "PageTable: steps of ", rule.most_queries, " queries; at least 1");
  n_users_.resize(static_cast<std::size_t>(rule.n_pages));
  reset(leaves);
}

void PageTable::reset(const OwnedLeaves& leaves) {
  leaves_ = leaves;
  n_sink_leaves_ = n_leaves(leaves.n_keys(rule_.sinks));
  // The first pages are taken first: an entry that is alone lies in one piece.
  free_.resize(n_users_.size());
  std::iota(free_.rbegin(), free_.rend(), 0);
  for (Entry& e : entries_) e = {.version = ++n_changes_};
}

KeyRange PageTable::given_back(std::int64_t entry) const {
  const std::int64_t end = of(entry).gone_end;
  if (end <= n_sink_leaves_) return {};
  return {leaves_.position(n_sink_leaves_ * kLeafKeys), leaves_.position(end * kLeafKeys - 1) + 1};
}

std::int32_t PageTable::take() {
  const std::int32_t page = free_.back();
  free_.pop_back();
  n_users(page) = 1;
  return page;
}

void PageTable::give_back(std::int64_t page) {
  if (page != kNone && --n_users(page) == 0) free_.push_back(static_cast<std::int32_t>(page));
}

PageTable::Plan PageTable::plan(std::int64_t entry, std::int64_t n, std::int64_t end) const {
  // The leaves that no row to come sees.
  const Entry& e = of(entry);
  Plan plan{n_leaves(n), n_leaves(end), 0, {}, false, n_sink_leaves_};
  if (rule_.window > 0)
    plan.gone_end = std::max(e.gone_end, leaves_.n_keys(first_seen(leaves_.position(end - 1) + 1)) / kLeafKeys);
  plan.given_back = {std::max(e.gone_end, n_sink_leaves_), std::min(plan.gone_end, plan.before)};

  // Count.
  const auto n_users_of = [&](std::int64_t leaf) { return n_users_[static_cast<std::size_t>(page(entry, leaf))]; };
  std::int64_t n_available = n_free(), n_needed = 0;
  for (std::int64_t i = plan.given_back.begin; i < plan.given_back.end; ++i) n_available += n_users_of(i) == 1;
  for (std::int64_t i = plan.before; i < plan.after; ++i) n_needed += plan.stays(i);
  const std::int64_t last = plan.before - 1;
  plan.copies = n / kLeafKeys < plan.before && plan.stays(last) && n_users_of(last) > 1;
  n_needed += plan.copies;
  require<std::out_of_range>(n_needed <= n_available, "KvCache::append: ", end - n, " more positions of batch entry ", entry,
                             " need ", n_needed, " pages, but ", n_available, " of ", rule_.n_pages, " are free");
  return plan;
}

void PageTable::check_room(std::int64_t entry, std::int64_t n, std::int64_t end) const {
  const auto after = static_cast<std::size_t>(plan(entry, n, end).after);
  std::vector<std::int32_t>& pages = of(entry).pages;
  if (after > pages.capacity()) pages.reserve(std::max(after, 2 * pages.capacity()));
}

PageTable::Copy PageTable::extend(std::int64_t entry, std::int64_t n, std::int64_t end) {
  if (end <= n) return {};
  const Plan plan = this->plan(entry, n, end);
  Entry& e = entries_[static_cast<std::size_t>(entry)];
  const auto page_of = [&](std::int64_t leaf) -> std::int32_t& { return e.pages[static_cast<std::size_t>(leaf)]; };
  e.pages.resize(static_cast<std::size_t>(plan.after), kNone);
  for (std::int64_t i = plan.given_back.begin; i < plan.given_back.end; ++i) give_back(std::exchange(page_of(i), kNone));
  e.gone_end = plan.gone_end;
  Copy copy;
  if (plan.copies) {
    std::int32_t& last = page_of(plan.before - 1);
    copy = {last, take(), n % kLeafKeys};
    give_back(std::exchange(last, static_cast<std::int32_t>(copy.to)));
  }
  for (std::int64_t i = plan.before; i < plan.after; ++i) {
    if (plan.stays(i)) page_of(i) = take();
  }
  if (plan.after > plan.before || plan.copies || !plan.given_back.empty()) e.version = ++n_changes_;
  return copy;
}

std::int64_t PageTable::checked_leaves(const char* function, std::int64_t entry, std::int64_t n) const {
  const std::int64_t n_kept = n_leaves(n);
  const bool has_room = n > 0 && leaves_.end_of_leaf(n - 1) != n;
  require<std::out_of_range>(!has_room || page(entry, n_kept - 1) != kNone, function, ": position ", n, " of batch entry ",
                             entry, " follows keys that were given back, which its window of ", rule_.window,
                             " keys did not reach");
  return n_kept;
}

void PageTable::cut(std::int64_t entry, std::int64_t n) {
  Entry& e = entries_[static_cast<std::size_t>(entry)];
  const std::int64_t n_kept = checked_leaves("KvCache::truncate", entry, n);
  for (std::int64_t i = n_kept; i < std::ssize(e.pages); ++i) give_back(page(entry, i));
  e.pages.resize(static_cast<std::size_t>(n_kept));
  e.gone_end = std::min(e.gone_end, n_kept);
  e.version = ++n_changes_;
}

void PageTable::share(std::int64_t from, std::int64_t to, std::int64_t n) {
  Entry& e = entries_[static_cast<std::size_t>(to)];
  const std::int64_t n_kept = checked_leaves("KvCache::share", from, n);
  e.pages.assign(of(from).pages.begin(), of(from).pages.begin() + n_kept);
  for (const std::int32_t page : e.pages) {
    if (page != kNone) ++n_users(page);
  }
  e.gone_end = std::min(of(from).gone_end, n_kept);
  e.version = ++n_changes_;
}

}  // namespace tree_attn
