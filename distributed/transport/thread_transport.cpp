// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Mailboxes, and the threads that use them.
#include "distributed/transport/thread_transport.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

namespace tree_attn {

ThreadNetwork::ThreadNetwork(int size, double timeout) : timeout_(timeout), mailboxes_(static_cast<std::size_t>(size)) {
  constexpr std::size_t kChannels = 2;
  for (Mailbox& mailbox : mailboxes_) mailbox.queues.resize(kChannels * mailboxes_.size());
}

void ThreadNetwork::put(Channel channel, int from, int to, std::span<const std::byte> message) {
  Mailbox& mailbox = mailboxes_[static_cast<std::size_t>(to)];
  const std::lock_guard lock(mailbox.mutex);
  mailbox.queues[queue_of(channel, from)].emplace_back(message.begin(), message.end());
  mailbox.changed.notify_one();
}

std::vector<std::byte> ThreadNetwork::take(Channel channel, int from, int to, std::string_view what) {
  Mailbox& mailbox = mailboxes_[static_cast<std::size_t>(to)];
  std::deque<std::vector<std::byte>>& queue = mailbox.queues[queue_of(channel, from)];
  std::unique_lock lock(mailbox.mutex);
  // wait_for() overflows with an infinite timeout.
  constexpr double kLongest = 1e9;
  const auto timeout = std::chrono::duration<double>(std::min(timeout_, kLongest));
  const auto ready = [&] { return !queue.empty() || mailbox.closed; };
  const std::string rank = "rank " + std::to_string(to);
  if (!mailbox.changed.wait_for(lock, timeout, ready)) {
    throw TransportError(rank + " waited for " + std::string(what) + " of rank " + std::to_string(from) +
                         (mailbox.doing.empty() ? "" : " " + mailbox.doing) + " and gave up");
  }
  if (queue.empty()) throw TransportError(rank + " gave up: another rank failed");
  std::vector<std::byte> message = std::move(queue.front());
  queue.pop_front();
  return message;
}

void ThreadNetwork::doing(int rank, std::string_view phrase) {
  Mailbox& mailbox = mailboxes_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(mailbox.mutex);
  mailbox.doing = phrase;
}

void ThreadNetwork::close() {
  for (Mailbox& mailbox : mailboxes_) {
    const std::lock_guard lock(mailbox.mutex);
    mailbox.closed = true;
    mailbox.changed.notify_one();
  }
}

bool ThreadNetwork::empty() const {
  return std::all_of(mailboxes_.begin(), mailboxes_.end(), [](const Mailbox& mailbox) {
    return std::all_of(mailbox.queues.begin(), mailbox.queues.end(), [](const auto& queue) { return queue.empty(); });
  });
}

void ThreadRanks::barrier() const { all_gather({}, {}, "the arrival"); }

void ThreadRanks::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const {
  for (int to = 0; to < size(); ++to) network_.put(ThreadNetwork::Channel::kRanks, rank(), to, mine);
  for (int from = 0; from < size(); ++from) {
    const std::vector<std::byte> theirs = network_.take(ThreadNetwork::Channel::kRanks, from, rank(), what);
    if (theirs.size() != mine.size()) throw std::logic_error("all_gather: ranks differ in their number of bytes");
    std::copy(theirs.begin(), theirs.end(),
              all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(from) * mine.size()));
  }
}

void ThreadRanks::broadcast(std::span<std::byte> bytes, int root, std::string_view what) const {
  if (rank() == root) {
    for (int to = 0; to < size(); ++to) {
      if (to != root) network_.put(ThreadNetwork::Channel::kRanks, root, to, bytes);
    }
    return;
  }
  const std::vector<std::byte> received = network_.take(ThreadNetwork::Channel::kRanks, root, rank(), what);
  if (received.size() != bytes.size()) throw std::logic_error("broadcast: ranks differ in their number of bytes");
  std::copy(received.begin(), received.end(), bytes.begin());
}

std::vector<int> ThreadRanks::find_nodes() const {
  std::vector<int> nodes;
  for (int each = 0; each < size(); ++each) nodes.push_back(topology_.node_of(each));
  return nodes;
}

void ThreadTransport::wait() {
  for (const Send& send : sends_) network_.put(ThreadNetwork::Channel::kTransport, rank(), send.to, send.bytes);
  sends_.clear();
  for (const Receive& receive : receives_) {
    const std::vector<std::byte> message =
        network_.take(ThreadNetwork::Channel::kTransport, receive.from, rank(), "a message");
    if (message.size() != receive.bytes.size()) {
      throw TransportError("rank " + std::to_string(rank()) + " expected " + std::to_string(receive.bytes.size()) +
                           " bytes from rank " + std::to_string(receive.from) + " and got " +
                           std::to_string(message.size()));
    }
    std::copy(message.begin(), message.end(), receive.bytes.begin());
  }
  receives_.clear();
}

void ThreadTransport::start_receive(std::span<std::byte> bytes, int from) {
  // All ones are NaN in every type of elements.
  std::memset(bytes.data(), 0xFF, bytes.size());
  receives_.push_back({bytes, from});
}

void run_threads(const Topology& topology, double timeout, const ThreadBody& body) {
  ThreadNetwork network(topology.size(), timeout);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < topology.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const ThreadRanks ranks(network, topology, rank);
          ThreadTransport transport(network, topology, rank);
          body(ranks, transport);
          if (transport.in_flight() > 0)
            throw std::logic_error("rank " + std::to_string(rank) + " ended with messages in flight");
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
          network.close();
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
  if (!network.empty()) throw std::logic_error("messages were sent that no rank received");
}

}  // namespace tree_attn
