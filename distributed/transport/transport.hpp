// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Point-to-point messages between ranks, all of them counted (section 6; eq. (8)-(14) are checked against the
/// counts).
///
/// All communication of a decode step passes through send(), receive() and wait(). The collectives are built from them, as
/// plans (plan.hpp), and not taken from a library: the messages inside a library's AllReduce cannot be counted from outside,
/// and its order of additions depends on the number of ranks.
#pragma once

#include "distributed/transport/buffer.hpp"
#include "distributed/transport/network.hpp"
#include "distributed/transport/topology.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tree_attn {

/// Counts of the messages and merges of one rank since they were last cleared.
struct Traffic {
  std::int64_t collectives = 0;          ///< collective operations this rank took part in
  std::int64_t messages = 0;             ///< messages sent by this rank
  std::int64_t bytes = 0;                ///< bytes sent by this rank
  std::int64_t bytes_between_nodes = 0;  ///< of these, the bytes sent to other nodes
  std::int64_t merge_steps = 0;          ///< sequential merges of this rank that combine shards, per query row
  std::int64_t buffer_kv_bytes = 0;      ///< most bytes of keys and values held at once beside the rank's own shard

  bool operator==(const Traffic&) const = default;
  /// Difference to earlier counts. The most bytes held are no count.
  Traffic since(const Traffic& before) const {
    return {collectives - before.collectives, messages - before.messages, bytes - before.bytes,
            bytes_between_nodes - before.bytes_between_nodes, merge_steps - before.merge_steps};
  }
};

/// Messages have failed. what() is one line. After it the ranks refuse further work.
struct TransportError : std::runtime_error {
  /// Cause of the error.
  enum class Kind {
    kDeadline,   ///< a wait has made no progress for as long as it may take
    kLength,     ///< a message has another length than its receiver expected
    kOtherRank,  ///< another rank has failed: its error is the one to report
    kLibrary,    ///< MPI, NCCL or the system has refused a call, or these ranks have, after an earlier error
    kCallback    ///< a function of the program has failed: CallbackRanks
  };
  TransportError(Kind of, const std::string& line, int of_rank = -1, int with = -1, int library_code = 0)
      : std::runtime_error(line), kind(of), rank(of_rank), peer(with), code(library_code) {}
  Kind kind;
  int rank;  ///< that reports it, in the numbering of its Ranks; -1: unknown
  int peer;  ///< the other side of the message; -1: unknown, or several
  int code;  ///< of kLibrary: the error code of MPI, or the ncclResult_t; else 0
};

/// A wait that has ended because another rank failed.
struct OtherRankFailed : TransportError {
  explicit OtherRankFailed(const std::string& line, int of_rank = -1) : TransportError(Kind::kOtherRank, line, of_rank) {}
};

class NcclTransport;
class Ranks;

/// Point-to-point messages between the ranks of a topology.
class Transport {
 public:
  /// @throws std::out_of_range if the topology has no such rank
  Transport(Topology topology, int rank);
  virtual ~Transport() = default;

  const Topology& topology() const { return topology_; }
  int rank() const { return rank_; }
  int size() const { return topology_.size(); }
  /// These ranks, for what they tell each other apart from the messages of a step, such as the address of a window: it is
  /// not counted.
  virtual const Ranks& ranks() const = 0;
  /// "mpi", "shared", "threads", "callbacks" or "nccl", for reports.
  virtual std::string_view name() const = 0;
  /// Times of messages, for the default radix: constants, the same on every rank. Those of MPI unless a transport has its
  /// own.
  virtual const Network& network() const { return kMpiNetwork; }
  /// The version of the library that carries messages between devices; empty if there is none.
  virtual std::string library() const { return {}; }
  /// This transport, if its messages lie in device memory; null if they lie in host memory.
  virtual NcclTransport* device() { return nullptr; }

  /// Returns whether messages that were started have not been waited for, or a wait for them has given up. Their memory must
  /// then remain allocated.
  virtual bool has_messages_in_flight() const { return false; }
  /// @throws TransportError if a wait has given up: messages may be in flight, and no further one can be matched
  virtual void check() const;
  /// After an error of this rank in a step: others may wait for messages that it will not send, so it gives up.
  virtual void abandon() noexcept;

  /// Starts a send. The bytes must not change until wait() returns. Zero bytes are no message.
  /// @throws std::out_of_range if there is no such rank; so does receive()
  void send(std::span<const std::byte> bytes, int to);
  /// Starts to receive exactly bytes.size() bytes. They have arrived when wait() returns.
  void receive(std::span<std::byte> bytes, int from);
  /// Waits for all messages that were started. @throws TransportError after the deadline
  void wait() { finish_messages(); }
  /// Lets messages in flight advance without waiting. Returns at once if there are none.
  virtual void progress() = 0;
  /// Lets messages in flight advance, and says whether wait() would return at once. False where only wait() moves messages.
  virtual bool have_arrived() {
    progress();
    return false;
  }

  /// Time since some fixed moment in seconds: every latency is a difference of two such times.
  virtual double seconds() const;
  /// Allocator of buffers for received messages.
  virtual Allocate allocate() const { return allocate_on_heap; }

  /// The counters of this rank. The transport counts messages and bytes; runners and decoders count the rest.
  const Traffic& traffic() const { return traffic_; }
  void clear_traffic() { traffic_ = {}; }
  void count_collectives(std::int64_t n) { traffic_.collectives += n; }
  virtual void count_merge_steps(std::int64_t n) { traffic_.merge_steps += n; }
  /// Counts what a graph has sent and merged. @param recorded what was counted when it was recorded
  void count_graph(const Traffic& recorded);
  /// Counts what kernels have stored into the windows of n other ranks of the node: a message to each.
  void count_stored(std::int64_t n, std::int64_t bytes) { traffic_.messages += n, traffic_.bytes += bytes; }
  /// Notes how many bytes of keys and values this rank holds now beside its own shard.
  void count_held_kv_bytes(std::int64_t n) { traffic_.buffer_kv_bytes = std::max(traffic_.buffer_kv_bytes, n); }

 protected:
  /// A message that was started.
  struct Send {
    std::span<const std::byte> bytes;
    int to;
  };
  struct Receive {
    std::span<std::byte> bytes;
    int from;
  };

  virtual void start_send(std::span<const std::byte> bytes, int to) = 0;
  virtual void start_receive(std::span<std::byte> bytes, int from) = 0;
  virtual void finish_messages() = 0;

 private:
  Topology topology_;
  int rank_;
  Traffic traffic_;
};

}  // namespace tree_attn
