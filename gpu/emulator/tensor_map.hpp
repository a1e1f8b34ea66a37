// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of a tensor map: the description itself.
#pragma once

#include "gpu/emulator/settings.hpp"
#include "gpu/types/device_error.hpp"
#include "gpu/types/tensor_array.hpp"

namespace tree_attn::emulated {

/// Describes an array to bulk_copy_tensor(), see encode_tensor_map(). Kernels take it as `const __grid_constant__
/// TensorMap`. Over-aligned like the type of CUDA, so that the compiler places it alike.
struct alignas(kMapAlignment) TensorMap {
  TensorArray array;
};

/// Describes an array, and the box that bulk_copy_tensor() fetches of it.
/// @param[out] map written in place @throws DeviceError see check_tensor_map(), or for a device without tensor maps
inline void encode_tensor_map(const TensorArray& array, TensorMap* map) {
  check_tensor_map(map, array);
  if (settings().major < 9)
    throw DeviceError("encode_tensor_map: compute capability " + std::to_string(settings().major) + " has no tensor maps");
  map->array = array;
}

}  // namespace tree_attn::emulated
