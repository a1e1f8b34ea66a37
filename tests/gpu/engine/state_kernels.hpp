// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The state on the device, for the tests of its laws: what state_kernels.cu launches.
#pragma once

#include "tree_attn/gpu/engine/params.hpp"
#include "tree_attn/gpu/platform/launch.hpp"

#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Components of the values in these tests: 8 lanes of 4.
inline constexpr int kStateDim = 32;

/// merge(left, right) of n pairs of states, [n][2 + kStateDim] each, by lanes that hold four components.
std::vector<float> merge_on_device(const std::vector<float>& left, const std::vector<float>& right);

/// The states of n leaves, by add_eight_keys(): scores [n][64], values [n][64][kStateDim]; returns [n][2 + kStateDim].
std::vector<float> leaves_on_device(const std::vector<float>& scores, const std::vector<float>& values);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
