// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pages with which all sequences of a batch begin, read once for the queries of all of them (section 5, Thm. 1).
///
/// A kernel takes the shared leaves as the keys of one sequence, and the queries of all sequences as its rows: query h of
/// entry i is query i of head h. A second one takes the leaves that remain to each entry. Their forests are those of two
/// neighbouring ranges, so their join is the forest of both, merge for merge.
#pragma once

#include "gpu/backend/cache.hpp"
#include "gpu/backend/leaf_lists.hpp"
#include "gpu/backend/workspace.hpp"
#include "gpu/engine/launch.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Bytes of keys and values that a shared prefix must save in a step: what memory delivers while its two launches begin, at
/// 3 TB/s and 3 us each. Assumed, not measured. Tests set it to 0.
inline std::int64_t least_bytes_saved = 16 << 20;

/// The shared leaves of a batch: none at first.
class SharedPrefix {
 public:
  /// Counts the leaves of the shard with which all entries begin, in the same pages, and of which all queries see all keys;
  /// none in the dealt order, under a sliding window, where keys have scales, or if they would save less than
  /// least_bytes_saved: a read serves up to 32 rows on tensor cores, and one on others, where nothing is saved.
  /// @returns whether it is another number than before, or there are leaves, and another number of queries: then plan() is
  /// next
  bool count(const DeviceCache& cache, const Step& step);
  /// Sets the number of leaves to none. @returns as count()
  bool clear();

  std::int64_t n_leaves() const { return n_leaves_; }
  /// Rest of a range that begins with the leaves.
  KeyRange rest_of(KeyRange range) const { return {range.begin + n_leaves_ * kLeafKeys, range.end}; }

  /// Plans for a range, if there are leaves. @param rest the parameters of what remains, but for its lists
  /// @throws DeviceError
  void plan(const DeviceCache& cache, KeyRange range, const ListedParams& rest);
  /// Memory for the states of the rest; null without leaves.
  float* rest() const { return n_leaves_ > 0 ? rest_.data() : nullptr; }
  /// Queues the decode of the leaves, with the scale of the rest; nothing without leaves.
  void queue(const ListedParams& rest, DType dtype, Stream stream) const;
  /// Queues the join with what remains. @param[out] states of the subtrees of the range
  void join(float* states, Stream stream) const;

  /// Merges of state blocks, in order, the left one in place, and the blocks of the result. Block i < n_prefix is a subtree
  /// of the prefix, the others are those of the rest.
  struct Join {
    static constexpr int kMost = 128;  ///< subtrees of both: at most two a level, of at most 32 levels, each
    std::int64_t n_rows = 0, batch = 1, d_v = 0;
    int n_prefix = 0, n_pairs = 0, n_results = 0;
    std::uint8_t left[kMost] = {}, right[kMost] = {}, result[kMost] = {};
  };

 private:
  std::int64_t n_leaves_ = 0;
  /// When leaves were counted: the whole ones of the shortest entry, the last change of pages, and the queries.
  std::vector<std::int64_t> counted_for_;
  LeafLists lists_;
  LeafList own_list_;
  DeviceBuffer<LeafList> list_;
  DeviceBuffer<std::int64_t> length_;
  ListedParams params_;
  LaunchPlan launch_;
  DeviceWorkspace workspace_;
  DeviceBuffer<float> prefix_, rest_;  ///< states of both
  Join join_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
