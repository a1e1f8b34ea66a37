// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Copies into mailboxes and out of them.
#include "distributed/transport/mailboxes.hpp"

#include "distributed/transport/deadline.hpp"

#include <algorithm>
#include <cstring>

namespace tree_attn {

namespace {

/// The core of the receiver still has the lines of a buffer, and a store takes each from it. On a Zen 4 a store to every
/// line and then the copy are faster than the copy alone, and requests for the lines gain nothing.
void copy_to_buffer(std::span<const std::byte> bytes, std::byte* buffer) {
  for (std::size_t i = 0; i < bytes.size(); i += Mailboxes::kCacheLine)
    std::atomic_ref(buffer[i]).store(std::byte{}, std::memory_order_relaxed);
  std::memcpy(buffer, bytes.data(), bytes.size());
}

}  // namespace

Mailboxes::Mailboxes(int rank, int n_ranks) : rank_(rank), to_(static_cast<std::size_t>(n_ranks)), from_(to_.size()) {
  // How many messages are under way at a time depends on the other ranks; a step should allocate nothing all the same.
  constexpr std::size_t kMessagesPerRank = 4;
  sends_.reserve(kMessagesPerRank * to_.size());
  receives_.reserve(kMessagesPerRank * to_.size());
}

void Mailboxes::add(int peer, Mailbox* to, Mailbox* from) {
  to_[static_cast<std::size_t>(peer)] = to, from_[static_cast<std::size_t>(peer)] = from;
}

bool Mailboxes::send(std::span<const std::byte> bytes, int to) {
  Mailbox* const box = to_[static_cast<std::size_t>(to)];
  if (box == nullptr || bytes.size() > kMaxBytes) return false;
  sends_.push_back({bytes, bytes.size(), to, box});
  advance();
  return true;
}

bool Mailboxes::receive(std::span<std::byte> bytes, int from) {
  Mailbox* const box = from_[static_cast<std::size_t>(from)];
  if (box == nullptr || bytes.size() > kMaxBytes) return false;
  receives_.push_back({bytes, bytes.size(), from, box});
  return true;
}

std::size_t Mailboxes::n_left() const {
  std::size_t n = 0;
  for (const auto& message : sends_) n += message.rest.size();
  for (const auto& message : receives_) n += message.rest.size();
  return n;
}

void Mailboxes::add_pending(bool is_received, std::vector<int>& peers) const {
  const auto add = [&](const auto& messages) {
    for (const auto& message : messages) peers.push_back(message.peer);
  };
  is_received ? add(receives_) : add(sends_);
}

bool Mailboxes::put(Message<const std::byte>& message) {
  Mailbox& box = *message.mailbox;
  const std::uint64_t sent = box.sent.load(std::memory_order_relaxed);
  if (sent - box.taken.load(std::memory_order_acquire) == kBuffers) return false;
  std::byte* const buffer = box.buffers[sent % kBuffers];
  const std::size_t n = std::min(message.rest.size(), kPartBytes);
  box.message_bytes[sent % kBuffers] = message.n_bytes;
  copy_to_buffer(message.rest.first(n), buffer);
  box.sent.store(sent + 1, std::memory_order_release);
  message.rest = message.rest.subspan(n);
  return true;
}

bool Mailboxes::take(Message<std::byte>& message) const {
  Mailbox& box = *message.mailbox;
  const std::uint64_t taken = box.taken.load(std::memory_order_relaxed), first = taken % kBuffers;
  if (box.sent.load(std::memory_order_acquire) == taken) return false;
  if (box.message_bytes[first] != message.n_bytes)
    throw another_length(rank_, message.n_bytes, message.peer, box.message_bytes[first]);
  const std::size_t n = std::min(message.rest.size(), kPartBytes);
  std::memcpy(message.rest.data(), box.buffers[first], n);
  box.taken.store(taken + 1, std::memory_order_release);
  message.rest = message.rest.subspan(n);
  return true;
}

template <class Byte, class Move>
void Mailboxes::move_all(std::vector<Message<Byte>>& messages, const Move& move) {
  std::size_t n_left = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Message<Byte>& message = messages[i];
    // Messages through one mailbox stay in order.
    const auto left = std::span(messages).first(n_left);
    const bool is_next =
        std::none_of(left.begin(), left.end(), [&](const auto& each) { return each.mailbox == message.mailbox; });
    while (is_next && !message.rest.empty() && move(message)) {
    }
    if (!message.rest.empty()) messages[n_left++] = message;
  }
  messages.resize(n_left);
}

bool Mailboxes::advance() {
  move_all(receives_, [this](auto& message) { return take(message); });
  move_all(sends_, [](auto& message) { return put(message); });
  return is_empty();
}

}  // namespace tree_attn
