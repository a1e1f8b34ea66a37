// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages between devices over NCCL: grouped ncclSend and ncclRecv on the stream of the kernels (section 5.3).
#pragma once

#include "distributed/transport/nccl_api.hpp"
#include "distributed/transport/nccl_communicator.hpp"
#include "distributed/transport/transport.hpp"
#include "gpu/backend/blocks.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tree_attn {

/// A transport whose messages lie in device memory.
///
/// wait() returns when the messages since the last one are queued, as one group, on the stream of queue_on(): they are
/// ordered with its kernels. settle() returns when all of them have arrived, and is the only wait of a step. Messages may be
/// queued while the stream records a graph: then every launch of the graph sends them, and settle() waits for the launch. A
/// message is in a graph at its sender and at its receiver, or at neither.
///
/// Ranks connect in the first exchange of two peers, which is therefore not recorded. Where ranks are threads nothing is:
/// "Using multiple GPUs per process with CUDA graph capture may result in deadlocks" (NCCL's user guide, Using NCCL with
/// CUDA Graphs).
class NcclTransport : public Transport {
 public:
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

  /// Joins all ranks: collective over them, and they outlive this object. The device of this rank is current.
  /// @param interface see NcclCommunicator
  /// @throws as NcclCommunicator
  NcclTransport(const Ranks& ranks, Topology topology, const DevicePlatform& platform, std::string_view interface = {});
  const Ranks& ranks() const override { return communicator_.ranks(); }
  std::string_view name() const override { return "nccl"; }
  const Network& network() const override { return network_; }
  std::string library() const override { return communicator_.library().version_text(); }
  NcclTransport* device() override { return this; }
  void progress() override { communicator_.poll(); }

  /// Blocks on the device of this rank.
  MakeBlocks make_blocks() const { return platform_.make_blocks; }
  /// Tests whether messages may be queued while a stream records a graph.
  bool may_be_recorded() const { return size() == 1 || !ranks().is_one_process(); }
  /// Messages and reductions are queued on this stream until take_queued(). Forgets its marks.
  void queue_on(DeviceStream& stream);
  /// Takes the messages and reductions queued since queue_on().
  Queued take_queued() { return {std::exchange(stream_, nullptr), std::exchange(groups_, {})}; }
  /// Queues an AllReduce in place, by the algorithm of the library: its messages are not counted, and its bits depend on the
  /// number of ranks. The maximum of a NaN and a number may be either.
  /// @param op sum or maximum @param elements in device memory, the same number on every rank
  void all_reduce(nccl::Operator op, std::span<float> elements);
  /// Memory for all_gather(), where ranks are on one node: a window of all of them, in which the library takes its fastest
  /// way. Collective. @param n_bytes the same on every rank, at least 1
  /// @throws TransportError
  std::unique_ptr<NcclWindow> allocate_to_gather(std::size_t n_bytes);
  /// Queues an AllGather, by the library: not counted either.
  /// @param own elements in memory of allocate_to_gather(), as many on every rank, at the same offset
  /// @param[out] all those of all ranks, rank after rank; apart from own
  void all_gather(std::span<const float> own, std::span<float> all);
  /// Waits until these messages and reductions are done, and all that is on their stream.
  /// @throws TransportError after the deadline, or if the library reports an error
  void settle(const Queued& queued);
  /// Waits for everything queued since queue_on().
  void settle() { settle(take_queued()); }
  /// When, in the last settle(), all that was queued on the stream before queue_on() was done, as seconds().
  double settled_from() const { return settled_from_; }
  /// Ends what is queued, after an error of this rank: no stream may wait for other ranks from now on.
  void abandon() noexcept override { communicator_.abort(); }

  /// Notes a stream whose graphs hold messages; until remove_graphs(), which it outlives.
  void add_graphs(DeviceStream& stream) { with_graphs_.push_back(&stream); }
  /// Drops them. The library may wait for the end of all graphs with its messages, before it ends a communicator.
  void remove_graphs(DeviceStream& stream) noexcept {
    stream.forget();
    with_graphs_.erase(std::find(with_graphs_.begin(), with_graphs_.end(), &stream));
  }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { sends_.push_back({bytes, to}); }
  void start_receive(std::span<std::byte> bytes, int from) override { receives_.push_back({bytes, from}); }
  void finish_messages() override;

 private:
  /// Queues a collective of all ranks as a group of its own.
  template <class Queue>
  void queue_collective(const char* call, const Queue& queue);
  void await(DeviceStream& stream, std::size_t mark, const std::string& what);
  static std::string text_of(const Group& group);
  void drop_graphs() noexcept {
    for (DeviceStream* stream : with_graphs_) stream->forget();
  }

  std::vector<DeviceStream*> with_graphs_;  ///< one that is noted twice is here twice
  NcclCommunicator communicator_;           ///< drops these graphs where its end is an abort
  Network network_;
  DevicePlatform platform_;
  DeviceStream* stream_ = nullptr;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::vector<Group> groups_;  ///< since queue_on()
  double settled_from_ = 0;
};

}  // namespace tree_attn
