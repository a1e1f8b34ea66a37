// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A plan on host memory, with messages over any transport.
#pragma once

#include "distributed/transport/plan.hpp"
#include "distributed/transport/transport.hpp"

#include <span>
#include <vector>

namespace tree_attn {

/// The blocks of one plan in the buffer of a transport, which keeps that memory from step to step.
class HostFabric : public Fabric {
 public:
  /// @param lift of the decode, for Weigh and Divide: 0 or kLift
  HostFabric(Transport& transport, const Plan& plan, std::int64_t n_rows, std::int64_t d_v, int lift = 0);

  /// Elements of adjacent blocks.
  std::span<float> elements(Blocks blocks) const;

  void run(const Exchange& exchange) override;
  void run(const Combine& combine) override;
  void run(const Copy& copy) override;
  void run(const Fold& fold) override;
  void run(const Finish& finish) override;
  void run(const Weigh& weigh) override;
  void run(const Divide& divide) override;

 private:
  float* at(Block block) const { return elements({block, 1}).data(); }

  Transport& transport_;
  std::int64_t n_rows_, d_v_;
  int lift_;
  std::vector<std::int64_t> offsets_;
  std::span<float> memory_;
};

}  // namespace tree_attn
