// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Writes plans: forests whose states are not there yet, and the exchanges that algorithms share (section 5.3).
#pragma once

#include "distributed/transport/exchange.hpp"
#include "distributed/transport/plan.hpp"
#include "distributed/transport/topology.hpp"
#include "reference/state/forest.hpp"
#include "reference/state/key_range.hpp"

#include <span>
#include <vector>

namespace tree_attn {

/// A forest in blocks: Forest, without the values.
struct BlockForest {
  std::vector<Subtree> subtrees;
  std::vector<Block> blocks;  ///< where the states of each subtree are
};

/// Ranks that exchange forests, in the order of their positions.
struct Members {
  std::span<const int> ranks;
  std::span<const KeyRange> ranges;  ///< positions of each; neighbours touch
  int me = 0;                        ///< index of this rank among them
};

/// Writes the plan of one rank, operation after operation.
class PlanBuilder {
 public:
  /// The forest of this rank's own range, in blocks 0, 1, ... Comes first.
  BlockForest own(KeyRange range);
  /// Adjacent blocks of one width.
  Blocks allocate(BlockWidth width, std::int32_t n = 1);
  /// Adjacent blocks for the forest of a range.
  BlockForest allocate(KeyRange range);
  /// Two adjacent blocks for z and lse.
  Blocks allocate_output();

  /// Begins an exchange; sends and receives join it until the next operation.
  void exchange() { plan_.operations.emplace_back(Exchange{}); }
  void send(int peer, Blocks blocks);
  void receive(int peer, Blocks blocks);
  void send(int peer, const BlockForest& forest);
  BlockForest receive(int peer, KeyRange range);

  /// Two neighbours become one: Forest::append().
  BlockForest join(BlockForest left, const BlockForest& right);
  /// Neighbours become one, left to right.
  BlockForest join(std::span<const BlockForest> forests);
  /// The same forest in adjacent blocks, so that it is one message.
  BlockForest packed(BlockForest forest);
  /// Merges a forest that covers the whole sequence into the state at the root, right to left: Forest::fold().
  Block root(BlockForest forest);
  /// The own forest as one state, before any exchange. See Fold.
  Block fold(const BlockForest& own);

  /// z and lse of a state are the output.
  void finish(Block state);
  /// n / D and m + ln D are the output.
  void divide(Block n, Block D, Block m);
  template <class AnyOperation>
  void add(AnyOperation operation) {
    plan_.operations.emplace_back(std::move(operation));
  }
  /// Counts a collective operation.
  void collective() { ++plan_.n_collectives; }

  /// AllReduce over all ranks by recursive doubling: every rank ends with the same bits, because both sides of an exchange
  /// evaluate op(left, right) on the same two operands in the same order.
  /// @param mine this rank's contribution: adjacent blocks @returns where the result is
  Blocks all_reduce(const Topology& topology, int rank, Blocks mine, Combine::Operator op);
  /// Reduces forests along the steps of exchange.hpp. @returns what the steps leave this rank with
  BlockForest reduce(const Members& members, std::span<const ExchangeStep> steps, BlockForest mine);
  /// Copies blocks of the first member to all along a binomial tree.
  void broadcast(std::span<const int> ranks, int me, Blocks blocks);

  Plan take();

 private:
  void pair(Combine::Operator op, BlockPair pair, std::int32_t n = 1);
  void merge_last_two(BlockForest& forest);
  Exchange& current() { return std::get<Exchange>(plan_.operations.back()); }

  Plan plan_;
};

/// The ranges of some ranks, in their order. @param ranges of all ranks, in the order of the topology
std::vector<KeyRange> ranges_of_ranks(const Topology& topology, std::span<const int> ranks,
                                      std::span<const KeyRange> ranges);
/// The range of each node: that of its ranks together.
std::vector<KeyRange> ranges_of_nodes(const Topology& topology, std::span<const KeyRange> ranges);

}  // namespace tree_attn
