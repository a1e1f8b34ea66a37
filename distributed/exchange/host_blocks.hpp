// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The blocks of a plan in host memory.
#pragma once

#include "gpu/backend/blocks.hpp"
#include "reference/cpu/leaf_kernel.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace tree_attn {

/// Writes the states of one head: set_from_lse() of its l rows.
/// @param[out] states [l][2 + d_v]
/// @param[in] o [b, n_h, l, d_v]; rows whose lse is -inf are not read
/// @param[in] lse [b, n_h, l, 1]
/// @param i, h batch entry and head
void set_head(float* states, const TensorView& o, const TensorView& lse, std::int64_t i, std::int64_t h, LseForm form);

/// Blocks in host memory, allocated once, not initialized.
class HostBlocks final : public BlockMemory {
 public:
  HostBlocks(std::int64_t n_elements, std::int64_t d_v)
      : memory_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n_elements))), d_v_(d_v) {}
  float* address(std::int64_t at) override { return memory_.get() + at; }
  void take(std::int64_t at, const float* from, std::int64_t n) override;
  void convert(const TensorView& from, const TensorView& to) override;
  void set_from_lse(std::int64_t states, const TensorView& o, const TensorView& lse, LseForm form) override;
  void merge(std::span<const Pair> pairs, std::int64_t n_rows) override;
  void combine(Operator op, std::span<const Pair> pairs, std::int64_t n) override;
  void set_empty(std::int64_t state, std::int64_t n_rows) override;
  void finish(Pair states, std::int64_t z, std::int64_t lse, std::int64_t n_rows, const float* sinks) override;
  void weigh(std::int64_t z, std::int64_t lse, std::int64_t m, std::int64_t n_rows) override;
  void divide(std::int64_t n, std::int64_t D, std::int64_t m, std::int64_t n_rows, const float* sinks) override;

 private:
  const LeafKernel& kernel_ = leaf_kernel();  ///< merges and divides in the widest registers of this processor
  std::unique_ptr<float[]> memory_;
  std::int64_t d_v_;
};

}  // namespace tree_attn
