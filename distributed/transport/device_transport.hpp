// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages between the memories of devices, queued on streams: what NCCL offers (section 5.3).
#pragma once

#include "distributed/transport/plan.hpp"
#include "distributed/transport/transport.hpp"
#include "gpu/backend/blocks.hpp"
#include "gpu/backend/node_memory.hpp"

#include <cstddef>
#include <memory>
#include <span>

namespace tree_attn {

/// A transport whose messages lie in device memory.
///
/// wait() returns when the messages are queued on the stream of queue_on(): they are ordered with its kernels. settle()
/// returns when all of them have arrived.
class DeviceTransport : public Transport {
 public:
  using Transport::Transport;
  DeviceTransport* device() final { return this; }
  /// Blocks on the device of this rank.
  virtual MakeBlocks make_blocks() const = 0;
  /// Messages and reductions are queued on this stream until settle(), which it outlives. Forgets its marks.
  virtual void queue_on(DeviceStream& stream) = 0;
  /// Memory of all devices of a node, for kernels that store into it. Collective over all ranks.
  /// @param n_bytes the same on every rank of a node, at least 1 @returns null if the library has none
  /// @throws InputError on all ranks if the devices do not reach each other's memory; TransportError
  virtual std::unique_ptr<NodeMemory> allocate_on_node(std::size_t n_bytes) = 0;
  /// Queues an AllReduce in place, by the algorithm of the library: its messages are not counted, and its bits depend on the
  /// number of ranks. The maximum of a NaN and a number may be either.
  /// @param op kMax or kAdd @param elements in device memory, the same number on every rank
  virtual void all_reduce(Combine::Operator op, std::span<float> elements) = 0;
  /// Waits until all messages and reductions since the last call are done, and all that was queued on the stream before.
  /// @throws TransportError after the deadline, or if the library reports an error
  virtual void settle() = 0;
  /// When, in the last settle(), all that was queued on the stream before queue_on() was done, as seconds().
  double settled_from() const { return settled_from_; }
  /// Ends what is queued, after an error of this rank: no stream may wait for other ranks from now on.
  virtual void abandon() noexcept = 0;

 protected:
  void set_settled_from(double seconds) { settled_from_ = seconds; }

 private:
  double settled_from_ = 0;
};

}  // namespace tree_attn
