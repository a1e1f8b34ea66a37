// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One launch per step: the kernel that decodes exchanges, merges and finishes the states of all ranks of a node
/// (section 5.3, Alg. 3). What it is not for, several nodes, many ranks and many rows, is that of `two-level`.
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/keys_read.hpp"
#include "distributed/exchange/plan_builder.hpp"
#include "distributed/transport/ranks.hpp"
#include "gpu/backend/one_shot_session.hpp"

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

/// Why the kernels of these ranks cannot exchange, in a few words that name what can; empty if they can. The answer is one
/// on every rank.
/// @param ranges closed
std::string why_not(const Topology& topology, std::span<const KeyRange> ranges, std::int64_t n_rows, std::int64_t d_v) {
  if (topology.n_nodes() > 1)
    return "its kernels reach the devices of one node, and the ranks are on " + std::to_string(topology.n_nodes()) +
           "; use two-level";
  if (topology.size() > kMostOneShotRanks)
    return "a node of " + std::to_string(topology.size()) + " ranks; at most " + std::to_string(kMostOneShotRanks) +
           "; use two-level";
  for (int rank = 0; rank < topology.size(); ++rank) {
    const double bytes = 4.0 * n_subtrees(whole_leaves(topology.range_of(rank, ranges))) * static_cast<double>(n_rows) *
                         static_cast<double>(state_size(d_v));
    if (bytes > kMostOneShotBytes)
      return "rank " + std::to_string(rank) + " has " + std::to_string(static_cast<std::int64_t>(bytes / 1024)) +
             " KiB of states; at most " + std::to_string(kMostOneShotBytes / 1024) + "; use two-level";
  }
  return "";
}

/// Counts the stores of a rank into the windows of the others. @param node with closed ranges
RankCost::Round exchange_of(const Members& node, std::int64_t n_rows, std::int64_t d_v) {
  RankCost::Round round{.is_stored = true};
  for (std::size_t i = 0; i < node.ranks.size(); ++i) {
    const int other = static_cast<int>(i), peer = node.ranks[i];
    if (other == node.me) continue;
    if (const std::int64_t n = one_shot_bytes(node.ranges, node.me, n_rows, d_v); n > 0) round.sends.push_back({peer, n});
    if (const std::int64_t n = one_shot_bytes(node.ranges, other, n_rows, d_v); n > 0) round.receives.push_back({peer, n});
  }
  return round;
}

/// Why a backend has no such kernel; empty if it has.
std::string why_no_kernel(const Backend& backend) {
  if (backend.has_windows()) return "";
  return "one kernel decodes and exchanges, and --backend " + std::string(backend.name()) +
         " has none; use emulated or cuda, or another algorithm";
}

/// Throws InputError on every rank if why_not() names a reason for steps of l queries. @param ranges closed
void require_possible(const Transport& transport, const KvCache& cache, std::span<const KeyRange> ranges, std::int64_t l) {
  const AttentionShape& shape = cache.shape();
  if (const std::string why = why_not(transport.topology(), ranges, shape.n_rows(l), shape.value_dim); !why.empty())
    throw InputError("one-shot: " + why);
}

/// The ranks tell each other where their windows are; states are stored by the kernels.
class OneShotDecoder : public Decoder {
 public:
  OneShotDecoder(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges, const PlanOptions& options)
      : Decoder(transport, shard),
        ranges_(ranges.begin(), ranges.end()),
        session_(open_one_shot(*shard.cache, shard.session->scale(),
                               {.timeout = transport.ranks().deadline().seconds(),
                                .steps_done = options.steps_done,
                                .most_queries = shard.most_queries})) {
    if (ranges_.back().end != kOpenEnd) connect(ranges_, std::max<std::int64_t>(1, shard.most_queries));
  }
  /// A window is freed after all others have closed it: collective where ranks are processes, except after an error.
  ~OneShotDecoder() override {
    // Kernels of this rank, and of the others, may wait for what this rank will not send any more.
    const bool has_failed = has_failed_ || std::uncaught_exceptions() > n_exceptions_;
    if (has_failed) session_->give_up();
    session_->disconnect();
    if (transport_.ranks().is_one_process() || connected_.empty() || has_failed) return;
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
    if (step.mask.data != nullptr) throw InputError("one-shot: its kernel has no mask; use two-level with the backend cpu");
    if (step.rule.window > 0 || !step.sink.empty())
      throw InputError("one-shot: its kernel has no window and no learned sinks; use two-level");
    // Lengths and queries are the same on every rank, so all ranks come here in the same step.
    const std::int64_t longest = step.longest(), l = step.q.shape[2];
    const bool is_connected =
        !connected_.empty() && l <= most_queries_ && closed(ranges_.back(), longest) == connected_.back();
    if (!is_connected || longest > shard_.room || shard_.room != prepared_room_)
      prepare(longest, std::max({std::int64_t{1}, l, most_queries_, shard_.most_queries}));
    if (l != l_) count(l);
    const OutputView output = session_->step(step, progress_);
    // There is no moment at which the states are there and the output is not.
    set_states_ready(transport_.seconds());
    transport_.count_collectives(1);
    transport_.count_stored(n_stored_, session_->bytes_sent());
    transport_.count_merge_steps(n_merges_);
    return output;
  }
  /// Prepares all ranks for steps up to some length and number of queries: no rank begins one while another takes memory or
  /// connects.
  void prepare(std::int64_t longest, std::int64_t most_queries) {
    const std::vector<KeyRange> now = closed(ranges_, longest);
    require_possible(transport_, *shard_.cache, now, most_queries);
    shard_.grow(longest, transport_.size());
    prepared_room_ = shard_.room;
    if (connected_.empty() || most_queries > most_queries_ || now.back() != connected_.back()) connect(now, most_queries);
    session_->prepare(longest);
    transport_.ranks().all_gather(transport_.rank(), "all ranks to be ready for a step");
  }
  /// Tells the others where the new window of this rank is, for steps of up to so many queries.
  void connect(const std::vector<KeyRange>& ranges, std::int64_t most_queries) {
    const Topology& topology = transport_.topology();
    const int rank = transport_.rank();
    const Members node = members_of_node(topology, rank, ranges);
    windows_ = "process";
    // A device may refuse a window, or be refused, on one rank alone.
    NodeWindow own;
    run_on_all<DeviceError>(transport_.ranks(), [&] {
      own = session_->open_window(node.ranges, node.me, rank, !transport_.ranks().is_one_process(), most_queries);
    });
    const std::vector<NodeWindow> by_rank = transport_.ranks().all_gather(own, "the windows of all ranks");
    std::vector<NodeWindow> windows;
    for (const int each : node.ranks) {
      windows.push_back(by_rank[static_cast<std::size_t>(each)]);
      if (windows.back().process != by_rank[static_cast<std::size_t>(node.ranks.front())].process) windows_ = "ipc";
    }
    run_on_all<DeviceError>(transport_.ranks(), [&] { session_->connect(windows); });
    connected_ = ranges, most_queries_ = most_queries;
    count(most_queries);
  }
  /// Counts what the kernel does in a step of l queries.
  void count(std::int64_t l) {
    const Members node = members_of_node(transport_.topology(), transport_.rank(), connected_);
    const AttentionShape& shape = shard_.cache->shape();
    l_ = l;

    // The states of all subtrees become one.
    std::int64_t n = 0;
    for (const KeyRange& range : node.ranges) n += n_subtrees(whole_leaves(range));
    n_merges_ = std::max<std::int64_t>(0, n - 1);
    n_stored_ = std::ssize(exchange_of(node, shape.n_rows(l), shape.value_dim).sends);
  }

