// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Carries out the plan of a rank, in host memory or on a device (section 5.3).
#pragma once

#include "distributed/exchange/plan.hpp"
#include "distributed/transport/nccl_transport.hpp"
#include "distributed/transport/transport.hpp"
#include "gpu/backend/blocks.hpp"
#include "gpu/backend/device_steps.hpp"
#include "reference/decode/decode.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tree_attn {

/// Elements that the plans of a decoder need: the most of any number of queries.
struct RunnerSize {
  RunnerSize() = default;
  RunnerSize(const Plan& plan, std::int64_t n_rows, std::int64_t d_v) { fit(plan, n_rows, d_v); }
  std::int64_t elements = 0;  ///< of all blocks
  std::int64_t outputs = 0;   ///< of z and lse
  bool gathers = false;       ///< whether the library of the transport gathers
  /// Makes it enough for a plan, too, and for one of these widths and fewer rows.
  void fit(const Plan& plan, std::int64_t n_rows, std::int64_t d_v);
};

/// Memory for the blocks of plans that are carried out one after the other. At its end the stream of a device forgets its
/// graphs, and host memory is left to messages in flight.
class RunnerMemory {
 public:
  /// @param transport outlives it
  /// @param make_blocks of the device on whose stream the plans end steps; null: the blocks are in host memory
  /// @param stream as MakeBlocks
  /// @param scales KvScales::v, by which an output that is left on the device is multiplied; empty: none
  RunnerMemory(Transport& transport, const RunnerSize& size, std::int64_t d_v, MakeBlocks make_blocks = nullptr,
               DeviceStream* stream = nullptr, std::span<const float> scales = {});
  ~RunnerMemory();
  RunnerMemory(const RunnerMemory&) = delete;
  RunnerMemory& operator=(const RunnerMemory&) = delete;

 private:
  friend class Runner;
  Transport& transport_;
  std::int64_t n_scales_, scale_size_;      ///< scales, and elements of each of them after the blocks
  std::int64_t scales_at_;                  ///< where the blocks end
  std::unique_ptr<NcclWindow> of_library_;  ///< of the blocks, where the library gathers; else null
  std::unique_ptr<BlockMemory> blocks_;
  DeviceBlocks* on_device_ = nullptr;  ///< the blocks, if they are on a device
  std::unique_ptr<float[]> staging_;   ///< for messages from host memory, of blocks on a device
  std::span<float> output_;            ///< z, then lse: of blocks on a device, on the host
};

/// Carries out one plan any number of times; a step allocates nothing. It copies the states of this rank into their blocks,
/// sends from blocks and receives into blocks.
///
/// On a device a step is the end of a step of its session: it is queued on a stream, with waits for messages if those are
/// sent from host memory. Through host memory passes the output, unless it is left on the device, and messages if the
/// transport sends them from there: the states of the plan, no more, which DeviceTraffic counts as downloaded by their
/// sender and uploaded by their receiver.
class Runner : public StepEnd {
 public:
  /// @param transport outlives the runner @param memory with room for the plan
  Runner(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v, std::shared_ptr<RunnerMemory> memory);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Carries out the plan, on a device by DeviceStream::repeat().
  /// @param states of this rank's subtrees, [subtrees][n_rows][2 + d_v], where the blocks are; on a device at the same
  /// address
  ///   in every step
  /// @param sinks a learned logit of every row, for add_sink() at the root, in host memory; empty: none
  /// @param waits as settle()
  /// @returns the output, valid until the next step @throws std::logic_error if the plan is for another range of positions
  OutputView step(std::span<const float> states, std::span<const float> sinks = {}, bool waits = true);
  /// Elements of adjacent blocks, before or after a step.
  std::span<float> elements(Blocks blocks) const;

  /// @name A step in parts, in host memory
  /// @{
  /// Begins the plan, and carries it out as far as it goes without waiting. @param states as step()
  /// @param sinks as step(); they must not change before finish()
  void start(std::span<const float> states, std::span<const float> sinks = {});
  /// Goes on, by default without waiting. @returns whether all operations are done; false only if it does not wait
  bool advance(bool waits = false);
  /// Carries out the rest. @returns as step()
  OutputView finish();
  /// @}

  /// @name A step on a device
  /// @{
  /// Where the output of the next steps is: in host memory, or on the device. The caller forgets the graph in between.
  void leave_output(bool on_device) { leaves_output_ = on_device; }
  /// Copies the learned sinks of the next steps to the device. Graphs are forgotten where steps begin to have some.
  /// @param sinks as step()
  void put_sinks(std::span<const float> sinks);
  void queue(const float* states) override;
  std::uint64_t graph() const override { return graph_; }
  bool may_be_recorded() const override { return device_ != nullptr ? device_->may_be_recorded() : transport_.size() == 1; }
  /// Waits for the plan after a step that ends with it. @param waits false: for messages alone, of an output that is left on
  /// the device @returns the output, valid until the next step
  OutputView settle(bool waits = true);
  /// @}

 private:
  void begin(const float* states, std::span<const float> sinks);
  /// Posts the messages; advance() waits for them.
  void run(const Exchange& exchange);
  void run(const Combine& combine);
  void run(const Copy& copy);
  void run(const Fold& fold);
  void run(const Finish& finish);
  void run(const Weigh& weigh);
  void run(const Divide& divide);
  void run(const AllReduce& reduce);
  void run(const AllGather& gather);
  /// Copies the output of the plan to host memory, where it stays until the next step, or multiplies it on the device.
  void give_output();
  /// Host copy of z, or lse, of blocks on a device.
  std::span<float> on_host(Blocks of_output) const;
  NcclTransport& library(const char* call) const;
  std::int64_t at(Block block) const { return offsets_[static_cast<std::size_t>(block)]; }
  std::int64_t size(Blocks blocks) const { return at(blocks.first + blocks.n) - at(blocks.first); }
  /// Rows of a block of states.
  std::int64_t n_states(Blocks blocks) const;
  /// Memory of blocks for messages, which take them from there and leave them there.
  std::span<float> for_messages(Blocks blocks) const;
  /// The learned sinks of the rows that a block has; null: none.
  const float* sinks_of(Block block) const;

  Transport& transport_;
  NcclTransport* device_;  ///< the transport, if it sends device memory
  Plan plan_;
  std::int64_t n_rows_, d_v_;
  bool divides_;  ///< whether Divide makes the output: Finish is then of the shard of this rank
  std::vector<std::int64_t> offsets_;
  std::shared_ptr<RunnerMemory> memory_;
  BlockMemory* blocks_;      ///< of the memory
  DeviceBlocks* on_device_;  ///< the same, if they are on a device; else null
  std::uint64_t graph_;
  std::size_t next_ = 0;                  ///< operation of the step that comes next
  bool is_posted_ = false;                ///< whether its messages have been posted
  std::span<const float> sinks_;          ///< [n_rows] of the step; empty: none
  std::vector<BlockMemory::Pair> pairs_;  ///< of the operation that is carried out
  bool leaves_output_ = false;            ///< on the device
  const float* sinks_there_ = nullptr;    ///< on the device, of the next steps; null: none
  NcclTransport::Queued queued_;          ///< when the plan was last queued or recorded
  Traffic recorded_;                      ///< that was counted then
  bool is_queued_ = false;                ///< since the last settle()
};

}  // namespace tree_attn
