// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The states of some leaves of one key/value head: the loops of the CPU decode, one build per instruction set
/// (eq. (7)).
#pragma once

#include "reference/state/seen.hpp"
#include "reference/state/state.hpp"
#include "reference/state/subtree.hpp"
#include "reference/tensor/dtype.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tree_attn {

/// Addresses of the rows of one leaf, at any alignment.
struct LeafRows {
  const std::byte *k, *v;           ///< the key and the value of its first position
  std::int64_t k_stride, v_stride;  ///< bytes from one position to the next
  std::int64_t position = 0;        ///< of its first row in the sequence, for Chunk::seen and Chunk::masks
  bool is_hidden = false;           ///< whether no query sees any of its keys: then none is read
};

/// Leaves of one key/value head, and the queries that share the head. Unless their states are kept apart, the leaves fill an
/// aligned subtree from the left: the index of the first leaf is a multiple of the number of leaves, rounded up to a power
/// of two.
struct Chunk {
  const LeafRows* leaves;
  std::int64_t n_leaves;
  std::int64_t n_keys;  ///< of all leaves; all but the last are full, and position i of the chunk is in leaf i / 64
  DType key_type, value_type;
  std::int64_t d_h, d_v;
  std::int64_t n_queries;
  const float* queries;        ///< [n_queries][padded d_h], by LeafKernel::pack_query
  float score_scale;           ///< multiplies q.k: ScoreScale::score
  const Seen* seen = nullptr;  ///< [n_rules] what query i sees is seen[i % n_rules]; null: all see all keys
  std::int64_t n_rules = 1;
  float cap = 0, cap_inverse = 0;           ///< of SoftCap, in base two; 0: none
  const std::byte* const* masks = nullptr;  ///< [n_queries] Mask::row(); null: none
  bool is_boolean = false;                  ///< Mask::is_boolean
  bool apart = false;                       ///< whether each leaf has states of its own, packed
};

/// The loops, compiled for one instruction set. All of them compute the same bits.
struct LeafKernel {
  std::string_view name;  ///< as TREE_ATTN_INSTRUCTION_SET takes it
  /// Scales a query and lays its elements out as keys of the type are loaded, padded with zeros.
  /// @param[in] q [d_h]
  /// @param[out] packed [padded d_h]
  void (*pack_query)(const float* q, std::int64_t d_h, DType key_type, float scale, float* packed);
  /// The states of the chunk's keys, one per query, merged over the canonical tree.
  /// @param[in] workspace of workspace_floats()
  /// @param[out] states [n_queries][2 + d_v]; [n_leaves][n_queries][2 + padded d_v] if they are kept apart
  void (*states)(const Chunk& chunk, float* workspace, float* states);
  /// out <- merge(left, right) for n states, [n][2 + d_v] each; `out` may be `left` or `right`.
  void (*merge_states)(const float* left, const float* right, float* out, std::int64_t n, std::int64_t d_v);
  /// finish() of n states.
  /// @param[in] states [n][2 + d_v]
  /// @param[out] z [n][d_v]
  /// @param[out] lse [n], natural
  void (*finish_states)(const float* states, std::int64_t n, std::int64_t d_v, float* z, float* lse);
  /// finish() of merge(left, right) for n pairs of states, which are read once and not written.
  /// @param[in] left, right [n][2 + d_v]
  /// @param[out] z, lse as of finish_states; z overlaps neither
  void (*finish_merged)(const float* left, const float* right, std::int64_t n, std::int64_t d_v, float* z, float* lse);
  /// n packed states in the order of the value's elements, without padding.
  /// @param[in] packed [n][2 + padded d_v]
  /// @param[out] states [n][2 + d_v]
  void (*unpack)(const float* packed, DType value_type, std::int64_t n, std::int64_t d_v, float* states);
};

/// Elements of a packed row: queries, and values inside the loops, are padded to a multiple of 32.
constexpr std::int64_t packed_size(std::int64_t d) { return (d + 31) / 32 * 32; }

/// Floats that are kept of a leaf's weights for each query until its values are read.
inline constexpr std::int64_t kLeafWeights = 3;
/// Rows of keys that are widened at once for a group of queries.
inline constexpr std::int64_t kBlockRows = 16;
/// Floats of workspace for chunks of up to n_leaves leaves: those rows; of every query the scores, what is kept of each
/// leaf, and the states of leaves that wait for their siblings, one per level and the one at hand.
constexpr std::int64_t block_floats(std::int64_t d_h) { return kBlockRows * packed_size(d_h); }
constexpr std::int64_t query_floats(std::int64_t n_leaves, std::int64_t d_v) {
  const int n_waiting = std::bit_width(static_cast<std::uint64_t>(n_leaves)) + 1;
  return n_leaves * (kLeafKeys + kLeafWeights) + n_waiting * state_size(packed_size(d_v));
}
constexpr std::int64_t workspace_floats(std::int64_t n_leaves, std::int64_t n_queries, std::int64_t d_h, std::int64_t d_v) {
  return block_floats(d_h) + n_queries * query_floats(n_leaves, d_v);
}

/// The kernels that this processor can run, the widest first.
std::span<const LeafKernel* const> leaf_kernels();
/// The widest of them, or the one that the environment variable TREE_ATTN_INSTRUCTION_SET names.
/// @throws std::invalid_argument if this processor cannot run the one named, or no kernel has the name
const LeafKernel& leaf_kernel();

}  // namespace tree_attn
