// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Waits for messages in mailboxes, then for those of callbacks.
#include "distributed/transport/callback_shared_transport.hpp"

#include <thread>
#include <vector>

namespace tree_attn {

bool CallbackSharedTransport::advance() {
  try {
    return mail_.advance();
  } catch (...) {
    ranks().give_up();
    throw;
  }
}

bool CallbackSharedTransport::have_arrived() {
  check();
  return advance() && !CallbackTransport::has_messages_in_flight();
}

/// First inside the node: what the others of it have sent does not depend on their waits for callbacks, as all messages of
/// a wait are started before it.
void CallbackSharedTransport::finish_messages() {
  check();
  constexpr int kPolls = 32;
  const auto is_done = [this] {
    for (int i = 0; i < kPolls; ++i)
      if (advance()) return true;
    return false;
  };
  if (!is_done()) {
    const Waiting waiting(ranks().deadline(), "for a message");
    const auto find = [this] {
      std::vector<int> senders, receivers;
      mail_.add_pending(true, senders), mail_.add_pending(false, receivers);
      return Deadline::Pending{senders.empty() ? receivers : senders, senders.empty()};
    };
    try {
      for (std::size_t n = mail_.n_left(); !is_done();) {
        // Ranks may outnumber cores: yield to the rank that this one waits for.
        std::this_thread::yield();
        if (const std::size_t now = mail_.n_left(); now < n) waiting.progress(), n = now;
        ranks().deadline().poll(find);
      }
    } catch (...) {
      ranks().give_up();
      throw;
    }
  }
  CallbackTransport::finish_messages();
}

}  // namespace tree_attn
