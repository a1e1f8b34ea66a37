// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks as threads of one process: any number of ranks, any grouping into nodes, no MPI.
///
/// The transport is as late and as strict as the contract of Transport allows. Bytes leave when the sender waits and arrive
/// when the receiver waits; a sender waits until its messages are received; a buffer that is being received into holds NaN;
/// lengths must agree; every message must be received. A decoder that reads or writes a buffer too early, or relies on a
/// message that MPI would not have delivered yet, computes garbage or fails.
#pragma once

#include "distributed/transport/deadline.hpp"
#include "distributed/transport/ranks.hpp"
#include "distributed/transport/transport.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace tree_attn {

class ThreadDeadline;

/// The mailboxes of all ranks: one queue per sender and channel. A message is copied once, from the memory of the sender to
/// that of the receiver. Messages allocate nothing.
class ThreadNetwork {
 public:
  enum class Channel { kTransport, kRanks };

  /// @param timeout seconds that one wait may take while no rank computes; may be infinite
  /// @throws std::invalid_argument if there are no ranks, or as require_timeout()
  ThreadNetwork(int size, double timeout);

  /// Offers a message to a rank that exists. Its bytes must not change until flush() returns.
  void put(Channel channel, int from, int to, std::span<const std::byte> message);
  /// Copies the next message from rank `from` to the rank of a deadline. @param what names the message in the error
  /// @throws TransportError after the deadline, when another rank has failed, or if the lengths differ: put(), take() and
  /// flush() withdraw all messages of a rank before they throw
  void take(Channel channel, int from, const ThreadDeadline& own, std::span<std::byte> message, std::string_view what);
  /// Waits until all messages of the rank of a deadline have been taken. @throws TransportError as take()
  void flush(const ThreadDeadline& own);
  /// Ends a rank. @throws std::logic_error if it was sent a message that it has not received; from then on, put() throws
  /// that
  void leave(int rank);
  /// Wakes every waiting rank, because one rank has failed.
  void close();
  double timeout() const { return timeout_; }

 private:
  friend class ThreadDeadline;
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::vector<std::span<const std::byte>>> queues;  ///< by channel and sender, first sent first
    int n_offered = 0;                                            ///< own messages that are not taken yet
    bool left = false, closed = false;
  };
  std::vector<std::span<const std::byte>>& queue(Mailbox& mailbox, Channel channel, int from) const {
    return mailbox.queues[static_cast<std::size_t>(channel) * mailboxes_.size() + static_cast<std::size_t>(from)];
  }
  Mailbox& mailbox(int rank) { return mailboxes_[static_cast<std::size_t>(rank)]; }
  /// Waits in the mailbox of a rank until the condition holds. @param own of that rank @param what it waits for: a function,
  /// called after the deadline @throws TransportError if it does not; before that it unlocks, and withdraws the messages of
  /// the rank
  template <class Condition, class What>
  void wait(const ThreadDeadline& own, int peer, std::unique_lock<std::mutex>& lock, const Condition& condition,
            const What& what);
  /// Takes back the messages of a rank, whose memory is about to go.
  void withdraw(int rank);

  double timeout_;
  std::atomic<int> n_computing_;  ///< ranks that neither wait nor have left
  std::vector<Mailbox> mailboxes_;
};

/// The deadline of one rank: of its waits in the network, and of those that poll.
class ThreadDeadline : public Deadline {
 public:
  ThreadDeadline(ThreadNetwork& network, int rank) : Deadline(rank, network.timeout()), network_(network) {}
  using Deadline::rank;
  void begin_wait(std::string_view phrase) override;
  void end_wait() override;
  void poll(const FindPending& find = {}) override;

 private:
  ThreadNetwork& network_;
};

/// Ranks that are threads.
class ThreadRanks : public Ranks {
 public:
  ThreadRanks(ThreadNetwork& network, const Topology& topology, int rank)
      : Ranks(rank, topology.size(), "; start the threads of all ranks again"),
        network_(network),
        topology_(topology),
        deadline_(network, rank) {}
  using Ranks::all_gather;
  bool is_one_process() const override { return true; }
  ThreadDeadline& deadline() const override { return deadline_; }
  ThreadNetwork& network() const { return network_; }
  void barrier() const override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const override;
  void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const override;
  std::unique_ptr<Transport> open_transport(Topology topology) const override;
  /// Opens the transport of threads, which share all memory.
  std::unique_ptr<Transport> open_shared_transport(Topology topology) const override {
    return open_transport(std::move(topology));
  }

 protected:
  std::vector<int> find_nodes() const override;

 private:
  ThreadNetwork& network_;
  const Topology& topology_;
  mutable ThreadDeadline deadline_;
};

/// Messages between ranks that are threads.
class ThreadTransport : public Transport {
 public:
  /// @param ranks outlive it
  ThreadTransport(const ThreadRanks& ranks, Topology topology)
      : Transport(std::move(topology), ranks.rank()), ranks_(ranks), network_(ranks.network()) {
    sends_.reserve(static_cast<std::size_t>(size())), receives_.reserve(static_cast<std::size_t>(size()));
  }
  const ThreadRanks& ranks() const override { return ranks_; }
  std::string_view name() const override { return "threads"; }
  const Network& network() const override { return kThreadNetwork; }
  void progress() override {}
  /// Drops the messages: no other rank knows where they lie, as the network withdraws what a failed wait has offered.
  void abandon() noexcept override { sends_.clear(), receives_.clear(), ranks_.give_up(); }

  /// Messages started and not yet waited for.
  std::size_t in_flight() const { return sends_.size() + receives_.size(); }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { sends_.push_back({bytes, to}); }
  void start_receive(std::span<std::byte> bytes, int from) override;
  void finish_messages() override;

 private:
  const ThreadRanks& ranks_;
  ThreadNetwork& network_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

/// Function that run_threads() calls on every rank.
using ThreadBody = std::function<void(const ThreadRanks&, ThreadTransport&)>;

/// Runs `body` on every rank of a topology, one thread per rank, and joins the threads.
/// @param timeout seconds that one wait may take while no rank computes; may be infinite
/// @throws std::invalid_argument as require_timeout(); what the first rank to fail threw, but no OtherRankFailed if another
/// error is the reason for it; std::logic_error if a message was not received; std::runtime_error if the system starts no
/// thread for a rank. A TransportError, an InputError and a std::logic_error are thrown as they are. The text of any other
/// std::runtime_error begins with the rank, and std::bad_alloc becomes one.
void run_threads(const Topology& topology, double timeout, const ThreadBody& body);

/// Runs a body that needs the transport alone.
template <class Body>
requires std::is_invocable_v<const Body&, ThreadTransport&>
void run_threads(const Topology& topology, double timeout, const Body& body) {
  run_threads(topology, timeout, ThreadBody([&body](const ThreadRanks&, ThreadTransport& transport) { body(transport); }));
}

}  // namespace tree_attn
