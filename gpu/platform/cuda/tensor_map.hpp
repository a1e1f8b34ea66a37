// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CUDA side of a tensor map: the driver's descriptor of an array.
#pragma once

#include "gpu/types/tensor_array.hpp"

#include <cuda.h>

namespace tree_attn::cuda {

/// Describes an array to the copy engine, see encode_tensor_map(). Kernels take it as `const __grid_constant__ TensorMap`
/// and pass it on by reference: the copy engine reads the parameter itself, so a copy of it on the stack is an error.
using TensorMap = CUtensorMap;

}  // namespace tree_attn::cuda
