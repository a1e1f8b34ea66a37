// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch per step: the kernel that decodes exchanges and merges the states of a node (section 5.3, Alg. 3).
#include "distributed/decoders/decoder.hpp"
#include "distributed/transport/device_transport.hpp"
#include "gpu/backend/one_shot_session.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {
namespace {

/// What a rank stores into the windows of the others: states; then finished rows, if rows have owners.
/// @param order of the ranks @param me place of the rank in it @param ranges closed
std::vector<RankCost::Round> exchange_of(const std::vector<int>& order, int me, std::span<const KeyRange> ranges,
                                         std::int64_t n_rows, std::int64_t d_v) {
  RankCost::Round states{.is_stored = true}, rows{.is_stored = true};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const int other = static_cast<int>(i);
    if (other == me) continue;
    const StoredBytes sent = one_shot_bytes(ranges, me, other, n_rows, d_v),
                      received = one_shot_bytes(ranges, other, me, n_rows, d_v);
    if (sent.states > 0) states.sends.push_back({order[i], sent.states});
    if (sent.rows > 0) rows.sends.push_back({order[i], sent.rows});
    if (received.states > 0) states.receives.push_back({order[i], received.states});
    if (received.rows > 0) rows.receives.push_back({order[i], received.rows});
  }
  return {states, rows};
}

bool same(KeyRange a, KeyRange b) { return a.begin == b.begin && a.end == b.end; }

/// The ranks tell each other where their windows are; states are stored by the kernels.
class OneShotDecoder : public Decoder {
 public:
  OneShotDecoder(Transport& transport, ShardDecoder& shard, std::span<const KeyRange> ranges, const PlanOptions& options)
      : Decoder(transport, shard),
        ranges_(ranges.begin(), ranges.end()),
        windows_on_host_(options.windows_on_host),
        session_(open_one_shot(shard.cache(), shard.scale(),
                               {.timeout = transport.timeout(),
                                .windows_on_host = options.windows_on_host,
                                .steps_done = options.steps_done})) {
    if (session_ == nullptr) throw std::logic_error("one-shot: the cache is on no device");
    if (ranges_.back().end != kOpenEnd) connect(ranges_);
  }
  /// A window is freed after all others have closed it: collective where ranks are processes, except after an error.
  ~OneShotDecoder() override {
    // Kernels of this rank, and of the others, may wait for what this rank will not send any more.
    if (std::uncaught_exceptions() > 0) session_->give_up();
    session_->disconnect();
    if (transport_.is_one_process() || connected_.empty() || std::uncaught_exceptions() > 0) return;
    try {
      transport_.tell_all(transport_.rank(), "all ranks to close their windows");
    } catch (const std::exception&) {
      // A destructor cannot report it. Ranks that wait for this one have a deadline.
    }
  }

  OutputView step(const TensorView& q, std::span<const std::int64_t> lengths, int lift) override {
    try {
      return decode(q, lengths, lift);
    } catch (const PeerFailed& error) {
      throw OtherRankFailed(error.what());
    } catch (const DeviceError&) {
      session_->give_up();
      throw;
    }
  }
  std::string_view windows() const override { return windows_; }

 private:
  OutputView decode(const TensorView& q, std::span<const std::int64_t> lengths, int lift) {
    // The lengths are the same on every rank, so all ranks come here in the same step.
    const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    const bool is_connected = !connected_.empty() && same(closed(ranges_.back(), longest), connected_.back());
    if (!is_connected || longest > n_prepared_) prepare(lengths, longest);
    const OneShotSession::Output output = session_->step(q, lengths, lift, progress_);
    // There is no moment at which the states are there and the output is not.
    set_states_ready(transport_.seconds());
    transport_.count_collectives(1);
    transport_.count_stored(n_stored_, session_->bytes_sent());
    transport_.count_merge_steps(n_merges_);
    return {output.out, output.lse};
  }
  /// Prepares all ranks for steps up to some length: no rank begins one while another takes memory or connects.
  void prepare(std::span<const std::int64_t> lengths, std::int64_t longest) {
    // The first step needs no more than the cache has. Where sequences grow, a quarter more.
    if (longest > n_prepared_) n_prepared_ = n_prepared_ < 0 ? longest : longest + longest / 4;
    KvCache& cache = shard_.cache();
    cache.reserve(std::min(cache.leaves().n_keys(n_prepared_), cache.leaves().most_keys()));
    const std::vector<KeyRange> now = closed(ranges_, longest);
    if (connected_.empty() || !same(now.back(), connected_.back())) connect(now);
    session_->prepare(lengths);
    transport_.tell_all(transport_.rank(), "all ranks to be ready for a step");
  }
  /// Tells the others where the new window of this rank is.
  void connect(const std::vector<KeyRange>& ranges) {
    const std::vector<int>& order = transport_.topology().order();
    const int me = transport_.topology().index_of(transport_.rank());
    const AttentionShape& shape = shard_.cache().shape();
    const std::int64_t n_bytes = one_shot_window_bytes(ranges, shape.n_rows(), shape.value_dim);
    DeviceTransport* const device = windows_on_host_ || n_bytes == 0 ? nullptr : transport_.device();
    std::shared_ptr<NodeMemory> memory;
    if (device != nullptr) memory = device->allocate_on_node(static_cast<std::size_t>(n_bytes));
    windows_ = memory != nullptr ? "nccl" : windows_on_host_ ? "host" : "process";
    const std::vector<NodeWindow> by_rank = transport_.tell_all(
        session_->open_window(ranges, me, transport_.rank(), !transport_.is_one_process(), std::move(memory)),
        "the windows of all ranks");
    std::vector<NodeWindow> windows;
    for (const int rank : order) {
      windows.push_back(by_rank[static_cast<std::size_t>(rank)]);
      if (windows_ == "process" && windows.back().process != by_rank.front().process) windows_ = "ipc";
    }
    session_->connect(windows);
    connected_ = ranges;

    // The states of all subtrees become one.
    std::int64_t n = 0;
    for (const KeyRange& range : ranges) n += n_subtrees(range.begin, range.end);
    n_merges_ = std::max<std::int64_t>(0, n - 1);

    n_stored_ = 0;
    for (const RankCost::Round& round : exchange_of(order, me, ranges, shape.n_rows(), shape.value_dim))
      n_stored_ += static_cast<std::int64_t>(round.sends.size());
  }

