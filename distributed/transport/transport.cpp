// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts messages.
#include "distributed/transport/transport.hpp"

#include "distributed/transport/ranks.hpp"

#include <chrono>
#include <utility>

namespace tree_attn {

Transport::Transport(Topology topology, int rank) : topology_(std::move(topology)), rank_(rank) { topology_.node_of(rank); }

void Transport::check() const { ranks().check(); }

void Transport::abandon() noexcept { ranks().give_up(); }

double Transport::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Transport::count_graph(const Traffic& recorded) {
  traffic_.collectives += recorded.collectives, traffic_.messages += recorded.messages, traffic_.bytes += recorded.bytes;
  traffic_.bytes_between_nodes += recorded.bytes_between_nodes, traffic_.merge_steps += recorded.merge_steps;
}

void Transport::send(std::span<const std::byte> bytes, int to) {
  if (bytes.empty()) return;
  const std::int64_t count = static_cast<std::int64_t>(bytes.size());
  ++traffic_.messages;
  traffic_.bytes += count;
  if (topology_.node_of(to) != topology_.node_of(rank_)) traffic_.bytes_between_nodes += count;
  start_send(bytes, to);
}

void Transport::receive(std::span<std::byte> bytes, int from) {
  if (!bytes.empty()) {
    topology_.node_of(from);  // if there is no such rank, it throws
    start_receive(bytes, from);
  }
}

}  // namespace tree_attn
