// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts messages.
#include "distributed/transport/transport.hpp"

namespace tree_attn {

void Transport::send(std::span<const std::byte> bytes, int to) {
  if (bytes.empty()) return;
  const std::int64_t count = static_cast<std::int64_t>(bytes.size());
  ++traffic_.messages;
  traffic_.bytes += count;
  if (topology_.node_of(to) != topology_.node_of(rank_)) traffic_.bytes_between_nodes += count;
  start_send(bytes, to);
}

void Transport::receive(std::span<std::byte> bytes, int from) {
  if (!bytes.empty()) start_receive(bytes, from);
}

}  // namespace tree_attn