  std::vector<KeyRange> ranges_, connected_;
  std::int64_t n_prepared_ = -1;  ///< longest sequence that all ranks are prepared for
  bool windows_on_host_;
  std::string_view windows_;
  std::unique_ptr<OneShotSession> session_;
  std::int64_t n_merges_ = 0, n_stored_ = 0;  ///< in a step: merge steps, and windows stored into
};

std::unique_ptr<Decoder> open_decoder(Transport& transport, ShardDecoder& shard, std::span<const KeyRange> ranges,
                                      const PlanOptions& options) {
  return std::make_unique<OneShotDecoder>(transport, shard, ranges, options);
}

std::string refuses_ranks(const Topology& topology) {
  if (topology.n_nodes() > 1)
    return std::to_string(topology.n_nodes()) + " nodes; its kernels reach the devices of one node; use two-level";
  if (topology.size() > kMostOneShotRanks)
    return std::to_string(topology.size()) + " ranks; at most " + std::to_string(kMostOneShotRanks) + "; use two-level";
  return "";
}

std::string refusal(const Backend& backend, const Transport& transport, std::span<const KeyRange>, const WorkloadShape&) {
  const Topology& topology = transport.topology();
  if (!backend.has_windows())
    return "one kernel decodes and exchanges, and --backend " + std::string(backend.name()) +
           " has none; use emulated or cuda, or another algorithm";
  return refuses_ranks(topology);
}

/// Every rank decodes, then stores into the windows of all others. Where rows have owners, these merge before they store.
RankCost cost(const Topology& topology, int rank, std::span<const KeyRange> open, const WorkloadShape& shape) {
  if (const std::string why = refuses_ranks(topology); !why.empty()) throw std::logic_error("one-shot: " + why);
  const std::vector<KeyRange> ranges = closed(open, shape.longest());
  RankCost cost;
  const OwnedLeaves leaves(topology.range_of(rank, open), shape.order);
  cost.rounds.push_back({.decoded_bytes = leaves.n_keys(shape.longest()) * shape.bytes_per_position()});
  std::vector<RankCost::Round> exchange =
      exchange_of(topology.order(), topology.index_of(rank), ranges, shape.n_rows(), shape.value_dim);
  Forest<float> joined(0, 0);
  for (const KeyRange& each : ranges) joined.append(cover(each.begin, each.end), nullptr);
  joined.fold();
  cost.collectives = 1;
  cost.merge_steps = exchange.front().merge_steps = joined.n_merges();
  std::ranges::move(exchange, std::back_inserter(cost.rounds));

  // The own states and the output, and the window that the others store into.
  const KeyRange range = topology.range_of(rank, ranges);
  cost.elements = shape.n_rows() * (n_subtrees(range.begin, range.end) * state_size(shape.value_dim) + shape.value_dim + 1) +
                  one_shot_window_bytes(ranges, shape.n_rows(), shape.value_dim) / static_cast<std::int64_t>(sizeof(float));
  return cost;
}

/// At most: both halves of a window, and the output, on the device and on the host. With a GPU less of it is host memory,
/// and with owners a window has fewer slots.
double host_bytes(const Backend&, std::span<const KeyRange> ranges, const WorkloadShape& shape) {
  const double n_rows =
      static_cast<double>(shape.batch) * static_cast<double>(shape.heads) * static_cast<double>(shape.n_queries);
  double n_slots = 0;
  for (const auto& [begin, end] : closed(ranges, shape.longest())) n_slots += std::max(1, n_subtrees(begin, end));
  const KeyRange one{0, 1};
  const double slot = static_cast<double>(one_shot_bytes({&one, 1}, 0, 0, 1, shape.value_dim).states);
  return n_rows * (2 * n_slots * slot + 2 * (static_cast<double>(shape.value_dim) + 1) * sizeof(float));
}

}  // namespace

extern const Algorithm kOneShot;
constinit const Algorithm kOneShot{.name = "one-shot",
                                   .brief = "one kernel decodes, exchanges and merges: emulated and cuda, one node",
                                   .exchange = OwnDecoder{open_decoder, cost, host_bytes},
                                   .refusal = refusal,
                                   .refuses_ranks = refuses_ranks};

}  // namespace tree_attn
