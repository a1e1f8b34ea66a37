// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of a tensor map: the description itself.
#pragma once

#include "tree_attn/gpu/platform/device_error.hpp"
#include "tree_attn/gpu/platform/emulator/settings.hpp"
#include "tree_attn/gpu/platform/tensor_array.hpp"

namespace tree_attn::emulated {

/// Describes an array to bulk_copy_tensor(), see make_tensor_map(). Kernels take it as `const __grid_constant__ TensorMap`.
struct TensorMap {
  TensorArray array;
};

/// Describes an array, and the box that bulk_copy_tensor() fetches of it.
/// @throws DeviceError for an array that no map can describe, see refusal(), or a device without tensor maps
inline TensorMap make_tensor_map(const TensorArray& array) {
  if (const std::string why = refusal(array); !why.empty()) throw DeviceError("make_tensor_map: " + why);
  if (settings().major < 9)
    throw DeviceError("make_tensor_map: compute capability " + std::to_string(settings().major) + " has no tensor maps");
  return {array};
}

}  // namespace tree_attn::emulated
