// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans on host memory, with messages over any transport.
#pragma once

#include "tree_attn/distributed/plan/plan.hpp"
#include "tree_attn/distributed/transport/transport.hpp"
#include "tree_attn/reference/cpu/leaf_kernel.hpp"
#include "tree_attn/reference/decode/decode.hpp"

#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace tree_attn {

/// Memory for the blocks of plans that are carried out one after the other. It is left to messages that are in flight at
/// its end.
class HostMemory {
 public:
  /// @param transport outlives it
  HostMemory(Transport& transport, std::int64_t n)
      : transport_(transport), n_(n), memory_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n))) {}
  ~HostMemory() {
    if (transport_.has_messages_in_flight()) static_cast<void>(memory_.release());
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  float* get() const { return memory_.get(); }
  std::int64_t size() const { return n_; }

 private:
  Transport& transport_;
  std::int64_t n_;
  std::unique_ptr<float[]> memory_;
};

/// The blocks of one plan in host memory, allocated once. A step allocates nothing: it copies the states of this rank into
/// their blocks, sends from blocks and receives into blocks.
class HostFabric {
 public:
  /// @param transport outlives the fabric @param memory with room for all blocks of the plan; null: its own
  HostFabric(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v,
             std::shared_ptr<HostMemory> memory = nullptr);
  HostFabric(const HostFabric&) = delete;
  HostFabric& operator=(const HostFabric&) = delete;

  /// Carries out the plan. @param states of this rank's subtrees, [subtrees][n_rows][2 + d_v]
  /// @param sinks a learned logit of every row, for add_sink() at the root; empty: none
  /// @returns the output, valid until the next step @throws std::logic_error if the plan is for another range of positions
  OutputView step(std::span<const float> states, std::span<const float> sinks = {});
  /// The same in parts: begins the plan, and carries it out as far as it goes without waiting. @param states as step()
  /// @param sinks as step(); they must not change before finish()
  void start(std::span<const float> states, std::span<const float> sinks = {});
  /// Goes on, by default without waiting. @returns whether all operations are done; false only if it does not wait
  bool advance(bool waits = false);
  /// Carries out the rest. @returns as step()
  OutputView finish();
  /// Elements of adjacent blocks, before or after a step.
  std::span<float> elements(Blocks blocks) const;

 private:
  void begin(std::span<const float> states, std::span<const float> sinks);
  /// Posts the messages; advance() waits for them.
  void run(const Exchange& exchange);
  void run(const Combine& combine);
  void run(const Copy& copy);
  void run(const Fold& fold);
  void run(const Finish& finish);
  void run(const Weigh& weigh);
  void run(const Divide& divide);
  /// @throws std::logic_error: plans for host memory hold none
  void run(const AllReduce&) {
    throw std::logic_error("HostFabric: no transport of host memory has an AllReduce of its own");
  }
  void run(const AllGather&) {
    throw std::logic_error("HostFabric: no transport of host memory has an AllGather of its own");
  }
  float* at(Block block) const { return elements({block, 1}).data(); }
  /// Rows of a block of states, and of a block of scalars.
  std::int64_t n_states(Block block) const;
  std::int64_t n_scalars(Block block) const { return std::ssize(elements({block, 1})); }
  /// The learned sinks of the rows that a block has.
  const float* sinks_of(Block block) const {
    return sinks_.data() + plan_.widths[static_cast<std::size_t>(block)].rows.begin(n_rows_);
  }

  const LeafKernel& kernel_ = leaf_kernel();  ///< merges and divides in the widest registers of this processor
  Transport& transport_;
  Plan plan_;
  std::int64_t n_rows_, d_v_;
  bool divides_;            ///< whether Divide makes the output: Finish is then of the shard of this rank
  std::size_t next_ = 0;    ///< operation of the step that comes next
  bool is_posted_ = false;  ///< whether its messages have been posted
  std::vector<std::int64_t> offsets_;
  std::shared_ptr<HostMemory> memory_;
  std::span<const float> sinks_;  ///< [n_rows] of the step; empty: none
};

}  // namespace tree_attn
