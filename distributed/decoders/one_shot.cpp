// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch per step: the kernel that decodes exchanges and merges the states of a node (section 5.3, Alg. 3).
///
/// On one node the kernel finishes the rows too. On several nodes it leaves the states of the node's range, on every rank of
/// the node: the forest that a node has in `two-level` after its round inside the node. The rounds between nodes are those
/// of `two-level`, carried out by a plan whose own blocks are these states.
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/distributed/decoders/device_fabric.hpp"
#include "tree_attn/distributed/decoders/host_fabric.hpp"
#include "tree_attn/distributed/decoders/keys_read.hpp"
#include "tree_attn/distributed/plan/plan_builder.hpp"
#include "tree_attn/distributed/transport/nccl_transport.hpp"
#include "tree_attn/distributed/transport/ranks.hpp"
#include "tree_attn/gpu/backend/one_shot_session.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn {
namespace {

/// Whether states leave the kernel, to be merged with those of other nodes.
bool leaves_states(const Topology& topology) { return topology.n_nodes() > 1; }

/// What a rank stores into the windows of the others of its node: states; then, if rows have owners, what the owner has made
/// of them.
/// @param node with closed ranges
std::vector<RankCost::Round> exchange_of(const Members& node, bool leaves_states, std::int64_t n_rows, std::int64_t d_v) {
  RankCost::Round states{.is_stored = true}, rows{.is_stored = true};
  for (std::size_t i = 0; i < node.ranks.size(); ++i) {
    const int other = static_cast<int>(i), peer = node.ranks[i];
    if (other == node.me) continue;
    const StoredBytes sent = one_shot_bytes(node.ranges, node.me, other, n_rows, d_v, leaves_states),
                      received = one_shot_bytes(node.ranges, other, node.me, n_rows, d_v, leaves_states);
    if (sent.states > 0) states.sends.push_back({peer, sent.states});
    if (sent.rows > 0) rows.sends.push_back({peer, sent.rows});
    if (received.states > 0) states.receives.push_back({peer, received.states});
    if (received.rows > 0) rows.receives.push_back({peer, received.rows});
  }
  return {states, rows};
}

/// 0 on one node, where no blocks are joined.
int radix_of_one_shot(const Topology& topology, std::span<const KeyRange> ranges, const PlanOptions& options) {
  if (!leaves_states(topology)) return 0;
  return radix_between_nodes(topology, longest_forest_bytes(ranges_of_nodes(topology, ranges), options), options);
}

/// What follows the kernel on several nodes. @param ranges closed
Plan plan_between_nodes(const Topology& topology, int rank, std::span<const KeyRange> ranges, const PlanOptions& options) {
  PlanBuilder builder;
  const std::vector<KeyRange> nodes = ranges_of_nodes(topology, ranges);
  const KeyRange own = nodes[static_cast<std::size_t>(topology.node_of(rank))];
  const int radix = radix_of_one_shot(topology, ranges, options);

  // Cut by rows: each rank of the node joins one slice with the ranks of its index in the other nodes.
  if (const int n = n_slices(topology, longest_forest_bytes(nodes, options), options); n > 1) {
    const Members node = members_of_node(topology, rank, ranges);
    BlockForest forest = builder.take_slice(node, builder.own_slices(own, n));
    forest = builder.join_slices(topology, rank, nodes, radix, std::move(forest));
    builder.gather_output(node, builder.root(std::move(forest)));
    return builder.take();
  }
  BlockForest forest = builder.own(own);
  forest = builder.join_nodes(topology, rank, ranges, radix, std::move(forest));
  builder.finish(builder.root(std::move(forest)));
  return builder.take();
}

/// The ranks tell each other where their windows are; states are stored by the kernels. What they leave is finished, or goes
/// into the plan between nodes.
class OneShotDecoder : public Decoder {
 public:
  OneShotDecoder(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges, const PlanOptions& options)
      : Decoder(transport, shard),
        ranges_(ranges.begin(), ranges.end()),
        options_(options),
        session_(open_one_shot(*shard.cache, shard.session->scale(),
                               {.timeout = transport.ranks().deadline().seconds(),
                                .windows_on_host = options.windows_on_host,
                                .steps_done = options.steps_done,
                                .most_queries = shard.most_queries,
                                .result = !leaves_states(transport.topology()) ? OneShotResult::kOutput
                                          : transport.device() != nullptr      ? OneShotResult::kStatesOnDevice
                                                                               : OneShotResult::kStates})) {
    if (session_ == nullptr) throw std::logic_error("one-shot: the cache is on no device");
    if (ranges_.back().end != kOpenEnd) connect(ranges_, std::max<std::int64_t>(1, shard.most_queries));
  }
  /// A window is freed after all others have closed it: collective where ranks are processes or a library has mapped it,
  /// except after an error.
  ~OneShotDecoder() override {
    // Kernels of this rank, and of the others, may wait for what this rank will not send any more.
    const bool has_failed = has_failed_ || std::uncaught_exceptions() > n_exceptions_;
    if (has_failed) session_->give_up();
    session_->disconnect();
    if ((transport_.ranks().is_one_process() && windows_ != "nccl") || connected_.empty() || has_failed) return;
    try {
      transport_.ranks().all_gather(transport_.rank(), "all ranks to close their windows");
    } catch (const std::exception&) {
      // A destructor cannot report it. Ranks that wait for this one have a deadline.
    }
  }

