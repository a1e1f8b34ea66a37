// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Builds plans: forests of blocks, and the exchanges that several algorithms use (section 5.3).
#pragma once

#include "distributed/exchange/exchange.hpp"
#include "distributed/exchange/plan.hpp"
#include "distributed/exchange/plan_options.hpp"
#include "distributed/transport/topology.hpp"
#include "reference/state/forest.hpp"
#include "reference/state/key_range.hpp"

#include <span>
#include <vector>

namespace tree_attn {

/// The structure of a Forest, with block indices in place of states.
struct BlockForest {
  std::vector<Subtree> subtrees;
  std::vector<Block> blocks;  ///< with the states of each subtree
};

/// Ranks that exchange forests, in the order of their positions.
struct Members {
  std::span<const int> ranks;
  std::span<const KeyRange> ranges;  ///< positions of each member; consecutive
  int me = 0;                        ///< index of this rank among them
};

/// Builds the plan of one rank, operation after operation.
class PlanBuilder {
 public:
  /// The forest of this rank's own range, in blocks 0, 1, ... Must be the first allocation.
  BlockForest own(KeyRange range);
  /// The forests of some slices of its rows, one after the other. Must be the first allocation.
  /// @param parts of each forest its slices, as many as the others have, of equal sizes: adjacent blocks of each subtree
  std::vector<BlockForest> own_slices(KeyRange range, std::span<const std::vector<RowSlice>> parts);
  /// Adjacent blocks of one width.
  Blocks allocate(BlockWidth width, std::int32_t n = 1);
  /// Adjacent blocks for the forest of a range, with the rows of this rank.
  BlockForest allocate(KeyRange range) { return allocate(range, std::span(&rows_, 1)); }
  /// Adjacent blocks for the forest of a range: of each subtree one for each slice of the rows, of which the forest names
  /// the first.
  BlockForest allocate(KeyRange range, std::span<const RowSlice> slices);
  /// Two adjacent blocks for z and lse of all rows, or of a slice of them, which are the output.
  Blocks allocate_output(RowSlice rows = {});

  /// Begins an exchange. The sends and receives that follow belong to it, up to the next operation.
  void exchange() { plan_.operations.emplace_back(Exchange{}); }
  void send(int peer, Blocks blocks);
  void receive(int peer, Blocks blocks);
  /// @param n adjacent blocks of each subtree
  void send(int peer, const BlockForest& forest, std::int32_t n = 1);
  BlockForest receive(int peer, KeyRange range) { return receive(peer, range, std::span(&rows_, 1)); }
  BlockForest receive(int peer, KeyRange range, std::span<const RowSlice> slices);

  /// Joins the forests of two adjacent ranges, as Forest::append() does.
  /// @param n adjacent blocks that hold each subtree, one for each of n slices of the rows
  BlockForest join(BlockForest left, const BlockForest& right, std::int32_t n = 1);
  /// Joins the forests of consecutive ranges, left to right.
  BlockForest join(std::span<const BlockForest> forests, std::int32_t n = 1);
  /// Copies a forest to adjacent blocks unless its blocks are adjacent, so that it can be sent as one message.
  BlockForest packed(BlockForest forest);
  /// Merges a forest of the whole sequence into the state at the root, right to left, as Forest::fold() does.
  Block root(BlockForest forest);
  /// Merges the own forest into one state, before any exchange: Fold.
  Block fold(const BlockForest& own);

  /// z and lse of a state are written into two adjacent blocks. The merge that makes the state, if it comes last, is left to
  /// Finish.
  void finish(Block state, Blocks output);
  /// z and lse of a state with all rows are the output.
  void finish(Block state) { finish(state, allocate_output()); }
  /// z and lse of the root of a forest of the whole sequence are the output, for some slices of the rows: those of its
  /// adjacent blocks.
  void finish(BlockForest forest, std::span<const RowSlice> slices);
  /// n / D and m + ln D are the output.
  void divide(Block n, Block D, Block m);
  template <class AnyOperation>
  void add(AnyOperation operation) {
    plan_.operations.emplace_back(std::move(operation));
  }
  /// Counts one collective operation.
  void collective() { ++plan_.n_collectives; }

