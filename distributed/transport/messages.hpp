// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks and messages that several objects own together.
#pragma once

#include "distributed/transport/nccl_transport.hpp"
#include "distributed/transport/ranks.hpp"
#include "distributed/transport/transport.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tree_attn {

/// Kind of the messages of ranks.
struct MessagesKind {
  int ranks_per_node = 0;      ///< as Ranks::topology()
  bool shares_memory = false;  ///< in host memory, inside nodes through memory that ranks share
  DevicePlatform of_nccl{};    ///< of devices between which NCCL carries messages; none: they lie in host memory
  int device = 0;              ///< that NCCL has on this rank
  bool operator==(const MessagesKind&) const = default;
};

/// Opens the messages of ranks. Collective. @throws as NcclTransport and Ranks::open_shared_transport()
inline std::unique_ptr<Transport> open_messages(const Ranks& ranks, const MessagesKind& kind) {
  const Topology topology = ranks.topology(kind.ranks_per_node);
  if (kind.of_nccl.make_blocks != nullptr) return std::make_unique<NcclTransport>(ranks, topology, kind.of_nccl);
  return kind.shares_memory ? ranks.open_shared_transport(topology) : ranks.open_transport(topology);
}

/// Ranks with the transports that were opened over them, one for each kind: the layers of a model have one. Each transport
/// lives as long as its last owner, which holds this object too.
class Messages {
 public:
  explicit Messages(std::unique_ptr<const Ranks> ranks) : ranks_(std::move(ranks)) {}
  const Ranks& ranks() const { return *ranks_; }
  /// The number of the open transport of this kind; 0: there is none. All ranks compare it before open(): a rank that has
  /// closed its last object over it would open another alone, and two ranks on other devices would take different ones.
  std::uint64_t number_of(const MessagesKind& kind) const {
    const auto found =
        std::ranges::find_if(opened_, [&](const Opened& each) { return each.kind == kind && !each.transport.expired(); });
    return found == opened_.end() ? 0 : found->number;
  }
  /// Returns the transport of this kind, opened by the first call. Collective; number_of() is the same on all ranks.
  /// @throws as open_messages()
  std::shared_ptr<Transport> open(const MessagesKind& kind) {
    for (const Opened& each : opened_)
      if (each.kind == kind)
        if (auto transport = each.transport.lock()) return transport;
    std::erase_if(opened_, [](const Opened& each) { return each.transport.expired(); });
    // A rank whose objects had all ended may count from 0 again.
    last_number_ = ranks_->all_max(last_number_) + 1;
    std::shared_ptr<Transport> transport = open_messages(*ranks_, kind);
    opened_.push_back({kind, transport, last_number_});
    return transport;
  }

 private:
  struct Opened {
    MessagesKind kind;
    std::weak_ptr<Transport> transport;
    std::uint64_t number;  ///< from 1, the same on all ranks
  };
  std::unique_ptr<const Ranks> ranks_;
  std::vector<Opened> opened_;
  std::uint64_t last_number_ = 0;
};

}  // namespace tree_attn