  std::string_view windows() const override { return windows_; }

 protected:
  OutputView run(const Step& step) override {
    try {
      return decode(step);
    } catch (const PeerFailed& error) {
      fail();
      throw OtherRankFailed(error.what());
    } catch (const DeviceError&) {
      fail();
      throw;
    } catch (const TransportError&) {
      fail();
      throw;
    }
  }

 private:
  void fail() {
    has_failed_ = true;
    session_->give_up();
    if (transport_.device() == nullptr) transport_.abandon();
  }
  OutputView decode(const Step& step) {
    if (step.changes_scores())
      throw InputError("one-shot: its kernel has no mask and no soft cap; use two-level with the backend cpu");
    if (step.rule.window > 0 || !step.sink.empty())
      throw InputError("one-shot: its kernel has no window and no learned sinks; use two-level");
    // Lengths and queries are the same on every rank, so all ranks come here in the same step.
    const std::int64_t longest = step.longest(), l = step.q.shape[2];
    const bool is_connected =
        !connected_.empty() && l <= most_queries_ && closed(ranges_.back(), longest) == connected_.back();
    if (!is_connected || longest > n_prepared_ || (l != l_ && leaves_states(transport_.topology()))) prepare(longest, l);
    if (l != l_) plan(l);
    const OneShotSession::Output result = session_->step(step, progress_);
    // On one node there is no moment at which the states are there and the output is not.
    set_states_ready(transport_.seconds());
    transport_.count_collectives(1);
    transport_.count_stored(n_stored_, session_->bytes_sent());
    transport_.count_merge_steps(n_merges_);
    if (on_host_) return on_host_->step(result.states);
    if (!on_device_) return {result.out, result.lse};
    const OutputView output = on_device_->step(result.states_on_device);
    // The library may take memory when ranks exchange for the first time, and when the exchange is recorded: no kernel of
    // the node may wait meanwhile.
    if (!on_device_->was_launched()) transport_.ranks().all_gather(transport_.rank(), "all ranks to have exchanged");
    return output;
  }
  /// Prepares all ranks for steps up to some length: no rank begins one while another takes memory or connects.
  void prepare(std::int64_t longest, std::int64_t l) {
    // The first step needs no more than the cache has. Where sequences grow, a quarter more.
    if (longest > n_prepared_) n_prepared_ = n_prepared_ < 0 ? longest : longest + longest / 4;
    KvCache& cache = *shard_.cache;
    cache.reserve(std::min(cache.leaves().n_keys(n_prepared_), cache.leaves().most_keys()));
    const std::vector<KeyRange> now = closed(ranges_, longest);
    if (connected_.empty() || l > most_queries_ || now.back() != connected_.back())
      connect(now, std::max({std::int64_t{1}, l, most_queries_, shard_.most_queries}));
    session_->prepare(longest);
    plan(l);
    transport_.ranks().all_gather(transport_.rank(), "all ranks to be ready for a step");
  }
  /// Tells the others where the new window of this rank is, for steps of up to so many queries.
  void connect(const std::vector<KeyRange>& ranges, std::int64_t most_queries) {
    const Topology& topology = transport_.topology();
    const int rank = transport_.rank();
    const Members node = members_of_node(topology, rank, ranges);
    const AttentionShape& shape = shard_.cache->shape();
    const std::int64_t n_bytes =
        one_shot_window_bytes(node.ranges, shape.n_rows(1), shape.value_dim, leaves_states(topology), most_queries);
    NcclTransport* const device = options_.windows_on_host || n_bytes == 0 ? nullptr : transport_.device();
    std::shared_ptr<NodeMemory> memory;
    if (device != nullptr) memory = device->allocate_on_node(static_cast<std::size_t>(n_bytes));
    windows_ = memory != nullptr ? "nccl" : options_.windows_on_host ? "host" : "process";
    const std::vector<NodeWindow> by_rank =
        transport_.ranks().all_gather(session_->open_window(node.ranges, node.me, rank, !transport_.ranks().is_one_process(),
                                                            std::move(memory), most_queries),
                                      "the windows of all ranks");
    std::vector<NodeWindow> windows;
    for (const int each : node.ranks) {
      windows.push_back(by_rank[static_cast<std::size_t>(each)]);
      if (windows_ == "process" && windows.back().process != by_rank[static_cast<std::size_t>(node.ranks.front())].process)
        windows_ = "ipc";
    }
    // A device may be refused in one node alone.
    run_on_all<DeviceError>(transport_.ranks(), [&] { session_->connect(windows); });
    connected_ = ranges, most_queries_ = most_queries;
    plan(most_queries);
  }
  /// Plans for steps of l queries over the ranges that are connected.
  void plan(std::int64_t l) {
    const Topology& topology = transport_.topology();
    const int rank = transport_.rank();
    const Members node = members_of_node(topology, rank, connected_);
    const AttentionShape& shape = shard_.cache->shape();
    l_ = l;
    if (leaves_states(topology)) {
      Plan plan = plan_between_nodes(topology, rank, connected_, options_.for_step(shape, l));
      if (NcclTransport* const to = transport_.device())
        on_device_.emplace(transport_, std::move(plan), shape.n_rows(l), shape.value_dim, to->make_blocks());
      else
        on_host_.emplace(transport_, std::move(plan), shape.n_rows(l), shape.value_dim);
    }

    // The states of all subtrees become one, or those of the node.
    std::int64_t n = 0;
    for (const KeyRange& range : node.ranges) n += n_subtrees(range.begin, range.end);
    const std::int64_t n_left = leaves_states(topology) ? n_subtrees(node.ranges.front().begin, node.ranges.back().end)
                                                        : std::min<std::int64_t>(n, 1);
    n_merges_ = n - n_left;

    n_stored_ = 0;
    for (const RankCost::Round& round : exchange_of(node, leaves_states(topology), shape.n_rows(l), shape.value_dim))
      n_stored_ += static_cast<std::int64_t>(round.sends.size());
  }