  std::vector<KeyRange> ranges_, connected_;
  std::int64_t prepared_room_ = -1;         ///< that there was when all ranks were last prepared
  std::int64_t most_queries_ = 0, l_ = -1;  ///< queries that all ranks are prepared for, and of the counts
  std::string_view windows_;
  std::unique_ptr<OneShotSession> session_;
  bool has_failed_ = false;  ///< in a step: others may not arrive any more
  int n_exceptions_ = std::uncaught_exceptions();
  std::int64_t n_merges_ = 0, n_stored_ = 0;  ///< of the kernel in a step: merge steps, and windows stored into
};

std::unique_ptr<Decoder> open_decoder(Transport& transport, OpenShard& shard, std::span<const KeyRange> ranges,
                                      const PlanOptions& options) {
  if (const std::string why = why_no_kernel(*shard.backend); !why.empty()) throw InputError("one-shot: " + why);
  require_possible(transport, *shard.cache, closed(ranges, 0), std::max<std::int64_t>(1, shard.most_queries));
  return std::make_unique<OneShotDecoder>(transport, shard, ranges, options);
}

std::string refusal(const Topology& topology, const Backend* backend, std::span<const KeyRange> ranges,
                    const WorkloadShape& shape) {
  if (shape.rule.window > 0 || !shape.sink.empty()) return "its kernel has no window and no learned sinks; use two-level";
  if (backend != nullptr && !backend->has_windows()) return why_no_kernel(*backend);
  return why_not(topology, closed(ranges, shape.longest()), shape.n_rows(), shape.value_dim);
}

/// Every rank decodes, then stores into the windows of all.
RankCost cost(const Topology& topology, int rank, std::span<const KeyRange> open, const WorkloadShape& shape,
              const PlanOptions&) {
  if (const std::string why = refusal(topology, nullptr, open, shape); !why.empty())
    throw std::logic_error("one-shot: " + why);
  const std::vector<KeyRange> ranges = closed(open, shape.longest());
  const Members node = members_of_node(topology, rank, ranges);
  const std::int64_t n_rows = shape.n_rows(), d_v = shape.value_dim;
  RankCost cost;
  const OwnedLeaves leaves(topology.range_of(rank, open), shape.order);
  cost.rounds.push_back({.decoded_bytes = bytes_read(leaves, shape)});
  cost.rounds.push_back(exchange_of(node, n_rows, d_v));
  Forest<float> joined(0, 0);
  for (const KeyRange& each : node.ranges) joined.append(cover(whole_leaves(each).begin, whole_leaves(each).end), nullptr);
  joined.fold();
  cost.collectives = 1;
  cost.merge_steps = cost.rounds.back().merge_steps = joined.n_merges();

  // The own states, the window that the others store into, and the output.
  cost.elements = n_rows * n_subtrees(whole_leaves(topology.range_of(rank, ranges))) * state_size(d_v) +
                  one_shot_window_bytes(node.ranges, n_rows, d_v) / static_cast<std::int64_t>(sizeof(float)) +
                  n_rows * (d_v + 1);
  return cost;
}

}  // namespace

extern const Algorithm kOneShot;
constinit const Algorithm kOneShot{.name = "one-shot",
                                   .brief = "one kernel decodes, exchanges and merges, on one node: emulated and cuda",
                                   .takes_dealt = false,
                                   .exchange = OwnDecoder{open_decoder, cost},
                                   .refusal = refusal};

}  // namespace tree_attn
