// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that the ranks of a node share, and over MPI between nodes.
#pragma once

#include "distributed/transport/mpi_transport.hpp"
#include "distributed/transport/with_mailboxes.hpp"

#include <utility>
#include <vector>

namespace tree_attn {

/// MPI between nodes, whose waits move the messages inside a node too.
class SharedTransport : public WithMailboxes<MpiTransport> {
 public:
  /// Opens the shared memory: collective over the ranks. @throws as Mailboxes
  SharedTransport(const MpiRanks& ranks, Topology of) : WithMailboxes(ranks, std::move(of), Mailboxes::kFolder) {
    advance_ = [this] { return mail_.advance(); };
  }

 protected:
  std::vector<int> pending(bool is_received) const override {
    std::vector<int> peers = MpiTransport::pending(is_received);
    mail_.add_pending(is_received, peers);
    return peers;
  }
};

}  // namespace tree_attn