  std::vector<KeyRange> ranges_, connected_;
  std::int64_t n_prepared_ = -1;            ///< longest sequence that all ranks are prepared for
  std::int64_t most_queries_ = 0, l_ = -1;  ///< queries that all ranks are prepared for, and of the plan
  std::string_view windows_;
  PlanOptions options_;
  std::unique_ptr<OneShotSession> session_;
  bool has_failed_ = false;  ///< in a step: others may not arrive any more
  int n_exceptions_ = std::uncaught_exceptions();
  std::optional<HostFabric> on_host_;         ///< what follows the kernel on several nodes
  std::optional<DeviceFabric> on_device_;     ///< in its place, if messages are sent from device memory
  std::int64_t n_merges_ = 0, n_stored_ = 0;  ///< of the kernel in a step: merge steps, and windows stored into
};

std::unique_ptr<Decoder> open_decoder(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges,
                                      const PlanOptions& options) {
  return std::make_unique<OneShotDecoder>(transport, shard, ranges, options);
}

std::string refusal(const Topology& topology, const Backend* backend, const WorkloadShape& shape) {
  if (shape.rule.window > 0 || !shape.sink.empty()) return "its kernel has no window and no learned sinks; use two-level";
  if (backend != nullptr && !backend->has_windows())
    return "one kernel decodes and exchanges, and --backend " + std::string(backend->name()) +
           " has none; use emulated or cuda, or another algorithm";
  int n = 0;
  for (int node = 0; node < topology.n_nodes(); ++node) n = std::max(n, static_cast<int>(topology.node(node).size()));
  if (n <= kMostOneShotRanks) return "";
  return "a node of " + std::to_string(n) + " ranks; at most " + std::to_string(kMostOneShotRanks) + "; use two-level";
}

/// Every rank decodes, then stores into the windows of its node. Where rows have owners, these merge before they store. Then
/// the rounds between nodes.
RankCost cost(const Topology& topology, int rank, std::span<const KeyRange> open, const WorkloadShape& shape,
              const PlanOptions& options) {
  if (const std::string why = refusal(topology, nullptr, shape); !why.empty()) throw std::logic_error("one-shot: " + why);
  const std::vector<KeyRange> ranges = closed(open, shape.longest());
  const Members node = members_of_node(topology, rank, ranges);
  const std::int64_t n_rows = shape.n_rows(), d_v = shape.value_dim;
  RankCost cost;
  const OwnedLeaves leaves(topology.range_of(rank, open), shape.order);
  cost.rounds.push_back({.decoded_bytes = bytes_read(leaves, shape)});
  std::vector<RankCost::Round> exchange = exchange_of(node, leaves_states(topology), n_rows, d_v);
  Forest<float> joined(0, 0);
  for (const KeyRange& each : node.ranges) joined.append(cover(each.begin, each.end), nullptr);
  if (!leaves_states(topology)) joined.fold();
  cost.collectives = 1;
  cost.merge_steps = exchange.front().merge_steps = joined.n_merges();
  std::ranges::move(exchange, std::back_inserter(cost.rounds));

  // The own states, and the window that the others store into.
  const KeyRange range = topology.range_of(rank, ranges);
  cost.elements =
      n_rows * n_subtrees(range.begin, range.end) * state_size(d_v) +
      one_shot_window_bytes(node.ranges, shape.AttentionShape::n_rows(1), d_v, leaves_states(topology), shape.n_queries) /
          static_cast<std::int64_t>(sizeof(float));
  if (!leaves_states(topology)) {
    cost.elements += n_rows * (d_v + 1);
    return cost;
  }

  // The states of the node, and the plan that begins with them.
  RankCost between = cost_of(plan_between_nodes(topology, rank, ranges, options), n_rows, d_v);
  cost.elements += n_rows * std::ssize(joined.subtrees()) * state_size(d_v) + between.elements;
  cost.collectives += between.collectives;
  cost.merge_steps += between.merge_steps;
  cost.rounds.back().merge_steps += between.rounds.front().merge_steps;
  std::move(between.rounds.begin() + 1, between.rounds.end(), std::back_inserter(cost.rounds));
  return cost;
}

}  // namespace

extern const Algorithm kOneShot;
constinit const Algorithm kOneShot{.name = "one-shot",
                                   .brief =
                                       "one kernel decodes, exchanges and merges in a node, plans between nodes: "
                                       "emulated and cuda",
                                   .takes_dealt = false,
                                   .exchange = OwnDecoder{open_decoder, cost},
                                   .radix = radix_of_one_shot,
                                   .refusal = refusal};

}  // namespace tree_attn
