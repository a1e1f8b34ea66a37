// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that the ranks of a node share, and over MPI between nodes.
#pragma once

#include "distributed/transport/mpi_transport.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tree_attn {

/// MPI between nodes; inside a node a mailbox in shared memory for each two ranks and each direction.
///
/// A mailbox has kBuffers adjacent buffers of kPartBytes each. A message is copied into it in parts and out of it in parts,
/// so that the receiver copies one part while the sender copies the next. Two counters, one written by each side, say which
/// buffers are full: the sender raises `sent` after it has filled a buffer, the receiver raises `taken` after it has emptied
/// one. Both buffers together hold the states of 128 rows of 128 components: their sender waits only until the message
/// before them has been taken. A library spends much of the time of a message of 8 KiB on matching it; here the receiver
/// knows whose message comes next. The n ranks of a node take n (n - 1) times 68 KiB of shared memory, and a page each.
///
/// Messages above kMaxBytes go over MPI, which copies them once instead of twice.
class SharedTransport : public MpiTransport {
 public:
  static constexpr std::size_t kBuffers = 2, kPartBytes = std::size_t{34} << 10, kMaxBytes = std::size_t{1} << 20;

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
  bool advance();
  enum class State;
  struct Mailbox;
  struct Inbox;
  /// Rest of a message, and the mailbox that it goes through.
  template <class Byte>
  struct Message {
    std::span<Byte> rest;
    std::size_t n_bytes;
    int peer;
    Mailbox* mailbox;
  };
  void open_window();
  /// Compares what the ranks of this node need with what is free where MPI takes it from. Collective over all ranks.
  void require_room(std::size_t n_bytes, int n_ranks);
  Mailbox* mailbox(const std::vector<Mailbox*>& of_ranks, int peer, std::size_t n_bytes) const;
  bool put(Message<const std::byte>& message) const;
  bool take(Message<std::byte>& message);
  template <class Byte, class Move>
  static void move_all(std::vector<Message<Byte>>& messages, const Move& move);

  MPI_Comm node_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  Inbox* own_inbox_ = nullptr;
  std::vector<Inbox*> inboxes_;      ///< of the ranks that share memory
  std::vector<Mailbox*> to_, from_;  ///< by rank; null where there is none
  std::vector<Message<const std::byte>> sends_;
  std::vector<Message<std::byte>> receives_;
};

}  // namespace tree_attn
