// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Baselines of the decode: a read of its bytes, its arithmetic alone, a plain program and Eigen's products (section
/// 3).
///
/// All of them are compiled for the processor of this machine, whatever the rest of the build is compiled for. They live in
/// a shared library that exports the functions below and nothing else: templates compiled for two processors never meet.
#pragma once

#include "reference/tensor/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

#pragma GCC visibility push(default)

namespace tree_attn::bench {

/// One decode step of batch 1; all arrays are dense.
struct Step {
  DType dtype = DType::F32;      ///< type of k and v
  std::int64_t n_keys = 0;       ///< N
  std::int64_t heads = 0;        ///< n_h, a multiple of n_kv
  std::int64_t kv_heads = 0;     ///< n_kv
  std::int64_t head_dim = 0;     ///< d_h = d_v: 64 or 128
  std::int64_t n_queries = 1;    ///< l; several have a causal edge, and only the decode computes them
  float scale = 1;               ///< multiplies q.k
  const float* q = nullptr;      ///< [n_h, l, d_h]
  const std::byte* k = nullptr;  ///< [n_kv, N, d_h]
  const std::byte* v = nullptr;  ///< [n_kv, N, d_h]
};

/// Sum of all 8-byte words of `n_bytes` bytes.
/// @pre `data` is aligned to 64 bytes, `n_bytes` a multiple of 512
std::uint64_t read_bytes(const std::byte* data, std::size_t n_bytes);

/// Elements that are multiplied, added, widened to F32 and exponentiated.
struct Operations {
  double multiplies, adds, conversions, exponentials;
};

/// Counts the operations of a step for each key and all queries that share it: in any order, no decode needs fewer where
/// nothing is fused.
Operations operations(const Step& step);

/// Runs as many independent multiplies and adds, half of each, as there are operations: registers of `lanes` elements.
/// @param fused each multiply and the add after it are one instruction, what the decode does not do
float arithmetic(const Operations& all, int lanes, bool fused);

/// z = sum_a softmax(scale q.k_a) v_a, written as two loops over the keys of one head after the other.
/// @param step arrays in F32, F16 or BF16
/// @param begin first key/value head to compute
/// @param end one past the last
/// @param[out] z [n_h, d_h]
void plain_decode(const Step& step, std::int64_t begin, std::int64_t end, float* z);

/// Computes z by two products of Eigen's, K q and V^T p.
/// @param step arrays in F32
/// @param begin first key/value head to compute
/// @param end one past the last
/// @param[out] z [n_h, d_h]
void eigen_decode(const Step& step, std::int64_t begin, std::int64_t end, float* z);

/// As in "3.4.0".
std::string eigen_version();

}  // namespace tree_attn::bench

#pragma GCC visibility pop
