// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A transport whose messages inside a node go through memory that its ranks share.
#pragma once

#include "distributed/transport/mailboxes.hpp"
#include "distributed/transport/transport.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tree_attn {

/// Base between nodes, and for messages above Mailboxes::kMaxBytes; inside a node Mailboxes. Moves none by itself: waits are
/// those of Base.
template <class Base>
class WithMailboxes : public Base {
 public:
  /// Opens the shared memory: collective over the ranks. @param ranks outlive it @throws as Mailboxes; as Base
  template <class RanksOfBase>
  WithMailboxes(const RanksOfBase& ranks, Topology of, const std::string& folder)
      : Base(ranks, std::move(of)), mail_(ranks, this->topology(), folder) {}
  /// Gives up the ranks if any message is in flight; waits for no other.
  ~WithMailboxes() override {
    if (!mail_.is_empty()) this->ranks().give_up();
  }
  std::string_view name() const override { return "shared"; }
  const Network& network() const override { return kSharedNetwork; }
  bool has_messages_in_flight() const override { return !mail_.is_empty() || Base::has_messages_in_flight(); }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override {
    this->check();
    if (!mail_.send(bytes, to)) Base::start_send(bytes, to);
  }
  void start_receive(std::span<std::byte> bytes, int from) override {
    this->check();
    if (!mail_.receive(bytes, from)) Base::start_receive(bytes, from);
  }

  Mailboxes mail_;
};

}  // namespace tree_attn
