// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that ranks share.
#pragma once

#include "distributed/transport/ranks.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// A number that ranks of one host share: containers of a host have other names, hosts of one name have started apart.
std::uint64_t host_number();

/// Messages of one rank through mailboxes in shared memory: one for each two ranks and each direction.
///
/// The memory is a file, whose name is removed once all have opened it, and lasts as long as a rank has it mapped. Ranks
/// share it if they are of one node of the topology, one start of a system and one folder of one file system: containers
/// that have another one send otherwise.
///
/// A mailbox has kBuffers adjacent buffers of kPartBytes each. A message is copied into it in parts and out of it in parts,
/// so that the receiver copies one part while the sender copies the next. Two counters, one written by each side, say which
/// buffers are full: the sender raises `sent` after it has filled a buffer, the receiver raises `taken` after it has emptied
/// one. Both buffers together hold the states of 128 rows of 128 components: their sender waits only until the message
/// before them has been taken. A library spends much of the time of a message of 8 KiB on matching it; here the receiver
/// knows whose message comes next. The n ranks of a node take n (n - 1) times 68 KiB of shared memory, once for all objects
/// that share these messages: plans of few rows send to log2 n others, but plans of many rows and by heads, queries by
/// heads, and keys that move, go from any rank to any other.
///
/// Messages above kMaxBytes are for others, which copy them once instead of twice.
class Mailboxes {
 public:
  static constexpr std::size_t kBuffers = 2, kPartBytes = std::size_t{34} << 10, kMaxBytes = std::size_t{1} << 20;
  static constexpr std::size_t kCacheLine = 64;  ///< of the cache: each side writes lines of its own

  static constexpr const char* kFolder = "/dev/shm";

  /// One direction between two ranks. The memory belongs to the receiver, which makes it.
  struct Mailbox {
    alignas(kCacheLine) std::atomic<std::uint64_t> sent{0};     ///< parts, by the sender
    alignas(kCacheLine) std::atomic<std::uint64_t> taken{0};    ///< parts, by the receiver
    alignas(kCacheLine) std::uint64_t message_bytes[kBuffers];  ///< of the whole message
    alignas(kCacheLine) std::byte buffers[kBuffers][kPartBytes];

    static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock would be in the memory of one process");
  };

  /// Opens the shared memory: collective over the ranks.
  /// @throws InputError on every rank if a node has less than that, in a line with both numbers, or a rank cannot map it
  Mailboxes(const Ranks& ranks, const Topology& topology, const std::string& folder);

  /// Starts a send. @returns false for a message that no mailbox takes
  bool send(std::span<const std::byte> bytes, int to);
  /// Starts to receive, as send().
  bool receive(std::span<std::byte> bytes, int from);
  /// Moves messages as far as they go. @returns whether none is left @throws TransportError for one of another length
  bool advance();
  bool is_empty() const { return sends_.empty() && receives_.empty(); }
  /// Bytes of all messages that are not moved yet.
  std::size_t n_left() const;
  /// Adds the peers of the messages that are received, or sent, and are not complete.
  void add_pending(bool is_received, std::vector<int>& peers) const;

 private:
  /// Rest of a message, and the mailbox that it goes through.
  template <class Byte>
  struct Message {
    std::span<Byte> rest;
    std::size_t n_bytes;
    int peer;
    Mailbox* mailbox;
  };
  static bool put(Message<const std::byte>& message);
  bool take(Message<std::byte>& message) const;
  template <class Byte, class Move>
  static void move_all(std::vector<Message<Byte>>& messages, const Move& move);

  int rank_;
  std::shared_ptr<std::byte> memory_;  ///< of the node, mapped; null: none
  std::vector<Mailbox*> to_, from_;    ///< by rank; null where there is none
  std::vector<Message<const std::byte>> sends_;
  std::vector<Message<std::byte>> receives_;
};

}  // namespace tree_attn
