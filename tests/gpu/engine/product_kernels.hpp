// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products on tensor cores, by warps and by a warpgroup: what product_kernels.cu launches.
#pragma once

#include "gpu/platform/launch.hpp"
#include "reference/tensor/dtype.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// c + a b, with a [64, 64], b [64, n_columns] and c [64, n_columns], in four steps of 16.
struct ProductCase {
  DType dtype = DType::BF16;  ///< or F16, of a and b
  int n_columns = 16;         ///< 16, 32 or 64; where a is in registers 64 or 128
  bool is_transposed = false;
  std::vector<std::uint16_t> a;  ///< [64][64], transposed column after column
  std::vector<std::uint16_t>
      b;  ///< [n_columns][64], column after column; where a is in registers 64 rows of 64 columns each
  std::vector<float> c;
  bool is_in_registers = false;  ///< a
};
/// By mma_16x8x16(), four warps with 16 rows each; and by wgmma_64xNx16(), or wgmma_of_registers_64xNx16(), for which the
/// device has compute capability 9.0.
std::vector<float> products_of_warps(const ProductCase& of);
std::vector<float> products_of_warpgroup(const ProductCase& of);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
