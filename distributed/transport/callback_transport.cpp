// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages that callbacks have started, and whom they are from.
#include "distributed/transport/callback_transport.hpp"

#include <algorithm>

namespace tree_attn {

void CallbackTransport::start_send(std::span<const std::byte> bytes, int to) {
  add(ranks_.start([&](Callbacks& callbacks) { return callbacks.start_send(bytes, to); }), {to, false});
}

void CallbackTransport::start_receive(std::span<std::byte> bytes, int from) {
  add(ranks_.start([&](Callbacks& callbacks) { return callbacks.start_receive(bytes, from); }), {from, true});
}

void CallbackTransport::add(Callbacks::Request request, Peer peer) {
  if (request == Callbacks::kComplete) return;
  requests_.push_back(request), peers_.push_back(peer);
}

void CallbackTransport::finish_messages() {
  ranks_.check();
  ranks_.await(requests_, "a message", [this] { return pending(); });
  requests_.clear(), peers_.clear();
}

bool CallbackTransport::has_messages_in_flight() const {
  return std::ranges::count(requests_, Callbacks::kComplete) != std::ssize(requests_);
}

/// Names the ranks that have not sent; if all have, those that have not received.
Deadline::Pending CallbackTransport::pending() const {
  Deadline::Pending senders, receivers{{}, true};
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != Callbacks::kComplete) (peers_[i].sends ? senders : receivers).ranks.push_back(peers_[i].rank);
  return senders.ranks.empty() ? receivers : senders;
}

}  // namespace tree_attn
