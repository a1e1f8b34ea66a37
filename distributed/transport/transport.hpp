// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages between ranks, every one of them counted (section 6, eq. (8)-(14) are checked against these counts).
///
/// All communication of a decode step passes through send(), receive() and wait(). The collectives are written by hand on
/// top of them, as plans (plan.hpp), because what a library sends inside its AllReduce cannot be counted from outside, and
/// the order in which it adds depends on the number of ranks.
#pragma once

#include "distributed/transport/buffer.hpp"
#include "distributed/transport/topology.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace tree_attn {

/// What a rank has sent and merged since the counters were last cleared.
struct Traffic {
  std::int64_t collectives = 0;          ///< collective operations this rank took part in
  std::int64_t messages = 0;             ///< messages sent by this rank
  std::int64_t bytes = 0;                ///< bytes sent by this rank
  std::int64_t bytes_between_nodes = 0;  ///< those that left the node
  std::int64_t merge_steps = 0;          ///< merges this rank did one after another to combine shards, per query
  std::int64_t buffer_kv_bytes = 0;      ///< most bytes of keys and values held at once beside the rank's own shard
};

/// A peer did not answer in time, or the library reported an error. what() is one line.
struct TransportError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Point-to-point messages between the ranks of a topology.
class Transport {
 public:
  Transport(Topology topology, int rank) : topology_(std::move(topology)), rank_(rank) {}
  virtual ~Transport() = default;

  const Topology& topology() const { return topology_; }
  int rank() const { return rank_; }
  int size() const { return topology_.size(); }

  /// Starts to send; the bytes must stay as they are until wait() returns. Any length, also 0 (no message).
  void send(std::span<const std::byte> bytes, int to);
  /// Starts to receive exactly bytes.size() bytes; they are there when wait() returns.
  void receive(std::span<std::byte> bytes, int from);
  /// Waits for everything started. @throws TransportError after the deadline
  virtual void wait() = 0;
  /// Lets messages in flight advance, without waiting.
  virtual void progress() = 0;

  /// Counts of this rank. Messages and bytes are counted here, the rest by the fabric that carries out a plan.
  const Traffic& traffic() const { return traffic_; }
  void clear_traffic() { traffic_ = {}; }
  void count_collectives(std::int64_t n) { traffic_.collectives += n; }
  void count_merge_steps(std::int64_t n) { traffic_.merge_steps += n; }
  /// Keys and values of other ranks that this rank holds at the moment.
  void count_held_kv_bytes(std::int64_t n) { traffic_.buffer_kv_bytes = std::max(traffic_.buffer_kv_bytes, n); }

  /// Memory that is kept from step to step: the ring receives into one while it sends the other, plans use the first.
  std::array<Buffer, 2> buffers;

 protected:
  virtual void start_send(std::span<const std::byte> bytes, int to) = 0;
  virtual void start_receive(std::span<std::byte> bytes, int from) = 0;

 private:
  Topology topology_;
  int rank_;
  Traffic traffic_;
};

}  // namespace tree_attn
