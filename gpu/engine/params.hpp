// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One decode step as a kernel sees it: pointers, strides and lengths on the device (eq. (7)).
#pragma once

#include "gpu/types/bytes16.hpp"
#include "gpu/types/used_slots.hpp"
#include "reference/state/key_range.hpp"
#include "reference/state/mask.hpp"
#include "reference/state/seen.hpp"
#include "reference/state/subtree.hpp"

#include <cstdint>
#include <limits>

namespace tree_attn {

/// Leaves of the shard times query rows, at most; see accepts_any_grid().
inline constexpr std::int64_t kMostWorkItems = std::numeric_limits<Count>::max();

/// The leaf of a position. A shift: a division, even by a constant, rounds towards 0, which takes more instructions.
TREE_ATTN_HOST_DEVICE inline std::int64_t leaf_at(std::int64_t position) { return position >> kLeafLevel; }

/// Leaves that a range of positions touches; one if it is empty, because its rows must be written all the same.
TREE_ATTN_HOST_DEVICE inline std::int64_t leaves_of(KeyRange range) {
  return range.empty() ? 1 : leaf_at(range.end + kLeafKeys - 1) - leaf_at(range.begin);
}

/// A strided array [b, heads, positions, d] in device memory, the last axis contiguous.
struct DeviceView {
  const void* data = nullptr;
  std::int64_t stride[3] = {0, 0, 0};  ///< elements from one entry to the next, of the first three axes

  /// First element of the row (i, h, a). Offsets have 64 bits, because a cache may have more than 2^31 elements.
  template <class T>
  TREE_ATTN_HOST_DEVICE const T* row(std::int64_t i, std::int64_t h, std::int64_t a) const {
    return static_cast<const T*>(data) + i * stride[0] + h * stride[1] + a * stride[2];
  }
};

/// The input of a kernel: a shard of keys and values, and the queries that attend to it. Passed by value.
struct DecodeParams {
  static constexpr bool kIsListed = false;  ///< whether leaves are read in the order of a list: ListedParams

  DeviceView q;                           ///< [b, n_h, l, d_h], as keys are multiplied, or F32: wide_queries
  DeviceView k;                           ///< [b, n_kv, n, d_h]; row 0 is the key at position `begin`
  DeviceView v;                           ///< [b, n_kv, n, d_v]
  const std::int64_t* lengths = nullptr;  ///< keys in use per batch entry, [b], over the whole sequence
  std::int64_t batch = 1, kv_heads = 1;   ///< b, n_kv
  std::int64_t group = 1;                 ///< rows that share a key/value head: n_h / n_kv * l
  std::int64_t n_queries = 1;             ///< l
  SeenRule rule{};                        ///< which keys a row sees; a window needs the leaves of a list
  int d_h = 1, d_v = 1;
  std::int64_t begin = 0, end = 0;         ///< global positions of the shard
  std::int64_t readable_end = 0;           ///< rows before it have memory and may be copied, see rows_end()
  float query_scale = 1, score_scale = 1;  ///< multiply q as it is read, and q.k: log2(e) * scale, see set_scale()
  SoftCap softcap{};                       ///< of scores
  bool wide_queries = false;               ///< scalar cores read queries in F32, whatever the rows
  bool portable = false;                   ///< scalar cores multiply, whatever the type
  bool in_pairs = false;                   ///< neighbours share a lane of a dot product: sums_in_pairs() of the given keys
  const float* head_scales = nullptr;      ///< [b, n_kv, 2], both for keys of F8_E4M3 with scales; null: the two above

