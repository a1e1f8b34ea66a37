// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks and messages that several objects own together.
#pragma once

#include "distributed/transport/ranks.hpp"
#include "distributed/transport/transport.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace tree_attn {

/// Opens the messages of ranks. Collective. @param ranks_per_node as Ranks::topology()
inline std::unique_ptr<Transport> open_messages(const Ranks& ranks, int ranks_per_node, bool shares_memory) {
  const Topology topology = ranks.topology(ranks_per_node);
  return shares_memory ? ranks.open_shared_transport(topology) : ranks.open_transport(topology);
}

/// Ranks with the transports that were opened over them, one for each kind of nodes and memory: the layers of a model have
/// one. Each transport lives as long as its last owner, which holds this object too.
class Messages {
 public:
  explicit Messages(std::unique_ptr<const Ranks> ranks) : ranks_(std::move(ranks)) {}
  const Ranks& ranks() const { return *ranks_; }
  /// Returns the transport of this kind, opened by the first call. Collective. @throws as open_messages()
  std::shared_ptr<Transport> open(int ranks_per_node, bool shares_memory) {
    for (const Opened& each : opened_)
      if (each.ranks_per_node == ranks_per_node && each.shares_memory == shares_memory)
        if (auto transport = each.transport.lock()) return transport;
    std::erase_if(opened_, [](const Opened& each) { return each.transport.expired(); });
    std::shared_ptr<Transport> transport = open_messages(*ranks_, ranks_per_node, shares_memory);
    opened_.push_back({ranks_per_node, shares_memory, transport});
    return transport;
  }

 private:
  struct Opened {
    int ranks_per_node;
    bool shares_memory;
    std::weak_ptr<Transport> transport;
  };
  std::unique_ptr<const Ranks> ranks_;
  std::vector<Opened> opened_;
};

}  // namespace tree_attn
