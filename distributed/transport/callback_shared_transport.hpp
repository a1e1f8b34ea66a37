// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that processes of a machine share, and by functions of the program between others.
#pragma once

#include "distributed/transport/callback_transport.hpp"
#include "distributed/transport/with_mailboxes.hpp"

#include <string>
#include <utility>

namespace tree_attn {

/// Callbacks between nodes, which are waited for after the messages inside a node.
class CallbackSharedTransport : public WithMailboxes<CallbackTransport> {
 public:
  /// Opens the shared memory: collective over the ranks. @param ranks outlive it @throws as Mailboxes; as
  /// CallbackRanks::check()
  CallbackSharedTransport(const CallbackRanks& ranks, Topology of, const std::string& folder = Mailboxes::kFolder)
      : WithMailboxes(ranks, std::move(of), folder) {}
  /// Moves the messages inside the node.
  void progress() override { have_arrived(); }
  bool have_arrived() override;

 protected:
  void finish_messages() override;
};

}  // namespace tree_attn
