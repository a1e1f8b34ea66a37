// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a rank does to combine a decode step, written down before it starts (section 5.3).
///
/// Who sends, receives and merges follows from the ranges of positions alone, never from a value. So an algorithm is data:
/// blocks of states, messages of blocks, pairs of blocks to combine, a finish. execute() carries it out on a Fabric: host
/// memory with messages over MPI or threads, or the memory of a device. Predictions are sums over the same lists.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace tree_attn {

/// Elements of a block per query row: `vectors` times d_v, and `scalars` more.
struct BlockWidth {
  int vectors = 0, scalars = 0;
  std::int64_t elements(std::int64_t n_rows, std::int64_t d_v) const { return n_rows * (vectors * d_v + scalars); }
};
/// [n_rows][2 + d_v]: the states of one subtree.
inline constexpr BlockWidth kStateBlock{1, 2};
/// [n_rows][d_v]: outputs z, or numerators n.
inline constexpr BlockWidth kVectorBlock{1, 0};
/// [n_rows]: lse, denominators D, or maxima m.
inline constexpr BlockWidth kScalarBlock{0, 1};

/// A block of a plan. Blocks with consecutive numbers are adjacent in memory.
using Block = std::int32_t;

/// n adjacent blocks.
struct Blocks {
  Block first = 0;
  std::int32_t n = 1;
};

/// Adjacent blocks on their way to or from a rank. No blocks, or blocks without elements, are no message.
struct BlockMessage {
  int peer = 0;
  Blocks blocks;
};

/// Two blocks of the same width.
struct BlockPair {
  Block left = 0, right = 0;
};

/// Messages that are under way at the same time. What is received is there before the next operation.
struct Exchange {
  std::vector<BlockMessage> sends, receives;
};

/// left <- op(left, right), pair after pair. The left operand comes first in the order of the ranks.
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

/// Merges adjacent states right to left into the first, which becomes the empty state if there are none. Part of the local
/// decode: no merge step is counted.
struct Fold {
  Blocks states;
};

/// z = n / D and lse of a state.
struct Finish {
  Block state = 0, z = 0, lse = 0;
};

/// Line 3 of Alg. 3: z <- z exp(lse - m), lse <- exp(lse - m); with a lift both times 2^-lift, so that no sum overflows.
struct Weigh {
  Block z = 0, lse = 0, m = 0;
};

/// Line 6 of Alg. 3: n <- n / D, D <- m + ln D.
struct Divide {
  Block n = 0, D = 0, m = 0;
};

/// One step of a plan.
using Operation = std::variant<Exchange, Combine, Copy, Fold, Finish, Weigh, Divide>;

/// The operations of one rank, in order.
struct Plan {
  std::vector<BlockWidth> widths;  ///< of every block
  std::int32_t n_own = 0;          ///< blocks 0 .. n_own - 1 start with the states of this rank's subtrees, left to right
  std::vector<Operation> operations;
  Block z = 0, lse = 0;   ///< where the output is at the end
  int n_collectives = 0;  ///< collective operations among them

  /// Where every block begins in memory, and where the last one ends, in elements.
  std::vector<std::int64_t> offsets(std::int64_t n_rows, std::int64_t d_v) const;
};

/// Memory of the blocks of a plan, and who moves and combines them. Operations are ordered, but need not have ended when a
/// call returns.
class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual void run(const Exchange& exchange) = 0;
  virtual void run(const Combine& combine) = 0;
  virtual void run(const Copy& copy) = 0;
  virtual void run(const Fold& fold) = 0;
  virtual void run(const Finish& finish) = 0;
  virtual void run(const Weigh& weigh) = 0;
  virtual void run(const Divide& divide) = 0;
};

/// Carries out a plan.
inline void execute(const Plan& plan, Fabric& fabric) {
  for (const Operation& operation : plan.operations) std::visit([&](const auto& each) { fabric.run(each); }, operation);
}

/// What one rank sends and holds in a step.
struct RankCost {
  struct Message {
    int peer = 0;
    std::int64_t bytes = 0;
  };
  /// Messages that are under way at the same time.
  struct Round {
    std::vector<Message> sends, receives;
  };
  std::vector<Round> rounds;
  std::int64_t collectives = 0;  ///< collective operations
  std::int64_t merge_steps = 0;  ///< merges one after another to combine shards, per query row
  std::int64_t elements = 0;     ///< held beside this rank's own keys, values and queries
};

/// Sums over a plan.
RankCost cost_of(const Plan& plan, std::int64_t n_rows, std::int64_t d_v);

}  // namespace tree_attn
