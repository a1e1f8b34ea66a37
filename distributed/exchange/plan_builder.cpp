// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Joins forests of blocks, and appends exchanges along schedules.
#include "distributed/exchange/plan_builder.hpp"

#include "reference/state/state.hpp"

#include <algorithm>
#include <utility>

namespace tree_attn {
namespace {

/// The blocks of a forest. @pre they are adjacent @param n blocks of each subtree
Blocks blocks_of(const BlockForest& forest, std::int32_t n) {
  return {forest.blocks.front(), static_cast<std::int32_t>(forest.blocks.size()) * n};
}

}  // namespace

Blocks PlanBuilder::allocate(BlockWidth width, std::int32_t n) {
  const Blocks blocks{static_cast<Block>(plan_.widths.size()), n};
  plan_.widths.insert(plan_.widths.end(), static_cast<std::size_t>(n), width);
  return blocks;
}

BlockForest PlanBuilder::own(KeyRange range) {
  BlockForest forest = allocate(range);
  plan_.n_own = static_cast<std::int32_t>(forest.blocks.size());
  return forest;
}

std::vector<BlockForest> PlanBuilder::own_slices(KeyRange range, std::span<const std::vector<RowSlice>> parts) {
  std::vector<BlockForest> forests;
  for (const std::vector<RowSlice>& slices : parts) forests.push_back(allocate(range, slices));
  plan_.n_own = static_cast<std::int32_t>(plan_.widths.size());
  plan_.n_adjacent = static_cast<std::int32_t>(parts.front().size());
  return forests;
}

BlockForest PlanBuilder::allocate(KeyRange range, std::span<const RowSlice> slices) {
  BlockForest forest{cover(range.begin, range.end), {}};
  for (std::size_t i = 0; i < forest.subtrees.size(); ++i) {
    forest.blocks.push_back(static_cast<Block>(plan_.widths.size()));
    for (const RowSlice& slice : slices) allocate(kStateBlock.of(slice));
  }
  return forest;
}

void PlanBuilder::send(int peer, Blocks blocks) {
  if (blocks.n > 0) current().sends.push_back({peer, blocks});
}

void PlanBuilder::receive(int peer, Blocks blocks) {
  if (blocks.n > 0) current().receives.push_back({peer, blocks});
}

void PlanBuilder::send(int peer, const BlockForest& forest, std::int32_t n) {
  if (!forest.blocks.empty()) send(peer, blocks_of(forest, n));
}

BlockForest PlanBuilder::receive(int peer, KeyRange range, std::span<const RowSlice> slices) {
  BlockForest forest = allocate(range, slices);
  if (!forest.blocks.empty()) receive(peer, blocks_of(forest, static_cast<std::int32_t>(slices.size())));
  return forest;
}

void PlanBuilder::pair(Combine::Operator op, BlockPair pair, std::int32_t n) {
  // Append to the last operation if it is of the same kind.
  Combine* last = plan_.operations.empty() ? nullptr : std::get_if<Combine>(&plan_.operations.back());
  if (last == nullptr || last->op != op || last->n != n)
    last = &std::get<Combine>(plan_.operations.emplace_back(Combine{op, {}, n}));
  last->pairs.push_back(pair);
}

void PlanBuilder::merge_last_two(BlockForest& forest, std::int32_t n) {
  const std::size_t last = forest.blocks.size() - 1;
  pair(Combine::Operator::kMerge, {forest.blocks[last - 1], forest.blocks[last]}, n);
  forest.blocks.pop_back();
}

BlockForest PlanBuilder::join(BlockForest left, const BlockForest& right, std::int32_t n) {
  for (std::size_t i = 0; i < right.subtrees.size(); ++i) {
    left.blocks.push_back(right.blocks[i]);
    push_subtree(left.subtrees, right.subtrees[i], [&] { merge_last_two(left, n); });
  }
  return left;
}

BlockForest PlanBuilder::join(std::span<const BlockForest> forests, std::int32_t n) {
  BlockForest joined;
  for (const BlockForest& forest : forests) joined = join(std::move(joined), forest, n);
  return joined;
}

BlockForest PlanBuilder::packed(BlockForest forest) {
  const auto are_apart = [](Block left, Block right) { return right != left + 1; };
  if (std::adjacent_find(forest.blocks.begin(), forest.blocks.end(), are_apart) == forest.blocks.end()) return forest;
  Copy copy;
  for (Block& block : forest.blocks) {
    copy.pairs.push_back({allocate(state_width()).first, block});
    block = copy.pairs.back().left;
  }
  add(std::move(copy));
  return forest;
}

Block PlanBuilder::root(BlockForest forest) {
  if (forest.blocks.empty()) return fold(forest);
  while (forest.blocks.size() >= 2) merge_last_two(forest);
  return forest.blocks.front();
}

Block PlanBuilder::fold(const BlockForest& own) {
  const auto n = static_cast<std::int32_t>(own.blocks.size());
  const Block first = n == 0 ? allocate(state_width()).first : own.blocks.front();
  add(Fold{{first, n}});
  return first;
}

Blocks PlanBuilder::allocate_output(RowSlice rows) {
  plan_.z = allocate(kVectorBlock.of(rows));
  plan_.lse = allocate(kScalarBlock.of(rows));
  return {plan_.z.first, 2};
}

void PlanBuilder::divide(Block n, Block D, Block m) {
  add(Divide{n, D, m});
  plan_.z = {n, 1};
  plan_.lse = {D, 1};
}

void PlanBuilder::finish(Block state, Blocks output) { add_finish({state, output.first, output.first + 1}); }

void PlanBuilder::finish(BlockForest forest, std::span<const RowSlice> slices) {
  const auto n = static_cast<std::int32_t>(slices.size());
  while (forest.blocks.size() >= 2) merge_last_two(forest, n);
  const auto allocate_all = [&](BlockWidth width) {
    const Blocks all{static_cast<Block>(plan_.widths.size()), n};
    for (const RowSlice& slice : slices) allocate(width.of(slice));
    return all;
  };
  if (forest.blocks.empty()) {
    forest.blocks.push_back(allocate_all(kStateBlock).first);
    for (Block i = 0; i < n; ++i) add(Fold{{forest.blocks.front() + i, 0}});
  }
  plan_.z = allocate_all(kVectorBlock), plan_.lse = allocate_all(kScalarBlock);
  add_finish({.state = forest.blocks.front(), .z = plan_.z.first, .lse = plan_.lse.first, .n = n});
}

void PlanBuilder::add_finish(Finish finish) {
  Combine* last = plan_.operations.empty() ? nullptr : std::get_if<Combine>(&plan_.operations.back());
  if (last != nullptr && last->op == Combine::Operator::kMerge && last->n == finish.n &&
      last->pairs.back().left == finish.state) {
    finish.right = last->pairs.back().right;
    last->pairs.pop_back();
    if (last->pairs.empty()) plan_.operations.pop_back();
  }
  add(finish);
}

Blocks PlanBuilder::all_reduce(const Topology& topology, int rank, Blocks mine, Combine::Operator op) {
  collective();
  const int me = topology.index_of(rank);
  for (const ExchangeStep& step : butterfly(topology.size(), me)) {
    const int peer = topology.order()[static_cast<std::size_t>(step.peer)];
    exchange();
    Blocks theirs{static_cast<Block>(plan_.widths.size()), mine.n};
    if (step.receives) {
      for (std::int32_t i = 0; i < mine.n; ++i) allocate(plan_.widths[static_cast<std::size_t>(mine.first + i)]);
      receive(peer, theirs);
    }
    if (step.sends) send(peer, mine);
    if (!step.receives) continue;
    // The lower index is the left operand, on both sides of the exchange. A finished result replaces the own operand.
    if (step.finished || step.peer_is_left(me)) std::swap(mine, theirs);
    if (!step.finished) pair(op, {mine.first, theirs.first}, mine.n);
  }
  return mine;
}

BlockForest PlanBuilder::scatter_rows(const Members& members, KeyRange range, std::span<const std::vector<RowSlice>> parts) {
  collective();
  const std::size_t n = members.ranks.size(), me = static_cast<std::size_t>(members.me);
  const std::vector<BlockForest> own = own_slices(range, parts);
  const std::vector<RowSlice>& mine = parts[me];
  const auto n_slices = static_cast<std::int32_t>(mine.size());
  rows_ = mine.front();
  std::vector<BlockForest> forests(n);
  exchange();
  for (std::size_t distance = 1; distance < n; ++distance) {
    const std::size_t from = (me + n - distance) % n, to = (me + distance) % n;
    forests[from] = receive(members.ranks[from], members.ranges[from], mine);
    send(members.ranks[to], own[to], n_slices);
  }
  forests[me] = own[me];
  return join(forests, n_slices);
}

BlockForest PlanBuilder::all_gather(std::span<const KeyRange> ranges, const BlockForest& own) {
  collective();
  std::vector<BlockForest> forests;
  for (const KeyRange& range : ranges) forests.push_back(allocate(range));
  const auto n = static_cast<std::int32_t>(own.blocks.size());
  add(AllGather{{own.blocks.front(), n}, {forests.front().blocks.front(), n * static_cast<std::int32_t>(ranges.size())}});
  return join(forests);
}

void PlanBuilder::gather_output(const Members& members, Block state) {
  collective();
  const std::size_t n = members.ranks.size(), me = static_cast<std::size_t>(members.me);

  // z and lse of a slice are adjacent, one message; those of all slices are adjacent in the output.
  const auto slice = [n](std::size_t i) { return RowSlice{static_cast<int>(i), static_cast<int>(n)}; };
  std::vector<Blocks> slices(n);
  for (std::size_t i = 0; i < n; ++i)
    slices[i] = {allocate(kVectorBlock.of(slice(i))).first, 2}, allocate(kScalarBlock.of(slice(i)));
  Copy copy;
  for (const std::int32_t part : {0, 1}) {
    const BlockWidth width = part == 0 ? kVectorBlock : kScalarBlock;
    for (std::size_t i = 0; i < n; ++i) copy.pairs.push_back({allocate(width.of(slice(i))).first, slices[i].first + part});
  }
  plan_.z = {copy.pairs.front().left, static_cast<std::int32_t>(n)};
  plan_.lse = {copy.pairs[n].left, static_cast<std::int32_t>(n)};

  finish(state, slices[me]);
  exchange();
  for (std::size_t distance = 1; distance < n; ++distance) {
    const std::size_t from = (me + n - distance) % n, to = (me + distance) % n;
    receive(members.ranks[from], slices[from]);
    send(members.ranks[to], slices[me]);
  }
  add(std::move(copy));
}

BlockForest PlanBuilder::reduce(const Members& members, std::span<const ExchangeStep> steps, BlockForest mine) {
  collective();
  for (const ExchangeStep& step : steps) {
    const int peer = members.ranks[static_cast<std::size_t>(step.peer)];
    mine = packed(std::move(mine));
    exchange();
    if (step.sends) send(peer, mine);
    if (!step.receives) continue;
    BlockForest theirs = receive(peer, KeyRange{members.ranges[static_cast<std::size_t>(step.theirs.begin)].begin,
                                                members.ranges[static_cast<std::size_t>(step.theirs.end) - 1].end});
    if (step.finished) {
      mine = std::move(theirs);
    } else {
      mine = step.peer_is_left(members.me) ? join(std::move(theirs), mine) : join(std::move(mine), theirs);
    }
  }
  return mine;
}

void PlanBuilder::broadcast(std::span<const int> ranks, int me, Blocks blocks) {
  collective();
  const std::vector<ExchangeStep> up = reduce_to_first(static_cast<int>(ranks.size()), me);
  for (auto step = up.rbegin(); step != up.rend(); ++step) {
    const int peer = ranks[static_cast<std::size_t>(step->peer)];
    exchange();
    if (step->sends) receive(peer, blocks);
    if (step->receives) send(peer, blocks);
  }
}

Plan PlanBuilder::take() {
  std::erase_if(plan_.operations, [](const Operation& operation) {
    const auto* exchange = std::get_if<Exchange>(&operation);
    return exchange != nullptr && exchange->sends.empty() && exchange->receives.empty();
  });
  return std::move(plan_);
}

std::vector<std::vector<RowSlice>> equal_slices(int n) {
  std::vector<std::vector<RowSlice>> slices;
  for (int i = 0; i < n; ++i) slices.push_back({{i, n}});
  return slices;
}

std::vector<KeyRange> ranges_of_nodes(const Topology& topology, std::span<const KeyRange> ranges) {
  std::vector<KeyRange> result;
  for (int i = 0; i < topology.n_nodes(); ++i) {
    const std::vector<int>& node = topology.node(i);
    result.push_back({topology.range_of(node.front(), ranges).begin, topology.range_of(node.back(), ranges).end});
  }
  return result;
}

Members members_of_node(const Topology& topology, int rank, std::span<const KeyRange> ranges) {
  const std::vector<int>& ranks = topology.node(topology.node_of(rank));
  const auto first = static_cast<std::size_t>(topology.index_of(ranks.front()));
  return {ranks, ranges.subspan(first, ranks.size()), topology.local_rank(rank)};
}

namespace {

/// Messages to one other node that a link carries at the same time, if every rank sends one.
double copies_on_a_link(const Topology& topology, const PlanOptions& options) {
  const int n = static_cast<int>(topology.node(0).size()), n_links = options.network.links_per_node;
  return topology.n_nodes() == 1 || n_links == 0 ? 1 : std::max(1.0, static_cast<double>(n) / n_links);
}

}  // namespace

int n_slices(const Topology& topology, double message_bytes, const PlanOptions& options) {
  const std::size_t n = topology.node(0).size();
  if (topology.size() <= 2 || !topology.has_equal_nodes()) return 1;
  const double on_a_link = message_bytes * copies_on_a_link(topology, options);
  return on_a_link > static_cast<double>(options.slice_limit()) ? static_cast<int>(n) : 1;
}

int radix_between_nodes(const Topology& topology, double message_bytes, const PlanOptions& options) {
  if (options.radix > 0) return options.radix;
  const double on_a_link = message_bytes * copies_on_a_link(topology, options) / n_slices(topology, message_bytes, options);
  return default_radix(options.network.between, options.network.overhead_us, topology.n_nodes(), on_a_link);
}

bool library_gathers(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options) {
  const auto n_states = [](const KeyRange& range) { return n_subtrees(range.begin, range.end); };
  const int p = topology.size(), n = n_states(ranges.front());
  const auto has_as_many = [&](const KeyRange& range) { return n_states(range) == n; };
  if (options.network.gather_us <= 0 || options.node_radix > 0 || topology.n_nodes() > 1 || p == 1 || n == 0 ||
      !std::ranges::all_of(ranges, has_as_many))
    return false;
  const Link& link = options.network.inside;
  const double overhead = options.network.overhead_us, bytes = longest_forest_bytes(ranges, options);
  // Cut by rows, slices are scattered in one round and gathered in another.
  const double by_messages = n_slices(topology, bytes, options) > 1
                                 ? 2 * join_time(link, overhead, p, p, bytes / p)
                                 : join_time(link, overhead, p, default_radix(link, overhead, p, bytes), bytes);
  return bytes > 0 && options.network.gather_us + (p - 1) * bytes / link.bytes_per_us < by_messages;
}

double longest_forest_bytes(std::span<const KeyRange> ranges, const PlanOptions& options) {
  int n = 0;
  for (const KeyRange& range : ranges) n = std::max(n, n_subtrees(range.begin, range.end));
  return static_cast<double>(n) * static_cast<double>(options.n_rows) * static_cast<double>(state_size(options.d_v)) *
         sizeof(float);
}

}  // namespace tree_attn
