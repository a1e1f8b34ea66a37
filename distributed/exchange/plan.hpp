// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The plan of a rank: how it combines its states with those of the other ranks (section 5.3).
///
/// The ranges of positions alone determine which rank sends, receives and merges what; no value does. So an algorithm is
/// data: blocks of states, messages of blocks, pairs of blocks to combine, a finish. A Runner carries a plan out, any number
/// of times, on blocks in host memory or on a device. Predictions are sums over the same lists.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace tree_attn {

/// A slice of the query rows: the part with this index of `of` nearly equal parts, in order. All rows by default.
struct RowSlice {
  int index = 0, of = 1;
  bool operator==(const RowSlice&) const = default;
  std::int64_t begin(std::int64_t n_rows) const { return n_rows * index / of; }
  std::int64_t size(std::int64_t n_rows) const { return n_rows * (index + 1) / of - begin(n_rows); }
  /// The largest size of a slice of so many rows, or of fewer.
  std::int64_t most(std::int64_t n_rows) const { return (n_rows + of - 1) / of; }
};

/// Elements of a block per query row, `vectors` times d_v plus `scalars`, and the rows that it has.
struct BlockWidth {
  int vectors = 0, scalars = 0;
  RowSlice rows{};
  bool operator==(const BlockWidth&) const = default;
  std::int64_t elements(std::int64_t n_rows, std::int64_t d_v) const {
    return rows.size(n_rows) * (vectors * d_v + scalars);
  }
  /// Width of the block for some of the rows.
  BlockWidth of(RowSlice slice) const { return {vectors, scalars, slice}; }
};
/// [n_rows][2 + d_v]: the states of one subtree.
inline constexpr BlockWidth kStateBlock{1, 2};
/// [n_rows][d_v]: outputs z, or numerators n.
inline constexpr BlockWidth kVectorBlock{1, 0};
/// [n_rows]: lse, denominators D, or maxima m.
inline constexpr BlockWidth kScalarBlock{0, 1};

/// Index of a block in its plan. Blocks with consecutive indices are adjacent in memory.
using Block = std::int32_t;

/// n adjacent blocks.
struct Blocks {
  Block first = 0;
  std::int32_t n = 1;
};

/// Adjacent blocks sent to or received from a rank. No message is sent for zero blocks or for blocks without elements.
struct BlockMessage {
  int peer = 0;
  Blocks blocks;
};

/// Two blocks of the same width.
struct BlockPair {
  Block left = 0, right = 0;
};

/// Messages that are in flight at the same time. All have arrived before the next operation.
struct Exchange {
  std::vector<BlockMessage> sends, receives;
};

/// left <- op(left, right) for each pair, in order. The left operand comes first in the order of the ranks. The right block
/// is used up: nothing reads it before it is written anew. All blocks have one width.
struct Combine {
  enum class Operator {
    kMerge,  ///< merge() of states, row by row
    kMax,    ///< the larger element; NaN if either is NaN
    kAdd     ///< the sum of the elements
  };
  Operator op = Operator::kMerge;
  std::vector<BlockPair> pairs;
  std::int32_t n = 1;  ///< adjacent blocks on each side of a pair
};

/// left <- right.
struct Copy {
  std::vector<BlockPair> pairs;
};

/// Merges adjacent states right to left into the first one; with no states, the first block becomes the empty state. This is
/// part of the local decode: no merge step is counted.
struct Fold {
  Blocks states;
};

/// z = n / D and lse of a state, or of merge(state, right), which no block holds. States are used up.
struct Finish {
  Block state = 0, z = 0, lse = 0;
  std::optional<Block> right{};
  std::int32_t n = 1;  ///< adjacent blocks of each of these
};

/// Line 4 of Alg. 3: z <- z exp(lse - m), lse <- exp(lse - m).
struct Weigh {
  Block z = 0, lse = 0, m = 0;
};

/// Line 6 of Alg. 3: n <- n / D, D <- m + ln D.
struct Divide {
  Block n = 0, D = 0, m = 0;
};

/// Replaces the elements of adjacent blocks by their sum or maximum over all ranks, by an AllReduce of the transport's
/// library (PlanOptions::library_reduces). What the library sends is not known, so nothing is counted for it.
struct AllReduce {
  Combine::Operator op = Combine::Operator::kAdd;
  Blocks blocks;
};

/// Gathers adjacent blocks of every rank, rank after rank, by an AllGather of the transport's library (Network::gather_us).
/// Nothing is counted for it either.
struct AllGather {
  Blocks own, all;  ///< as many of each rank
};

/// One step of a plan.
using Operation = std::variant<Exchange, Combine, Copy, Fold, Finish, Weigh, Divide, AllReduce, AllGather>;

/// The operations of one rank, in order.
struct Plan {
  std::vector<BlockWidth> widths;  ///< of every block
  /// Blocks 0 .. n_own - 1 start with the states of this rank's subtrees, left to right: all rows, or one slice of the rows
  /// after the other.
  std::int32_t n_own = 0, n_adjacent = 1;  ///< and own blocks of a subtree, one for each of its slices
  std::vector<Operation> operations;
  Blocks z, lse;          ///< the output: one block each, or adjacent slices of the rows in order
  int n_collectives = 0;  ///< collective operations among the operations

  /// Offset of every block in memory, in elements, and the number of elements of all blocks.
  std::vector<std::int64_t> offsets(std::int64_t n_rows, std::int64_t d_v) const;
  /// Number of subtrees of this rank.
  std::int32_t n_subtrees() const { return n_own == 0 ? 0 : n_own / widths.front().rows.of; }
  /// Offset of the elements of an own block in the states of this rank's subtrees, [subtrees][n_rows][2 + d_v].
  std::int64_t offset_of_own(Block block, std::int64_t n_rows, std::int64_t d_v) const;
};

/// Cost of a step for one rank: the data that it sends and holds.
struct RankCost {
  struct Message {
    int peer = 0;
    std::int64_t bytes = 0;
  };
  /// Messages that are in flight at the same time, and the work meanwhile and afterwards.
  struct Round {
    std::vector<Message> sends{}, receives{};
    std::int64_t decoded_bytes = 0;  ///< bytes of keys and values decoded while the messages are in flight
    std::int64_t merge_steps = 0;    ///< after the messages have arrived
    bool is_stored = false;          ///< the kernel that decodes stores the messages into the memory of the peers
  };
  std::vector<Round> rounds;
  std::int64_t collectives = 0;      ///< collective operations
  std::int64_t merge_steps = 0;      ///< sequential merges that combine shards, per query row
  std::int64_t elements = 0;         ///< of states and outputs, F32
  std::int64_t other_positions = 0;  ///< most positions of other ranks whose keys and values it holds at once
};

/// Sums over a plan. The first round is the decode of the own shard; its decoded_bytes are left to the caller.
RankCost cost_of(const Plan& plan, std::int64_t n_rows, std::int64_t d_v);

}  // namespace tree_attn
