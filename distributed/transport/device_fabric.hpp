// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans on the memory of a device: kernels combine blocks, messages are staged through host memory.
#pragma once

#include "distributed/transport/plan.hpp"
#include "distributed/transport/transport.hpp"
#include "gpu/backend/blocks.hpp"

#include <memory>
#include <span>
#include <vector>

namespace tree_attn {

/// Allocates blocks on a device: emulated::make_blocks() or cuda::make_blocks().
using MakeBlocks = std::unique_ptr<DeviceBlocks> (*)(std::int64_t n_elements, std::int64_t d_v);

/// The blocks of one plan on a device, taken once. Only messages and the output pass through host memory.
class DeviceFabric : public Fabric {
 public:
  /// @param transport outlives the fabric
  DeviceFabric(Transport& transport, const Plan& plan, std::int64_t n_rows, std::int64_t d_v, MakeBlocks make_blocks);

  /// Copies adjacent blocks from host memory, and to it.
  void upload(Blocks blocks, std::span<const float> elements);
  std::vector<float> download(Blocks blocks) const;

  void begin(const Plan& plan, int lift) override;
  void run(const Exchange& exchange) override;
  void run(const Combine& combine) override;
  void run(const Copy& copy) override;
  void run(const Fold& fold) override;
  void run(const Finish& finish) override;
  void run(const Weigh& weigh) override;
  void run(const Divide& divide) override;

 private:
  std::int64_t at(Block block) const { return offsets_[static_cast<std::size_t>(block)]; }
  std::int64_t size(Blocks blocks) const { return at(blocks.first + blocks.n) - at(blocks.first); }
  /// Rows of a block of states, and of a block of scalars.
  std::int64_t n_states(Block block) const;
  std::int64_t n_scalars(Block block) const { return size({block, 1}); }
  std::span<float> staged(Blocks blocks) const;

  Transport& transport_;
  std::int64_t d_v_;
  int lift_ = 0;
  std::vector<std::int64_t> offsets_;
  std::unique_ptr<DeviceBlocks> blocks_;
  std::unique_ptr<float[]> staging_;
  std::vector<DeviceBlocks::Pair> pairs_;  ///< of the operation that is launched
};

}  // namespace tree_attn
