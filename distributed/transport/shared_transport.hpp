// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that the ranks of a node share, and over MPI between nodes.
#pragma once

#include "distributed/transport/mailboxes.hpp"
#include "distributed/transport/mpi_transport.hpp"

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace tree_attn {

/// MPI between nodes, and for messages above Mailboxes::kMaxBytes; inside a node Mailboxes, and a page for each rank.
class SharedTransport : public MpiTransport {
 public:
  static constexpr std::size_t kPartBytes = Mailboxes::kPartBytes, kMaxBytes = Mailboxes::kMaxBytes;

  /// Opens the shared memory: collective over the ranks. Ranks of one node of the topology use it where they do share
  /// memory.
  /// @throws InputError on every rank if a node has less than that, in a line with both numbers; TransportError on a rank
  ///   that gets none
  SharedTransport(const MpiRanks& ranks, Topology topology);
  /// Frees it: collective, unless others may not arrive. Then the memory stays.
  ~SharedTransport() override;
  std::string_view name() const override { return "shared"; }
  const Network& network() const override { return kSharedNetwork; }
  bool has_messages_in_flight() const override;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;
  std::vector<int> pending(bool is_received) const override;

 private:
  enum class State;
  using Mailbox = Mailboxes::Mailbox;
  struct Inbox;
  void open_window();
  /// Compares what the ranks of this node need with what is free where MPI takes it from. Collective over all ranks.
  void require_room(std::size_t n_bytes, int n_ranks);

  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  Inbox* own_inbox_ = nullptr;
  std::vector<Inbox*> inboxes_;  ///< of the ranks that share memory
  Mailboxes mail_;
};

}  // namespace tree_attn
