// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans on the memory of a device: kernels combine blocks; messages are sent from device memory, or staged.
#pragma once

#include "tree_attn/distributed/plan/plan.hpp"
#include "tree_attn/distributed/transport/nccl_transport.hpp"
#include "tree_attn/distributed/transport/transport.hpp"
#include "tree_attn/gpu/backend/blocks.hpp"
#include "tree_attn/gpu/backend/device_steps.hpp"
#include "tree_attn/reference/decode/decode.hpp"

#include <memory>
#include <span>
#include <vector>

namespace tree_attn {

/// What the plans of a decoder need: the most of any number of queries.
struct FabricSize {
  std::int64_t elements = 0;  ///< of all blocks
  std::int64_t outputs = 0;   ///< of z and lse
  bool gathers = false;       ///< whether the library of the transport gathers
  /// Makes it enough for a plan, too, and for one of these widths and fewer rows.
  void fit(const Plan& plan, std::int64_t n_rows, std::int64_t d_v);
};

/// Memory of a device for the blocks of plans that end steps of one stream. At its end the stream forgets its graphs.
class DeviceFabricMemory {
 public:
  /// @param transport outlives it @param stream as MakeBlocks
  /// @param scales KvScales::v, by which an output that is left on the device is multiplied; empty: none
  DeviceFabricMemory(Transport& transport, const FabricSize& size, std::int64_t d_v, MakeBlocks make_blocks,
                     DeviceStream* stream, std::span<const float> scales = {});
  ~DeviceFabricMemory();
  DeviceFabricMemory(const DeviceFabricMemory&) = delete;
  DeviceFabricMemory& operator=(const DeviceFabricMemory&) = delete;

 private:
  friend class DeviceFabric;
  Transport& transport_;
  std::unique_ptr<NodeMemory> of_library_;  ///< of the blocks, where the library gathers; else null
  std::int64_t n_scales_, scale_size_;      ///< scales, and elements of each of them after the blocks
  std::int64_t scales_at_;                  ///< where the blocks end
  std::unique_ptr<DeviceBlocks> blocks_;
  std::unique_ptr<float[]> staging_;
  std::span<float> output_;  ///< z, then lse: of the blocks, on the host
};

/// The blocks of one plan on a device: the end of a step. Through host memory passes the output, unless it is
/// left on the device, and messages if the transport sends them from there: the states of the plan, no more, which
/// DeviceTraffic counts as downloaded by their sender and uploaded by their receiver.
class DeviceFabric : public StepEnd {
 public:
  /// @param transport outlives the fabric @param memory with room for the plan
  DeviceFabric(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v,
               std::shared_ptr<DeviceFabricMemory> memory);
  /// The same with memory of its own. @param stream as MakeBlocks
  DeviceFabric(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v, MakeBlocks make_blocks,
               DeviceStream* stream = nullptr);
  DeviceFabric(const DeviceFabric&) = delete;
  DeviceFabric& operator=(const DeviceFabric&) = delete;

  /// Where the output of the next steps is: in host memory, or on the device. The caller forgets the graph in between.
  void leave_output(bool on_device) { leaves_output_ = on_device; }
  /// @name A step: all of it is queued on the stream, with waits for messages if those are sent from host memory
  /// @{
  void queue(const float* states) override;
  std::uint64_t graph() const override { return graph_; }
  bool may_be_recorded() const override { return device_ != nullptr ? device_->may_be_recorded() : transport_.size() == 1; }
  /// Waits for the plan after a step that ends with it. @returns the output, valid until the next step
  OutputView settle();
  /// A step of the plan alone, by DeviceStream::repeat(). @param states that are there, at the same place in every step
  OutputView step(const float* states);
  /// Whether the last step was one launch of a graph, for which the library took no memory.
  bool was_launched() const { return was_launched_; }
  /// @}

 private:
  void run(const Exchange& exchange);
  void run(const Combine& combine);
  void run(const Copy& copy);
  void run(const Fold& fold);
  void run(const Finish& finish);
  void run(const Weigh& weigh);
  void run(const Divide& divide);
  void run(const AllReduce& reduce);
  void run(const AllGather& gather);
  /// Copies the states of this rank's subtrees to the own blocks of the plan. Messages are queued after that.
  void take_states(const float* states);
  /// Copies the output of the plan to host memory, where it stays until the next step, or multiplies it on the device.
  void give_output();
  std::int64_t at(Block block) const { return offsets_[static_cast<std::size_t>(block)]; }
  std::int64_t size(Blocks blocks) const { return at(blocks.first + blocks.n) - at(blocks.first); }
  /// Rows of a block of states, and of a block of scalars.
  std::int64_t n_states(Block block) const;
  std::int64_t n_scalars(Block block) const { return size({block, 1}); }
  std::span<float> staged(Blocks blocks) const;
  std::span<float> on_device(Blocks blocks) {
    return {blocks_->address(at(blocks.first)), static_cast<std::size_t>(size(blocks))};
  }

  Transport& transport_;
  NcclTransport* device_;  ///< the same, if it sends device memory
  Plan plan_;
  std::int64_t n_rows_, d_v_;
  std::vector<std::int64_t> offsets_;
  std::shared_ptr<DeviceFabricMemory> memory_;
  DeviceBlocks* blocks_;  ///< of the memory
  std::uint64_t graph_;
  bool leaves_output_ = false;             ///< on the device
  std::size_t n_out_ = 0;                  ///< elements of z
  std::vector<DeviceBlocks::Pair> pairs_;  ///< of the operation that is launched
  NcclTransport::Queued queued_;           ///< when the plan was last queued or recorded
  Traffic recorded_;                       ///< that was counted then
  bool is_queued_ = false;                 ///< since the last settle()
  bool was_launched_ = false;
};

}  // namespace tree_attn
