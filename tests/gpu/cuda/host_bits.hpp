// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Functions of reference/ that hosts and devices share, by a device, each in a kernel that does nothing else: what
/// host_bits.cu launches.
#pragma once

#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/reference/tensor/dtype.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// finish_lse() of the states (e, D), for n floats D whose bits are first, first + stride, first + 2 stride, ...
std::vector<float> lse_on_device(float e, std::uint32_t first, std::uint32_t stride, std::uint32_t n);

/// finish_value() of n_j of the states (0, D). @param n, sum as many n_j and D
std::vector<float> values_on_device(const std::vector<float>& n, const std::vector<float>& sum);

/// widen() of every pattern of 16 bits. @param dtype F16 or BF16
std::vector<float> widened_on_device(DType dtype);

/// The bits that narrow() gives. @param dtype F16 or BF16
std::vector<std::uint16_t> narrowed_on_device(DType dtype, const std::vector<float>& elements);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
