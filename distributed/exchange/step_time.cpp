// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Walks through the rounds of all ranks without data.
#include "distributed/exchange/step_time.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace tree_attn {
namespace {

/// A message on its way.
struct Sent {
  int from;
  std::int64_t bytes;
  bool crosses;  // goes to another node
  double leaves_at;
  double begins_at, ends_at;  // first and last byte at the receiver, if its port is free
};

/// A rank in the middle of its rounds.
struct Walker {
  std::size_t round = 0;  // the current round
  bool has_sent = false;  // in that round
  bool is_queued = true;
  double now = 0;                                // start of the round; once it has sent, when it may receive and go on
  std::array<double, 2> sending{}, receiving{};  // until when the ports are busy: inside the node, between nodes
  std::vector<Sent> arrived{};                   // in that round
  std::multimap<int, Sent> inbox{};              // by sender; messages of a sender in the order sent
};

class Walk {
 public:
  Walk(std::span<const RankCost> costs, const Topology& topology, const Cluster& cluster, std::vector<MessageTime>* messages)
      : costs_(costs),
        topology_(topology),
        cluster_(cluster),
        messages_(messages),
        walkers_(costs.size()),
        queue_(costs.size()) {
    std::iota(queue_.begin(), queue_.end(), 0);
  }

  double run() {
    // The result does not depend on the order of this queue: ranks meet in messages only.
    while (!queue_.empty()) {
      const int me = queue_.back();
      queue_.pop_back();
      of(me).is_queued = false;
      while (of(me).round < cost_of(me).rounds.size() && finish_round(me)) {
      }
    }
    double last = 0;
    for (int me = 0; me < n_ranks(); ++me) {
      require<std::logic_error>(of(me).round == cost_of(me).rounds.size(), "rank ", me,
                                " waits for a message that no rank sends");
      last = std::max(last, of(me).now);
    }
    for (int me = 0; me < n_ranks(); ++me) {
      const std::multimap<int, Sent>& left = of(me).inbox;
      require<std::logic_error>(left.empty(), "rank ", left.empty() ? 0 : left.begin()->first, " sends a message that rank ",
                                me, " does not receive");
    }
    return last;
  }

 private:
  int n_ranks() const { return static_cast<int>(costs_.size()); }
  Walker& of(int rank) { return walkers_[static_cast<std::size_t>(rank)]; }
  const RankCost& cost_of(int rank) const { return costs_[static_cast<std::size_t>(rank)]; }
  const Link& link(bool crosses) const { return crosses ? cluster_.network.between : cluster_.network.inside; }
  double latency_us(const RankCost::Round& round, bool crosses) const {
    return round.is_stored ? cluster_.store_us : link(crosses).latency_us;
  }
  double overhead_us(const RankCost::Round& round) const { return round.is_stored ? 0 : cluster_.network.overhead_us; }

  /// @returns false if a message is missing
  bool finish_round(int me) {
    Walker& rank = of(me);
    const RankCost::Round& round = cost_of(me).rounds[rank.round];
    if (!rank.has_sent) send(me, round);

    // Take the messages that have arrived.
    while (rank.arrived.size() < round.receives.size()) {
      const auto& [peer, bytes] = round.receives[rank.arrived.size()];
      const auto found = rank.inbox.lower_bound(peer);
      if (found == rank.inbox.end() || found->first != peer) return false;
      require<std::logic_error>(found->second.bytes == bytes, "rank ", peer, " sends ", found->second.bytes,
                                " bytes to rank ", me, ", which expects ", bytes);
      rank.arrived.push_back(found->second);
      rank.inbox.erase(found);
    }

    // The ports receive them in the order in which they were sent.
    std::stable_sort(rank.arrived.begin(), rank.arrived.end(),
                     [](const Sent& a, const Sent& b) { return a.begins_at < b.begins_at; });
    for (const auto& [from, bytes, crosses, leaves_at, begins_at, ends_at] : rank.arrived) {
      double& port = rank.receiving[crosses];
      port = std::max(port, begins_at) + static_cast<double>(bytes) / link(crosses).bytes_per_us;
      const double arrives_at = std::max(port, ends_at);
      rank.now = std::max(rank.now, arrives_at);
      if (messages_ != nullptr) messages_->push_back({from, me, bytes, leaves_at, arrives_at});
    }
    rank.now += static_cast<double>(round.receives.size()) * overhead_us(round) +
                static_cast<double>(round.merge_steps) * cluster_.merge_us;
    rank.arrived.clear();
    rank.has_sent = false;
    ++rank.round;
    return true;
  }

  /// Sends the messages of a round, and decodes.
  void send(int me, const RankCost::Round& round) {
    Walker& rank = of(me);
    const std::array<double, 2> was_sending = rank.sending;
    const auto crosses = [&](int peer) { return topology_.node_of(me) != topology_.node_of(peer); };
    const auto leaves_at = [&](std::size_t i) { return rank.now + static_cast<double>(i) * overhead_us(round); };
    for (std::size_t i = 0; i < round.sends.size(); ++i) {
      const auto& [peer, bytes] = round.sends[i];
      double& port = rank.sending[crosses(peer)];
      port = std::max(port, leaves_at(i)) + static_cast<double>(bytes) / link(crosses(peer)).bytes_per_us;
    }
    for (std::size_t i = 0; i < round.sends.size(); ++i) {
      const auto& [peer, bytes] = round.sends[i];
      const bool other_node = crosses(peer);
      const double latency = latency_us(round, other_node);
      of(peer).inbox.emplace(
          me, Sent{me, bytes, other_node, leaves_at(i), std::max(was_sending[other_node], leaves_at(i)) + latency,
                   rank.sending[other_node] + latency});
      if (peer != me && !of(peer).is_queued) {
        of(peer).is_queued = true;
        queue_.push_back(peer);
      }
    }
    rank.now = leaves_at(round.sends.size()) + static_cast<double>(round.decoded_bytes) / cluster_.memory_bytes_per_us;
    for (const auto& [peer, bytes] : round.sends) {
      if (cluster_.eager || round.is_stored) break;
      const bool other_node = crosses(peer);
      rank.now = std::max(rank.now, rank.sending[other_node] + link(other_node).latency_us);
    }
    rank.has_sent = true;
  }

  std::span<const RankCost> costs_;
  const Topology& topology_;
  const Cluster& cluster_;
  std::vector<MessageTime>* messages_;
  std::vector<Walker> walkers_;
  std::vector<int> queue_;  // ranks that may go on
};

}  // namespace

double step_time(std::span<const RankCost> costs, const Topology& topology, const Cluster& cluster,
                 std::vector<MessageTime>* messages) {
  require(costs.size() == static_cast<std::size_t>(topology.size()), "step_time: costs of ", costs.size(), " ranks, not ",
          topology.size());
  return Walk(costs, topology, cluster, messages).run();
}

}  // namespace tree_attn
