// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks as threads of one process: any number of them, any grouping into nodes, no MPI, and nothing waits for ever.
///
/// As late and as strict as the contract of Transport allows: bytes leave when the sender waits and arrive when the receiver
/// waits; a buffer that is being received into holds NaN until then; lengths must agree; what is sent must be received. A
/// decoder that touches a buffer too early, or relies on a message that MPI would not have delivered yet, computes garbage.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/transport/transport.hpp"

namespace tree_attn::test {

/// The mailboxes between the ranks.
class ThreadNetwork {
 public:
  /// @param timeout seconds that any single wait may take
  ThreadNetwork(int size, double timeout) : timeout_(timeout), mailboxes_(static_cast<std::size_t>(size)) {
    for (Mailbox& mailbox : mailboxes_) mailbox.from.resize(static_cast<std::size_t>(size));
  }

  void put(int from, int to, std::span<const std::byte> message) {
    Mailbox& mailbox = mailboxes_[static_cast<std::size_t>(to)];
    const std::lock_guard lock(mailbox.mutex);
    mailbox.from[static_cast<std::size_t>(from)].emplace_back(message.begin(), message.end());
    mailbox.changed.notify_one();
  }

  /// The next message on the way `from` -> `to`. @throws TransportError after the deadline, or when another rank has failed
  std::vector<std::byte> take(int from, int to) {
    Mailbox& mailbox = mailboxes_[static_cast<std::size_t>(to)];
    std::deque<std::vector<std::byte>>& queue = mailbox.from[static_cast<std::size_t>(from)];
    std::unique_lock lock(mailbox.mutex);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_);
    const auto ready = [&] { return !queue.empty() || mailbox.closed; };
    if (!mailbox.changed.wait_until(lock, deadline, ready)) {
      throw TransportError("rank " + std::to_string(to) + " waited for a message from rank " + std::to_string(from) +
                           " and gave up");
    }
    if (queue.empty()) throw TransportError("rank " + std::to_string(to) + " gave up: another rank failed");
    std::vector<std::byte> message = std::move(queue.front());
    queue.pop_front();
    return message;
  }

  /// Wakes every rank that waits: one of them has failed.
  void close() {
    for (Mailbox& mailbox : mailboxes_) {
      const std::lock_guard lock(mailbox.mutex);
      mailbox.closed = true;
      mailbox.changed.notify_one();
    }
  }

  /// Whether everything sent was received. Only once all ranks have ended.
  bool empty() const {
    return std::all_of(mailboxes_.begin(), mailboxes_.end(), [](const Mailbox& mailbox) {
      return std::all_of(mailbox.from.begin(), mailbox.from.end(), [](const auto& queue) { return queue.empty(); });
    });
  }

 private:
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::deque<std::vector<std::byte>>> from;  // by sender, first sent first
    bool closed = false;
  };
  double timeout_;
  std::vector<Mailbox> mailboxes_;
};

/// Messages through those mailboxes.
class ThreadTransport : public Transport {
 public:
  ThreadTransport(ThreadNetwork& network, const Topology& topology, int rank)
      : Transport(topology, rank), network_(network) {}

  void wait() override {
    for (const Send& send : sends_) network_.put(rank(), send.to, send.bytes);
    sends_.clear();
    for (const Receive& receive : receives_) {
      const std::vector<std::byte> message = network_.take(receive.from, rank());
      if (message.size() != receive.bytes.size()) {
        throw TransportError("rank " + std::to_string(rank()) + " expected " + std::to_string(receive.bytes.size()) +
                             " bytes from rank " + std::to_string(receive.from) + " and got " +
                             std::to_string(message.size()));
      }
      std::copy(message.begin(), message.end(), receive.bytes.begin());
    }
    receives_.clear();
  }

  void progress() override { ++n_progress; }

  /// Messages started and not yet waited for.
  std::size_t in_flight() const { return sends_.size() + receives_.size(); }
  /// Calls of progress().
  std::int64_t n_progress = 0;

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { sends_.push_back({bytes, to}); }
  void start_receive(std::span<std::byte> bytes, int from) override {
    // All ones are NaN in every storage type.
    std::memset(bytes.data(), 0xFF, bytes.size());
    receives_.push_back({bytes, from});
  }

 private:
  struct Send {
    std::span<const std::byte> bytes;
    int to;
  };
  struct Receive {
    std::span<std::byte> bytes;
    int from;
  };
  ThreadNetwork& network_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

/// Runs body(transport) on every rank of a topology, a thread each, and joins them.
/// @throws what the first rank to fail threw; std::logic_error if messages are left over
template <class Body>
void run_threads(const Topology& topology, double timeout, const Body& body) {
  ThreadNetwork network(topology.size(), timeout);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < topology.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadTransport transport(network, topology, rank);
        body(transport);
        if (transport.in_flight() > 0)
          throw std::logic_error("rank " + std::to_string(rank) + " ended with messages in flight");
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        network.close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  if (!network.empty()) throw std::logic_error("messages were sent that no rank received");
}

}  // namespace tree_attn::test