  /// Rows of the output: (i * n_h + h) * l + j, and group * n_kv = n_h l.
  TREE_ATTN_HOST_DEVICE std::int64_t n_rows() const { return batch * kv_heads * group; }
  /// Key/value heads of all batch entries; keys and values of each are a kv head of the kernels.
  TREE_ATTN_HOST_DEVICE std::int64_t batch_kv_heads() const { return batch * kv_heads; }
  /// The batch entry of a kv head, and its key/value head.
  TREE_ATTN_HOST_DEVICE Count entry_of(std::int64_t kv_head) const { return Count(kv_head) / Count(kv_heads); }
  TREE_ATTN_HOST_DEVICE Count head_of(std::int64_t kv_head) const { return Count(kv_head) % Count(kv_heads); }
  /// The query of a row of the group of a kv head.
  template <class T>
  TREE_ATTN_HOST_DEVICE const T* query(std::int64_t kv_head, std::int64_t r) const {
    const Count l = Count(n_queries), head = head_of(kv_head) * (Count(group) / l) + Count(r) / l;
    return q.row<T>(entry_of(kv_head), head, Count(r) % l);
  }
  /// The key, or the value, at a global position.
  template <class T>
  TREE_ATTN_HOST_DEVICE const T* key(std::int64_t kv_head, std::int64_t position) const {
    return k.row<T>(entry_of(kv_head), head_of(kv_head), position - begin);
  }
  template <class T>
  TREE_ATTN_HOST_DEVICE const T* value(std::int64_t kv_head, std::int64_t position) const {
    return v.row<T>(entry_of(kv_head), head_of(kv_head), position - begin);
  }
  /// The end of the rows: that of the shard, or readable_end if a shard that grows has fewer rows than positions.
  TREE_ATTN_HOST_DEVICE std::int64_t rows_end() const {
    return begin < readable_end && readable_end < end ? readable_end : end;
  }
  /// The rule of what a row of the group of a kv head sees.
  TREE_ATTN_HOST_DEVICE Seen seen(std::int64_t kv_head, std::int64_t r) const {
    return rule.of(lengths[entry_of(kv_head)], n_queries, Count(r) % Count(n_queries));
  }
  /// Positions of the shard that a row sees.
  TREE_ATTN_HOST_DEVICE KeyRange in_use(std::int64_t kv_head, std::int64_t r) const {
    const std::int64_t seen_end = seen(kv_head, r).end;
    return {begin, seen_end < begin ? begin : seen_end < end ? seen_end : end};
  }
  /// Keys in use that the first row does not see, and the last row does.
  TREE_ATTN_HOST_DEVICE int n_edge() const { return rule.causal ? static_cast<int>(n_queries) - 1 : 0; }
  /// Positions of the shard that are in use by a kv head.
  TREE_ATTN_HOST_DEVICE KeyRange in_use(std::int64_t kv_head) const { return in_use_by_entry(entry_of(kv_head)); }
  /// The keys that all kv heads of a batch entry use.
  TREE_ATTN_HOST_DEVICE KeyRange in_use_by_entry(std::int64_t entry) const {
    const std::int64_t length = lengths[entry];
    return {begin, length < begin ? begin : length < end ? length : end};
  }
  /// The leaves that hold them, whole: positions without a key hold the empty set, which changes no bit. A leaf in which the
  /// shard ends is one leaf here, and several subtrees in plain.hpp.
  TREE_ATTN_HOST_DEVICE KeyRange leaves(std::int64_t kv_head) const { return leaves_by_entry(entry_of(kv_head)); }
  TREE_ATTN_HOST_DEVICE KeyRange leaves_by_entry(std::int64_t entry) const {
    const KeyRange used = in_use_by_entry(entry);
    return {used.begin, used.empty() ? used.begin : leaf_at(used.end + kLeafKeys - 1) * kLeafKeys};
  }
  /// The range of the tree that the shard is, by batch entry; the subtrees that cover it; and its slots with leaves.
  TREE_ATTN_HOST_DEVICE KeyRange shard_of_entry(std::int64_t) const { return {begin, end}; }
  std::int64_t n_subtrees_of_shard() const { return n_subtrees(begin, end); }
  TREE_ATTN_HOST_DEVICE UsedSlots used_slots(std::int64_t entry) const {
    const KeyRange used = leaves_by_entry(entry);
    const Count last = Count(leaf_at(used.end));
    return {Count(leaf_at(used.begin)), last, last, last};
  }
  /// Most slots with leaves of an entry.
  std::int64_t most_slots() const { return leaves_of({begin, end}); }
  /// The leaves of an entry that stand in a range of slots.
  TREE_ATTN_HOST_DEVICE KeyRange leaves_of_slots(std::int64_t entry, std::int64_t from, std::int64_t to) const {
    const KeyRange used = leaves_by_entry(entry);
    from *= kLeafKeys, to *= kLeafKeys;
    const std::int64_t first = from > used.begin ? from : used.begin, last = to < used.end ? to : used.end;
    return {first, last > first ? last : first};
  }
};

/// Memory for the result of a kernel: the finished rows, or if there is more to come the forest of the shard.
struct DeviceOutput {
  float* states = nullptr;  ///< [subtrees][n_rows][2 + d_v], the subtrees that cover(begin, end) names, if out is null
  float* out = nullptr;     ///< z [n_rows, d_v], or null
  float* lse = nullptr;     ///< natural [n_rows], where out is not null
};

}  // namespace tree_attn
