// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Platform that a file is compiled for: its namespace, tree_attn::cuda or tree_attn::emulated.
///
/// nvcc compiles for CUDA and g++ for the emulator. Host code that g++ compiles to be linked with the kernels of nvcc
/// defines TREE_ATTN_FOR_CUDA; it may include gpu/platform/launch.hpp and gpu/engine/launch.hpp, but no kernel.
#pragma once

#if defined(__CUDACC__) || defined(TREE_ATTN_FOR_CUDA)
#define TREE_ATTN_PLATFORM cuda
#else
#define TREE_ATTN_PLATFORM emulated
#endif
