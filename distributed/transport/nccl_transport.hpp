// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages between devices over NCCL: grouped ncclSend and ncclRecv on the stream of the kernels (section 5.3).
#pragma once

#include "tree_attn/distributed/transport/device_transport.hpp"
#include "tree_attn/distributed/transport/nccl_communicator.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tree_attn {

/// The messages between two calls of wait() are one group. They are queued, and so is all that follows on the stream:
/// settle() is the only wait of a step.
///
/// In a graph NCCL asks for what DeviceTransport asks for. Ranks connect in the first exchange of two peers, which is
/// therefore not recorded. Where ranks are threads nothing is: "Using multiple GPUs per process with CUDA graph capture may
/// result in deadlocks" (NCCL's user guide, Using NCCL with CUDA Graphs).
class NcclTransport final : public DeviceTransport {
 public:
  /// Joins all ranks: collective over them, and they outlive this object. The device of this rank is current.
  /// @param interface see NcclCommunicator
  /// @throws as NcclCommunicator
  NcclTransport(const Ranks& ranks, Topology topology, const DevicePlatform& platform, std::string_view interface = {});
  ~NcclTransport() override;
  std::string_view name() const override { return "nccl"; }
  const Network& network() const override { return network_; }
  bool is_one_process() const override { return communicator_.ranks().is_one_process(); }
  std::string library() const override { return communicator_.library().version_text(); }
  double timeout() const override { return communicator_.ranks().deadline().seconds(); }
  bool all_equal(std::uint64_t number, std::string_view what) override {
    return communicator_.ranks().all_equal(number, what);
  }
  void progress() override { communicator_.poll(); }

  MakeBlocks make_blocks() const override { return platform_.make_blocks; }
  bool may_be_recorded() const override { return size() == 1 || !is_one_process(); }
  void queue_on(DeviceStream& stream) override;
  /// A window of NCCL, whose kernels take plain addresses: from NCCL 2.29 on.
  std::unique_ptr<NodeMemory> allocate_on_node(std::size_t n_bytes) override;
  void all_reduce(Combine::Operator op, std::span<float> elements) override;
  std::unique_ptr<NodeMemory> allocate_to_gather(std::size_t n_bytes) override;
  void all_gather(std::span<const float> own, std::span<float> all) override;
  Queued take_queued() override { return {std::exchange(stream_, nullptr), std::exchange(groups_, {})}; }
  using DeviceTransport::settle;
  void settle(const Queued& queued) override;
  void abandon() noexcept override { communicator_.abort(); }

  NcclCommunicator& communicator() { return communicator_; }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override { sends_.push_back({bytes, to}); }
  void start_receive(std::span<std::byte> bytes, int from) override { receives_.push_back({bytes, from}); }
  void finish_messages() override;
  void tell_all(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    communicator_.ranks().all_gather(mine, all, what);
  }

 private:
  /// Queues a collective of all ranks as a group of its own.
  template <class Queue>
  void queue_collective(const Queue& queue);
  void await(DeviceStream& stream, std::size_t mark, const std::string& what);
  static std::string text_of(const Group& group);

  NcclCommunicator communicator_;
  std::optional<NcclCommunicator> node_;  ///< of the node, once memory was allocated there; the two abort each other
  Network network_;
  DevicePlatform platform_;
  DeviceStream* stream_ = nullptr;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::vector<Group> groups_;  ///< since queue_on()
};

}  // namespace tree_attn
