// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks as threads of one process: any number of them, any grouping into nodes, no MPI.
///
/// As late and as strict as the contract of Transport allows: bytes leave when the sender waits and arrive when the receiver
/// waits; a buffer that is being received into holds NaN until then; lengths must agree; what is sent must be received. A
/// decoder that touches a buffer too early, or relies on a message that MPI would not have delivered yet, computes garbage.
#pragma once

#include "distributed/transport/ranks.hpp"
#include "distributed/transport/transport.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace tree_attn {

/// The mailboxes between threads: one queue for every pair of ranks, and for each of the two kinds of messages.
class ThreadNetwork {
 public:
  enum class Channel { kTransport, kRanks };

  /// @param timeout seconds that one wait may take
  ThreadNetwork(int size, double timeout);

  void put(Channel channel, int from, int to, std::span<const std::byte> message);
  /// The next message on its way `from` -> `to`.
  /// @param what for the error @throws TransportError after the deadline, or when another rank has failed
  std::vector<std::byte> take(Channel channel, int from, int to, std::string_view what);
  /// What a rank does from now on, for that error.
  void doing(int rank, std::string_view phrase);
  /// Wakes every rank that waits, because one rank has failed.
  void close();
  /// Whether everything sent was received. Only once all ranks have ended.
  bool empty() const;

 private:
  struct Mailbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::deque<std::vector<std::byte>>> queues;  // by channel and sender, first sent first
    std::string doing;
    bool closed = false;
  };
  std::size_t queue_of(Channel channel, int from) const {
    return static_cast<std::size_t>(channel) * mailboxes_.size() + static_cast<std::size_t>(from);
  }

  double timeout_;
  std::vector<Mailbox> mailboxes_;
};

/// Ranks that are threads.
class ThreadRanks : public Ranks {
 public:
  ThreadRanks(ThreadNetwork& network, const Topology& topology, int rank)
      : Ranks(rank, topology.size()), network_(network), topology_(topology) {}
  using Ranks::all_gather;
  void doing(std::string_view phrase) const override { network_.doing(rank(), phrase); }
  void barrier() const override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) const override;
  void broadcast(std::span<std::byte> bytes, int root, std::string_view what) const override;

 protected:
  std::vector<int> find_nodes() const override;

 private:
  ThreadNetwork& network_;
  const Topology& topology_;
};

/// Messages between them.
class ThreadTransport : public Transport {
 public:
  ThreadTransport(ThreadNetwork& network, const Topology& topology, int rank)
      : Transport(topology, rank), network_(network) {}
  void wait() override;
  void progress() override { ++n_progress_; }

  /// Messages started and not yet waited for.
  std::size_t in_flight() const { return sends_.size() + receives_.size(); }
  /// Calls of progress().
  std::int64_t n_progress() const { return n_progress_; }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { sends_.push_back({bytes, to}); }
  void start_receive(std::span<std::byte> bytes, int from) override;

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
  std::int64_t n_progress_ = 0;
};

/// What run_threads() calls on every rank.
using ThreadBody = std::function<void(const ThreadRanks&, ThreadTransport&)>;

/// Runs `body` on every rank of a topology, one thread per rank, and joins them.
/// @param timeout seconds that one wait may take
/// @throws what the first rank to fail threw; std::logic_error if messages are left over
void run_threads(const Topology& topology, double timeout, const ThreadBody& body);

/// The same for a body that needs the transport alone.
template <class Body>
requires std::is_invocable_v<const Body&, ThreadTransport&>
void run_threads(const Topology& topology, double timeout, const Body& body) {
  run_threads(topology, timeout, ThreadBody([&body](const ThreadRanks&, ThreadTransport& transport) { body(transport); }));
}

}  // namespace tree_attn
