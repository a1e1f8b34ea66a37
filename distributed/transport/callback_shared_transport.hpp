// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that processes of a machine share, and by functions of the program between others.
#pragma once

#include "distributed/transport/callback_transport.hpp"
#include "distributed/transport/mailboxes.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tree_attn {

/// Callbacks between nodes, and for messages above Mailboxes::kMaxBytes; inside a node Mailboxes in a file without a name.
///
/// Ranks share memory if they are of one node of the topology, one start of a system and one folder of one file system:
/// containers that have another one send to each other by callbacks.
class CallbackSharedTransport : public CallbackTransport {
 public:
  static constexpr const char* kFolder = "/dev/shm";

  /// Opens the shared memory: collective over the ranks. @param ranks outlive it
  /// @throws InputError on every rank if a node has less than that, in a line with both numbers, or a rank cannot map it;
  ///   as CallbackRanks::check()
  CallbackSharedTransport(const CallbackRanks& ranks, Topology topology, const std::string& folder = kFolder);
  /// Gives up the ranks if any message is in flight; waits for no other.
  ~CallbackSharedTransport() override;
  std::string_view name() const override { return "shared"; }
  const Network& network() const override { return kSharedNetwork; }
  /// Moves the messages inside the node.
  void progress() override { have_arrived(); }
  bool have_arrived() override;
  bool has_messages_in_flight() const override { return !mail_.is_empty() || CallbackTransport::has_messages_in_flight(); }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;
  void finish_messages() override;

 private:
  /// Moves messages, and gives up the ranks for one of another length. @returns whether none is left
  bool advance();

  std::shared_ptr<std::byte> memory_;  ///< of the node, mapped; null: none
  Mailboxes mail_;
};

}  // namespace tree_attn
