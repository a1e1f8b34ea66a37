// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages by functions of the program.
#pragma once

#include "distributed/transport/callback_ranks.hpp"

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Messages by Callbacks, in host memory. Only a wait moves them on: progress() does nothing, as libraries such as gloo say
/// that a message is complete to a wait alone.
class CallbackTransport : public Transport {
 public:
  /// @param ranks outlive it @throws as CallbackRanks::check()
  CallbackTransport(const CallbackRanks& ranks, Topology topology)
      : Transport(std::move(topology), ranks.rank()), ranks_(ranks) {
    ranks_.check();
  }
  /// Gives up the ranks if any message is in flight.
  ~CallbackTransport() override {
    if (has_messages_in_flight()) ranks_.give_up();
  }
  const CallbackRanks& ranks() const override { return ranks_; }
  std::string_view name() const override { return "callbacks"; }
  void progress() override {}
  bool has_messages_in_flight() const override;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override;
  void start_receive(std::span<std::byte> bytes, int from) override;
  void finish_messages() override;

 private:
  /// The other side of a message.
  struct Peer {
    int rank;
    bool sends;
  };
  void add(Callbacks::Request request, Peer peer);
  Deadline::Pending pending() const;

  const CallbackRanks& ranks_;
  std::vector<Callbacks::Request> requests_;
  std::vector<Peer> peers_;  ///< of the requests
};

}  // namespace tree_attn
