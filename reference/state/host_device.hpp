// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Macros for functions compiled for CPU and GPU, and for loops that must be unrolled.
///
/// nvcc compiles a TREE_ATTN_HOST_DEVICE function for host and device. For other compilers the macro is empty.
#pragma once

#if defined(__CUDACC__)
#define TREE_ATTN_HOST_DEVICE __host__ __device__
#define TREE_ATTN_UNROLL _Pragma("unroll")  // an array indexed by such a loop stays in registers
#define TREE_ATTN_LOOP _Pragma("unroll 1")  // short code, for loops of few rounds
#else
#ifndef TREE_ATTN_HOST_DEVICE
#define TREE_ATTN_HOST_DEVICE
#endif
#define TREE_ATTN_UNROLL
#define TREE_ATTN_LOOP
#endif
