// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages between the memories of devices, queued on streams: what NCCL offers (section 5.3).
#pragma once

#include "tree_attn/distributed/plan/plan.hpp"
#include "tree_attn/distributed/transport/transport.hpp"
#include "tree_attn/gpu/backend/blocks.hpp"
#include "tree_attn/gpu/backend/node_memory.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace tree_attn {

/// A transport whose messages lie in device memory.
///
/// wait() returns when the messages are queued on the stream of queue_on(): they are ordered with its kernels. settle()
/// returns when all of them have arrived. Messages may be queued while the stream records a graph: then every launch of the
/// graph sends them, and settle() waits for the launch. A message is in a graph at its sender and at its receiver, or at
/// neither.
class DeviceTransport : public Transport {
 public:
  using Transport::Transport;
  /// Messages, reductions and gathers that were queued together, and where the stream is when they have arrived.
  struct Group {
    std::size_t mark = 0;
    std::vector<int> senders;  ///< whose messages it receives; all other ranks, if the library chooses
  };
  /// The groups of a step, in order.
  struct Queued {
    DeviceStream* stream = nullptr;  ///< null: nothing
    std::vector<Group> groups;
  };
  DeviceTransport* device() final { return this; }
  /// Blocks on the device of this rank.
  virtual MakeBlocks make_blocks() const = 0;
  /// Whether messages may be queued while a stream records a graph.
  virtual bool may_be_recorded() const { return true; }
  /// Messages and reductions are queued on this stream until take_queued(). Forgets its marks.
  virtual void queue_on(DeviceStream& stream) = 0;
  /// What was queued since queue_on().
  virtual Queued take_queued() = 0;
  /// Memory of all devices of a node, for kernels that store into it. Collective over all ranks.
  /// @param n_bytes the same on every rank of a node, at least 1 @returns null if the library has none
  /// @throws InputError on all ranks if the devices do not reach each other's memory; TransportError
  virtual std::unique_ptr<NodeMemory> allocate_on_node(std::size_t n_bytes) = 0;
  /// Queues an AllReduce in place, by the algorithm of the library: its messages are not counted, and its bits depend on the
  /// number of ranks. The maximum of a NaN and a number may be either.
  /// @param op kMax or kAdd @param elements in device memory, the same number on every rank
  virtual void all_reduce(Combine::Operator op, std::span<float> elements) = 0;
  /// Memory for all_gather(), where ranks are on one node: a window of all of them, in which the library takes its fastest
  /// way. Collective. @param n_bytes the same on every rank, at least 1
  /// @throws TransportError
  virtual std::unique_ptr<NodeMemory> allocate_to_gather(std::size_t n_bytes) = 0;
  /// Queues an AllGather, by the library: not counted either.
  /// @param own elements in memory of allocate_to_gather(), as many on every rank, at the same place
  /// @param[out] all those of all ranks, rank after rank; apart from own
  virtual void all_gather(std::span<const float> own, std::span<float> all) = 0;
  /// Waits until these messages and reductions are done, and all that is on their stream.
  /// @throws TransportError after the deadline, or if the library reports an error
  virtual void settle(const Queued& queued) = 0;
  /// The same for what was queued since queue_on().
  void settle() { settle(take_queued()); }
  /// When, in the last settle(), all that was queued on the stream before queue_on() was done, as seconds().
  double settled_from() const { return settled_from_; }
  /// Ends what is queued, after an error of this rank: no stream may wait for other ranks from now on.
  void abandon() noexcept override = 0;

  /// Notes a stream whose graphs hold messages; until remove_graphs(), which it outlives.
  void add_graphs(DeviceStream& stream) { with_graphs_.push_back(&stream); }
  /// Drops them. A library may wait for the end of all graphs with its messages, before it ends a communicator.
  void remove_graphs(DeviceStream& stream) noexcept {
    stream.forget();
    with_graphs_.erase(std::find(with_graphs_.begin(), with_graphs_.end(), &stream));
  }

 protected:
  void set_settled_from(double seconds) { settled_from_ = seconds; }
  void drop_graphs() noexcept {
    for (DeviceStream* stream : with_graphs_) stream->forget();
  }

 private:
  double settled_from_ = 0;
  std::vector<DeviceStream*> with_graphs_;  ///< one that is noted twice is here twice
};

}  // namespace tree_attn
