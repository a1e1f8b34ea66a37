// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A plan on the memory of a device: kernels combine, messages are staged through host memory.
#pragma once

#include "distributed/transport/plan.hpp"
#include "distributed/transport/transport.hpp"
#include "gpu/backend/blocks.hpp"

#include <memory>
#include <span>
#include <vector>

namespace tree_attn {

/// Makes the blocks of a device: emulated::make_blocks() or cuda::make_blocks().
using MakeBlocks = std::unique_ptr<DeviceBlocks> (*)(std::int64_t n_elements, std::int64_t n_rows, std::int64_t d_v);

/// The blocks of one plan on a device. Only messages and the output pass through the host.
class DeviceFabric : public Fabric {
 public:
  /// @param lift of the decode, for Weigh and Divide: 0 or kLift
  DeviceFabric(Transport& transport, const Plan& plan, std::int64_t n_rows, std::int64_t d_v, int lift,
               MakeBlocks make_blocks);

  /// Copies adjacent blocks from and to the host.
  void upload(Blocks blocks, std::span<const float> elements);
  std::vector<float> download(Blocks blocks) const;

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
  std::span<float> staged(Blocks blocks) const;

  Transport& transport_;
  int lift_;
  std::vector<std::int64_t> offsets_;
  std::unique_ptr<DeviceBlocks> blocks_;
  std::span<float> staging_;
};

}  // namespace tree_attn
