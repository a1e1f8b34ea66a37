// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The plan that scatters the output by heads, and the states of (o, lse).
#include "distributed/interface/combiner.hpp"

#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/decoder_setup.hpp"
#include "distributed/exchange/host_blocks.hpp"
#include "distributed/exchange/plan_builder.hpp"
#include "reference/tensor/float_environment.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

namespace tree_attn {
namespace {

/// One position of the tree for each of p ranks.
std::vector<KeyRange> positions_of(int p) {
  return ranges_of_lengths(std::vector<std::int64_t>(static_cast<std::size_t>(p), 1));
}

/// Tests whether a node has the subtree of its ranks, so that one state for each row leaves it.
bool has_two_rounds(const Topology& topology) {
  return topology.has_equal_nodes() && std::has_single_bit(topology.node(0).size());
}

/// The rank that ends with slice i of the rows: with two rounds ranks with equal local ranks have adjacent slices.
int owner(const Topology& topology, int i) {
  const int n_nodes = topology.n_nodes();
  if (!has_two_rounds(topology)) return topology.order()[static_cast<std::size_t>(i)];
  return topology.node(i % n_nodes)[static_cast<std::size_t>(i / n_nodes)];
}

Plan heads_plan(const Topology& topology, int rank) {
  const int p = topology.size(), me = topology.index_of(rank);
  const std::vector<KeyRange> ranges = positions_of(p);
  PlanBuilder builder;
  const std::vector<BlockForest> slices = builder.own_slices(ranges[static_cast<std::size_t>(me)], p);
  const auto output = [&](int slice) { return builder.allocate_output({slice, p}); };
  if (!has_two_rounds(topology)) {
    const Block state = builder.root(builder.scatter_rows({topology.order(), ranges, me}, slices));
    builder.finish(state, output(me));
    return builder.take();
  }

  // Round one, in the node: local rank i gets the slices of all ranks with this local rank, one for each node.
  const Members node = members_of_node(topology, rank, ranges);
  const int n = static_cast<int>(node.ranks.size()), n_nodes = topology.n_nodes(), my_node = topology.node_of(rank);
  const auto width = [&](int slice) { return kStateBlock.of({slice, p}); };
  std::vector<BlockForest> forests(static_cast<std::size_t>(n));
  builder.collective();
  builder.exchange();
  for (int distance = 1; distance < n; ++distance) {
    const int from = (node.me + n - distance) % n, to = (node.me + distance) % n;
    const Block first = builder.allocate(width(node.me * n_nodes)).first;
    for (int i = 1; i < n_nodes; ++i) builder.allocate(width(node.me * n_nodes + i));
    builder.receive(node.ranks[static_cast<std::size_t>(from)], Blocks{first, n_nodes});
    builder.send(node.ranks[static_cast<std::size_t>(to)], Blocks{to * n_nodes, n_nodes});
    const KeyRange range = node.ranges[static_cast<std::size_t>(from)];
    forests[static_cast<std::size_t>(from)] = {cover(range.begin, range.end), {first}};
  }
  forests[static_cast<std::size_t>(node.me)] = slices[static_cast<std::size_t>(node.me * n_nodes)];
  const BlockForest joined = builder.join(forests, n_nodes);

  // Round two, between nodes: each of these ranks gets its slice.
  std::vector<BlockForest> nodes(static_cast<std::size_t>(n_nodes), joined);
  builder.collective();
  builder.exchange();
  for (int distance = 1; distance < n_nodes; ++distance) {
    const int from = (my_node + n_nodes - distance) % n_nodes, to = (my_node + distance) % n_nodes;
    BlockForest& theirs = nodes[static_cast<std::size_t>(from)];
    theirs.subtrees = cover(std::int64_t{from} * n, std::int64_t{from + 1} * n);
    theirs.blocks = {builder.allocate(width(node.me * n_nodes + my_node)).first};
    builder.receive(topology.node(from)[static_cast<std::size_t>(node.me)], Blocks{theirs.blocks.front(), 1});
    builder.send(topology.node(to)[static_cast<std::size_t>(node.me)], Blocks{joined.blocks.front() + to, 1});
  }
  nodes[static_cast<std::size_t>(my_node)].blocks = {joined.blocks.front() + my_node};
  const Block state = builder.root(builder.join(nodes));
  builder.finish(state, output(node.me * n_nodes + my_node));
  return builder.take();
}

void check_shape(const Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part) {
  const auto& [b, n_h, l, d_v] = shape;
  const double n =
      static_cast<double>(b) * static_cast<double>(n_h) * static_cast<double>(l) * (2 + static_cast<double>(d_v));
  require(*std::ranges::min_element(shape) >= 0 && n <= 0x1p40, "Combiner: b = ", b, ", n_h = ", n_h, ", l = ", l,
          ", d_v = ", d_v, "; an axis is negative, or the states have more than 2^40 elements");
  require(part == OutputPart::kAll || n_h % transport.size() == 0, "Combiner: ", n_h, " heads cannot be scattered over ",
          transport.size(), " ranks");
}

/// The arguments, compared and checked.
const std::array<std::int64_t, 4>& agreed(const Transport& transport, const std::array<std::int64_t, 4>& shape,
                                          OutputPart part, const PlanOptions& options) {
  const FloatEnvironment environment;
  const auto& [b, n_h, l, d_v] = shape;
  std::vector<Field> fields = fields_of(options);
  fields.insert(fields.begin(), {Field{"b", b}, Field{"n_h", n_h}, Field{"l", l}, Field{"d_v", d_v},
                                 Field{"by heads", part == OutputPart::kHeads}});
  require_equal(transport.ranks(), "Combiner", "all ranks to open a combiner", fields);
  check_shape(transport, shape, part);
  return shape;
}

Plan plan_of(const Transport& transport, OutputPart part, PlanOptions options, std::int64_t n_rows, std::int64_t d_v) {
  const FloatEnvironment environment;
  const Topology& topology = transport.topology();
  if (part == OutputPart::kHeads) return heads_plan(topology, transport.rank());
  options.n_rows = n_rows, options.d_v = d_v;
  const auto& exchange = find_algorithm("two-level").exchange;
  return std::get<PlanOf>(exchange)(topology, transport.rank(), positions_of(topology.size()), options);
}

}  // namespace

Combiner::Combiner(Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part, PlanOptions options,
                   MakeBlocks make_blocks)
    : transport_(transport),
      shape_(agreed(transport, shape, part, options)),
      part_(part),
      n_rows_(shape[0] * shape[1] * shape[2]),
      plan_(plan_of(transport, part, std::move(options), n_rows_, shape[3])),
      make_blocks_(transport.device() != nullptr ? transport.device()->make_blocks() : make_blocks) {}

RankCost Combiner::cost() const { return cost_of(plan_, n_rows_, shape_[3]); }

void Combiner::check(Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part, bool has_device,
                     const TensorView& o, const TensorView& lse) {
  check_shape(transport, shape, part);
  const auto [b, n_h, l, d_v] = shape;
  const bool has_axes = o.shape == shape && lse.shape == std::array{b, n_h, l, std::int64_t{1}};
  require(has_axes, "Combiner::combine: o is [", o.shape[0], ", ", o.shape[1], ", ", o.shape[2], ", ", o.shape[3],
          "] and lse [", lse.shape[0], ", ", lse.shape[1], ", ", lse.shape[2], ", ", lse.shape[3], "]; expected [", b, ", ",
          n_h, ", ", l, ", ", d_v, "] and [", b, ", ", n_h, ", ", l, ", 1]");
  require_view("Combiner::combine", o, "o", has_device);
  require_view("Combiner::combine", lse, "lse", has_device);
  require(o.on_device == lse.on_device && (o.on_device || transport.device() == nullptr),
          "Combiner::combine: o and lse have to be in the same memory, and for the transport ", transport.name(),
          " in that ", transport.device() != nullptr ? "of the device" : "of the host or its device");
}

Combiner::Side& Combiner::side(bool on_device) {
  Side& side = sides_[on_device];
  if (side.runner) return side;
  const auto [b, n_h, l, d_v] = shape_;
  const std::int64_t n_elements = n_rows_ * state_size(d_v) + b * n_heads() * l * (d_v + 1);
  DeviceStream* stream = nullptr;
  if (on_device) {
    auto blocks = make_blocks_(n_elements, d_v, nullptr, nullptr);
    stream = &blocks->stream();
    side.memory = std::move(blocks);
  } else {
    side.memory = std::make_unique<HostBlocks>(n_elements, d_v);
  }
  side.runner.emplace(transport_, plan_, n_rows_, d_v,
                      std::make_shared<RunnerMemory>(transport_, RunnerSize(plan_, n_rows_, d_v), d_v,
                                                     on_device ? make_blocks_ : nullptr, stream));
  side.runner->leave_output(on_device);
  return side;
}

OutputView Combiner::combine(const TensorView& o, const TensorView& lse, LseForm form) {
  const FloatEnvironment environment;
  check(transport_, shape_, part_, make_blocks_ != nullptr, o, lse);
  const auto [b, n_h, l, d_v] = shape_;
  const std::int64_t n = n_heads(), n_states = n_rows_ * state_size(d_v), n_out = b * n * l * d_v;
  auto& [memory, runner] = side(o.on_device);

  // With all rows, state (i, h, j) is row (i n_h + h) l + j. By heads those of a rank are adjacent: the batch comes after
  // the head.
  const bool by_heads = part_ == OutputPart::kHeads;
  const auto heads_first = [&](TensorView view, std::int64_t first) {
    view.data = n_rows_ > 0 ? view.element(first * view.stride[1]) : view.data;
    view.shape[1] = n;
    std::swap(view.shape[0], view.shape[1]), std::swap(view.stride[0], view.stride[1]);
    return view;
  };
  memory->follow_default();
  if (!by_heads) memory->set_from_lse(0, o, lse, form);
  for (int slice = 0; by_heads && slice < transport_.size(); ++slice) {
    const std::int64_t first = owner(transport_.topology(), slice) * n;
    memory->set_from_lse(slice * n * b * l * state_size(d_v), heads_first(o, first), heads_first(lse, first), form);
  }
  const OutputView output = runner->step({memory->address(0), static_cast<std::size_t>(n_states)});
  if (!by_heads || b == 1) return output;

  // [n_h / p, b, l] becomes [b, n_h / p, l].
  const auto turned = [&, b = b, l = l](std::span<const float> from, std::int64_t at, std::int64_t d) {
    TensorView source = TensorView::dense(from.data(), DType::F32, {n, b, l, d}),
               target = TensorView::dense(memory->address(at), DType::F32, {b, n, l, d});
    source.on_device = target.on_device = o.on_device;
    memory->convert(source, heads_first(target, 0));
    return std::span<const float>(memory->address(at), from.size());
  };
  const OutputView result{turned(output.out, n_states, d_v), turned(output.lse, n_states + n_out, 1), o.on_device};
  memory->wait();
  return result;
}

}  // namespace tree_attn