  /// AllReduce over all ranks by recursive doubling. Every rank ends with the same bits, because both sides of an exchange
  /// evaluate op(left, right) on the same two operands in the same order.
  /// @param mine this rank's contribution: adjacent blocks @returns the blocks of the result
  Blocks all_reduce(const Topology& topology, int rank, Blocks mine, Combine::Operator op);
  /// Reduces to a sum or a maximum, which the library of the transport may compute in place.
  Blocks all_reduce(const Topology& topology, int rank, Blocks mine, Combine::Operator op, const PlanOptions& options) {
    if (!options.library_reduces) return all_reduce(topology, rank, mine, op);
    collective();
    add(AllReduce{op, mine});
    return mine;
  }
  /// Joins rank blocks until all members hold the forest of all members.
  ///
  /// A *rank block* is a range of consecutive members that all hold the forest of their positions. A round joins up
  /// to `radix` neighbouring ones: member i of rank block A receives from member i mod |B| of every other one, B, sends to
  /// every member j of B with j mod |A| = i, and joins their forests from left to right. So each member receives one message
  /// from every other rank block: j of B is served by the one i < |A| with i = j mod |A|. ceil(log_radix n) rounds join n of
  /// them, for any n and any sizes.
  ///
  /// The bits are canonical. Every member of a rank block holds the forest of its positions: this is true of the first ones,
  /// and a round joins the forests of neighbours, which gives the forest of their union. A forest is a function of
  /// its positions and of the states below them alone (Forest), so it depends neither on the sizes of the rank blocks nor on
  /// the radix.
  /// @param begins rank block i of the first round is members [begins[i], begins[i + 1]); each holds the forest of its
  /// positions
  /// @param mine the forest of the rank block of this rank
  /// @returns the forest of all members @throws std::invalid_argument if the radix is less than 2
  BlockForest join_blocks(const Members& members, std::span<const int> begins, int radix, BlockForest mine);
  /// Joins the forests of all nodes on all ranks; the first rank blocks are the nodes.
  /// @param ranges of all ranks, in the order of the topology @param mine the forest of the node of this rank
  BlockForest join_nodes(const Topology& topology, int rank, std::span<const KeyRange> ranges, int radix, BlockForest mine);
  /// Joins the forests of all nodes on the ranks with this rank's index in its node, which have the same slice of the rows.
  /// @param nodes the ranges of the nodes
  BlockForest join_slices(const Topology& topology, int rank, std::span<const KeyRange> nodes, int radix, BlockForest mine);
  /// Scatters slices of the rows over members and joins what arrives: one round, after which member i has the forest of all
  /// members for part i of the rows. Blocks that are allocated later for ranges have the rows of the first slice of that
  /// part.
  /// @param range of this rank @param parts see own_slices()
  BlockForest scatter_rows(const Members& members, KeyRange range, std::span<const std::vector<RowSlice>> parts);
  /// Finishes the slice of this rank and gathers the others from the members: one round, after which all have the output.
  /// @param state the slice of member members.me
  void gather_output(const Members& members, Block state);
  /// Gathers the forests of all ranks by the library, where library_gathers() says so.
  /// @returns the forest of all ranks
  BlockForest all_gather(std::span<const KeyRange> ranges, const BlockForest& own);
  /// Reduces forests along a schedule of exchange.hpp. @returns the forest of this rank after the last step
  BlockForest reduce(const Members& members, std::span<const ExchangeStep> steps, BlockForest mine);
  /// Broadcasts blocks of the first member along a binomial tree.
  void broadcast(std::span<const int> ranks, int me, Blocks blocks);

  /// The finished plan. Exchanges without messages are dropped.
  Plan take();

 private:
  void pair(Combine::Operator op, BlockPair pair, std::int32_t n = 1);
  void merge_last_two(BlockForest& forest, std::int32_t n = 1);
  /// Adds a Finish, into which the merge that makes the state goes if it comes last.
  void add_finish(Finish finish);
  /// One round of join_blocks(). @param bounds rank block b is members [bounds[b], bounds[b + 1])
  BlockForest join_neighbours(const Members& members, std::span<const int> bounds, BlockForest mine);
  BlockWidth state_width() const { return kStateBlock.of(rows_); }
  Exchange& current() { return std::get<Exchange>(plan_.operations.back()); }

  Plan plan_;
  RowSlice rows_;  ///< of the states that this rank receives and merges
};

/// The parts of PlanBuilder::own_slices(), of one slice each, that n members have.
std::vector<std::vector<RowSlice>> equal_slices(int n);
/// The range of each node: that of its ranks together.
std::vector<KeyRange> ranges_of_nodes(const Topology& topology, std::span<const KeyRange> ranges);
/// The ranks of the node of a rank. @param ranges of all ranks, which stay where they are
Members members_of_node(const Topology& topology, int rank, std::span<const KeyRange> ranges);
/// Slices that the rows are cut into: one for each rank of a node if a message is longer than PlanOptions::slice_limit(),
/// or if the copies of it that the ranks of a node send to another node over a link that they share are; else 1. In nodes of
/// different sizes a slice has no counterpart in the other nodes, so there the rows stay together. Two ranks alone would
/// send as many bytes in slices.
int n_slices(const Topology& topology, double message_bytes, const PlanOptions& options);
/// The radix between nodes, by default for the slices of messages of so many bytes.
int radix_between_nodes(const Topology& topology, double message_bytes, const PlanOptions& options);
/// Tests whether an AllGather by the library of the transport takes less time than rounds of messages: all ranks are on one
/// node, they have as many states each, as in the dealt order a power of two of them has, and no radix is asked for.
bool library_gathers(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options);
/// The plan that leaves every rank the output of its query heads: one round, in which each rank sends to the others their
/// heads; or two, inside a node and then between the ranks of equal local ranks, if nodes have equal sizes and each has the
/// states of one subtree. @param options with the shape of the states @throws std::invalid_argument for more than 2^20 parts
/// of the rows, one for each rank and batch entry
Plan heads_plan(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options);
/// Bytes of the longest of the forests of some ranges. @param options with the shape of the states
double longest_forest_bytes(std::span<const KeyRange> ranges, const PlanOptions& options);

}  // namespace tree_attn
