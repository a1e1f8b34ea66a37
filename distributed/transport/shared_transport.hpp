// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that the ranks of a node share, and over MPI between nodes.
#pragma once

#include "distributed/transport/mailboxes.hpp"
#include "distributed/transport/mpi_transport.hpp"

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tree_attn {

/// MPI between nodes, and for messages above Mailboxes::kMaxBytes; inside a node Mailboxes.
class SharedTransport : public MpiTransport {
 public:
  /// Opens the shared memory: collective over the ranks. @throws as Mailboxes
  SharedTransport(const MpiRanks& ranks, Topology of)
      : MpiTransport(ranks, std::move(of)), mail_(ranks, topology(), Mailboxes::kFolder) {
    advance_ = [this] { return mail_.advance(); };
  }
  /// Gives up the ranks if any message is in flight; waits for no other.
  ~SharedTransport() override {
    if (!mail_.is_empty()) ranks().give_up();
  }
  std::string_view name() const override { return "shared"; }
  const Network& network() const override { return kSharedNetwork; }
  bool has_messages_in_flight() const override { return !mail_.is_empty() || MpiTransport::has_messages_in_flight(); }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override {
    check();
    if (!mail_.send(bytes, to)) MpiTransport::start_send(bytes, to);
  }
  void start_receive(std::span<std::byte> bytes, int from) override {
    check();
    if (!mail_.receive(bytes, from)) MpiTransport::start_receive(bytes, from);
  }
  std::vector<int> pending(bool is_received) const override {
    std::vector<int> peers = MpiTransport::pending(is_received);
    mail_.add_pending(is_received, peers);
    return peers;
  }

 private:
  Mailboxes mail_;
};

}  // namespace tree_attn
