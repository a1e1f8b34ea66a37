// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The exchange alone: ranks that have (o, lse) of their own keys, from any kernel, end with attention over all of
/// them (section 5.3).
#pragma once

#include "distributed/exchange/plan_options.hpp"
#include "distributed/exchange/runner.hpp"
#include "reference/state/lse.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

namespace tree_attn {

/// Merges the outputs of p ranks, any number of times for one shape.
///
/// The ranks count as neighbours in the order of the topology, one position of the canonical tree each. So the bits are the
/// same for both parts, every radix and any nodes of the same p ranks, but depend on p, which the decoders' do not: where
/// the sequence was cut decides what a kernel has rounded.
///
/// `kAll` exchanges as `two-level` does. `kHeads` sends half of the bytes where `two-level` cuts its messages by rows: each
/// rank sends to the others only their heads, inside its node first, and what the node has merged to the ranks with its
/// local rank in other nodes. In nodes of different sizes, or of a number of ranks that is no power of two, all ranks
/// exchange in one round.
class Combiner {
 public:
  /// Writes the plan and takes the memory for it. Collective: all ranks pass the same arguments.
  /// @param transport outlives the combiner
  /// @param shape b, n_h, l and d_v
  /// @param options of the plan of `kAll`
  /// @param make_blocks of the device that combine() takes tensors of, null for none; a transport of device memory has its
  ///   own
  /// @throws InputError on every rank if two ranks differ; std::invalid_argument for a negative axis, and for `kHeads`
  ///   unless n_h is a multiple of p; TransportError
  Combiner(Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part = OutputPart::kAll,
           PlanOptions options = {}, MakeBlocks make_blocks = nullptr);

  /// Merges what all ranks pass. Collective.
  /// @param[in] o [b, n_h, l, d_v], F32, F16 or BF16; rows whose lse is -inf are not read
  /// @param[in] lse [b, n_h, l, 1] in the base of `form`; both in host memory, or both on the device, where kernels make the
  ///   states and merge them, and the output stays. The bits are the same, but for exp2 of a GPU. What was queued on the
  ///   default stream before is seen. Over a transport in host memory the states that are sent and received are copied.
  /// @param stream as Step, for o on the device
  /// @returns out and natural lse in F32, for the heads of this rank, valid until the next call; store() rounds to other
  ///   types. Rows that no rank has keys for are 0 and -inf.
  /// @throws std::invalid_argument for other axes, elements without data, or memory that the transport or the device of this
  ///   combiner does not reach; TransportError
  OutputView combine(const TensorView& o, const TensorView& lse, LseForm form = LseForm::kNatural,
                     std::optional<void*> stream = {});

  /// Throws std::invalid_argument for what the constructor and combine() refuse of the arguments of one rank.
  static void check(Transport& transport, const std::array<std::int64_t, 4>& shape, OutputPart part, bool has_device,
                    const TensorView& o, const TensorView& lse);

  /// Heads of the output.
  std::int64_t n_heads() const { return part_ == OutputPart::kAll ? shape_[1] : shape_[1] / transport_.size(); }
  /// Cost of one call for this rank.
  RankCost cost() const;

 private:
  /// Blocks and runner of one memory, host or device, from its first call on.
  struct Side {
    std::unique_ptr<BlockMemory> memory;  ///< states, z and lse
    std::optional<Runner> runner;
    DeviceStream* stream = nullptr;  ///< of the device
  };
  Side& side(bool on_device);

  Transport& transport_;
  std::array<std::int64_t, 4> shape_;
  OutputPart part_;
  std::int64_t n_rows_;
  Plan plan_;
  MakeBlocks make_blocks_;
  std::array<Side, 2> sides_;  ///< the host and the device
};

}  // namespace tree_attn
