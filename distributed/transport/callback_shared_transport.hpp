// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that processes of a machine share, and by functions of the program between others.
#pragma once

#include "distributed/transport/callback_transport.hpp"
#include "distributed/transport/mailboxes.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tree_attn {

/// Callbacks between nodes, and for messages above Mailboxes::kMaxBytes; inside a node Mailboxes.
class CallbackSharedTransport : public CallbackTransport {
 public:
  /// Opens the shared memory: collective over the ranks. @param ranks outlive it @throws as Mailboxes; as
  /// CallbackRanks::check()
  CallbackSharedTransport(const CallbackRanks& ranks, Topology topology, const std::string& folder = Mailboxes::kFolder);
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

  Mailboxes mail_;
};

}  // namespace tree_attn
