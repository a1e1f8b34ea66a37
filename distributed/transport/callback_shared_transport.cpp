// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Waits for messages in mailboxes, then for those of callbacks.
#include "distributed/transport/callback_shared_transport.hpp"

#include <vector>

namespace tree_attn {

bool CallbackSharedTransport::have_arrived() {
  check();
  return ranks().or_give_up([this] { return mail_.advance(); }) && !CallbackTransport::has_messages_in_flight();
}

/// First inside the node: what the others of it have sent does not depend on their waits for callbacks, as all messages of
/// a wait are started before it.
void CallbackSharedTransport::finish_messages() {
  check();
  const auto find = [this] {
    std::vector<int> senders, receivers;
    mail_.add_pending(true, senders), mail_.add_pending(false, receivers);
    return Deadline::Pending{senders.empty() ? receivers : senders, senders.empty()};
  };
  ranks().or_give_up([&] {
    wait_until(
        ranks().deadline(), "a message", [this] { return mail_.advance(); }, [this] { return mail_.n_left(); }, find);
  });
  CallbackTransport::finish_messages();
}

}  // namespace tree_attn
