// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Input of a timed decode, and its expected output: numbers that host and device can both make.
#pragma once

#include "gpu/ladder/ladder.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tree_attn::cuda {

constexpr std::int64_t kDim = 128;

/// Shape of a decode: the last queries of every sequence, with a cache that has room for the longest of them.
struct Shape {
  std::string name;
  DType dtype;
  std::int64_t heads, kv_heads;
  std::vector<std::int64_t> lengths;              ///< keys of each sequence
  std::int64_t n_queries = 1;                     ///< of a sequence; each sees the keys up to its own
  std::int64_t key_dim = kDim, value_dim = kDim;  ///< where they differ, values are the first components of the keys
  double softcap = 0;                             ///< of scores, natural; 0: none

  bool values_in_keys() const { return key_dim != value_dim; }
  std::int64_t n_rows() const { return batch() * heads * n_queries; }
  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t capacity() const { return *std::max_element(lengths.begin(), lengths.end()); }
  std::int64_t n_keys() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }
  /// Elements of the keys, with the room behind shorter sequences.
  std::int64_t n_elements() const { return batch() * kv_heads * capacity() * key_dim; }
  std::int64_t allocated_bytes() const { return n_arrays() * n_elements() * static_cast<std::int64_t>(bytes_of(dtype)); }
  /// Keys and values: what must be read.
  std::int64_t n_bytes() const {
    return n_arrays() * kv_heads * n_keys() * key_dim * static_cast<std::int64_t>(bytes_of(dtype));
  }

 private:
  std::int64_t n_arrays() const { return values_in_keys() ? 1 : 2; }
};

/// Eight numbers in a word: bytes, each for a multiple of 1/64 in [-1, 1), or of 1/8 for F8_E4M3, which the stored type
/// holds exactly.
__host__ __device__ inline std::uint64_t eight_elements(std::uint64_t seed, std::int64_t eighth) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(eighth);
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}
__host__ __device__ inline float number_of(std::uint64_t eight, int i, DType dtype) {
  const unsigned mask = dtype == DType::F8_E4M3 ? 0x78 : 0x7F;
  return static_cast<float>(static_cast<int>(eight >> 8 * i & mask) - 64) / 64.0f;
}

constexpr std::uint64_t kSeedQ = 1, kSeedK = 2, kSeedV = 3;

/// Base-two scores have a standard deviation of about 4: some keys matter, and no key alone.
inline float score_scale(std::int64_t dim) { return static_cast<float>(kLog2E * 8 / std::sqrt(static_cast<double>(dim))); }

/// @param[out] to [8 n_eighths]
template <class T>
__global__ void fill_elements(T* to, std::int64_t n_eighths, std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < n_eighths; at += step) {
    const std::uint64_t eight = eight_elements(seed, at);
    for (int i = 0; i < 8; ++i) {
      if constexpr (std::is_same_v<T, float>)
        to[8 * at + i] = number_of(eight, i, DType::F32);
      else
        to[8 * at + i] = narrow<T>(number_of(eight, i, DTypeTraits<T>::kDType));
    }
  }
}

/// z and the natural lse of one row, in double.
struct Row {
  std::vector<double> z;
  double lse = 0;
};

/// @param row_index (sequence times heads + query head) times queries + query
inline Row reference_row(const Shape& shape, std::int64_t row_index) {
  const auto dim = static_cast<std::size_t>(shape.key_dim);
  const auto elements = [&](std::uint64_t seed, std::int64_t row, std::vector<double>& to) {
    const DType dtype = seed == kSeedQ ? multiplied(shape.dtype) : shape.dtype;
    for (std::size_t j = 0; j < dim; j += 8) {
      const std::uint64_t eight =
          eight_elements(seed, (row * static_cast<std::int64_t>(dim) + static_cast<std::int64_t>(j)) / 8);
      for (int i = 0; i < 8; ++i) to[j + static_cast<std::size_t>(i)] = number_of(eight, i, dtype);
    }
  };
  const std::int64_t query = row_index % shape.n_queries, row_of_head = row_index / shape.n_queries,
                     entry = row_of_head / shape.heads, head = row_of_head % shape.heads / (shape.heads / shape.kv_heads);
  const std::int64_t first = (entry * shape.kv_heads + head) * shape.capacity(),
                     n_keys = shape.lengths[static_cast<std::size_t>(entry)] - (shape.n_queries - 1 - query);
  std::vector<double> q(dim), row(dim);
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  elements(kSeedQ, row_index, q);
  std::vector<double> score(static_cast<std::size_t>(n_keys));
  for (std::int64_t a = 0; a < n_keys; ++a) {
    elements(kSeedK, first + a, row);
    double dot = 0;
    for (std::size_t j = 0; j < dim; ++j) dot += q[j] * row[j];
    double& of_key = score[static_cast<std::size_t>(a)];
    of_key = static_cast<double>(score_scale(shape.key_dim)) * dot;
    if (shape.softcap > 0) of_key = kLog2E * shape.softcap * std::tanh(of_key / (kLog2E * shape.softcap));
    largest = std::max(largest, of_key);
  }
  Row result{std::vector<double>(static_cast<std::size_t>(shape.value_dim))};
  for (std::int64_t a = 0; a < n_keys; ++a) {
    elements(shape.values_in_keys() ? kSeedK : kSeedV, first + a, row);
    const double weight = std::exp2(score[static_cast<std::size_t>(a)] - largest);
    sum += weight;
    for (std::size_t j = 0; j < result.z.size(); ++j) result.z[j] += weight * row[j];
  }
  for (double& z : result.z) z /= sum;
  result.lse = kLn2 * (largest + std::log2(sum));
  return result;
}

/// Keys and values in one piece of memory, in as many copies as take turns.
class Input {
 public:
  Input(const Shape& shape, int n_copies, Stream stream)
      : n_sets(n_copies),
        q_(shape.n_rows() * shape.key_dim * 4),
        cache_(n_copies * shape.allocated_bytes()),
        lengths_(shape.batch()) {
    const std::int64_t n = shape.n_elements();
    lengths_.upload(shape.lengths);
    with_type(shape.dtype, [&](auto type) {
      using T = decltype(type);
      const auto fill = [&]<class Stored>(Stored* to, std::int64_t n_elements, std::uint64_t seed) {
        launch(fill_elements<Stored>, {.grid = {1024}, .block = {256}}, stream, to, n_elements / 8, seed);
      };
      auto* const q = reinterpret_cast<Multiplied<T>*>(q_.data());
      T* const cache = reinterpret_cast<T*>(cache_.data());
      fill(q, shape.n_rows() * shape.key_dim, kSeedQ);
      for (int i = 0; i < n_sets; ++i) {
        T* const k = cache + shape.allocated_bytes() / static_cast<std::int64_t>(sizeof(T)) * i;
        T* const v = shape.values_in_keys() ? k : k + n;
        fill(k, n, kSeedK);
        if (v != k) fill(v, n, kSeedV);
        const std::int64_t dim = shape.key_dim, of_head = shape.capacity() * dim, of_all = shape.kv_heads * of_head;
        params.push_back({.q = {q, {shape.heads * shape.n_queries * dim, shape.n_queries * dim, dim}},
                          .k = {k, {of_all, of_head, dim}},
                          .v = {v, {of_all, of_head, dim}},
                          .lengths = lengths_.data(),
                          .batch = shape.batch(),
                          .kv_heads = shape.kv_heads,
                          .group = shape.heads / shape.kv_heads * shape.n_queries,
                          .n_queries = shape.n_queries,
                          .rule = {.causal = shape.n_queries > 1},
                          .d_h = static_cast<int>(dim),
                          .d_v = static_cast<int>(shape.value_dim),
                          .begin = 0,
                          .end = shape.capacity(),
                          .readable_end = shape.capacity(),
                          .score_scale = score_scale(dim),
                          .softcap = SoftCap(shape.softcap)});
      }
    });
    check(cudaDeviceSynchronize(), "filling the input");
  }
  const unsigned char* cache(int i) const { return cache_.data() + i * (cache_.size() / n_sets); }

  int n_sets;
  std::vector<DecodeParams> params;  ///< one a copy; all say the same

 private:
  DeviceBuffer<unsigned char> q_, cache_;
  DeviceBuffer<std::int64_t> lengths_;
};

/// Describes the fault of an output; "" if there is none.
inline std::string against(const Row& row, std::int64_t row_index, const std::vector<float>& out,
                           const std::vector<float>& lse) {
  // F32 sums of a million terms, and weights of 16 bits on tensor cores: far below, a key that is lost: far above.
  constexpr double kTolerance = 2e-3;
  const auto finite = [](float x) { return std::isfinite(x); };
  if (!std::all_of(out.begin(), out.end(), finite) || !std::all_of(lse.begin(), lse.end(), finite))
    return "WRONG: not finite";
  double worst = std::abs(static_cast<double>(lse[static_cast<std::size_t>(row_index)]) - row.lse);
  const float* const z = out.data() + row_index * static_cast<std::int64_t>(row.z.size());
  for (std::size_t j = 0; j < row.z.size(); ++j) worst = std::max(worst, std::abs(static_cast<double>(z[j]) - row.z[j]));
  return worst <= kTolerance ? "" : "WRONG: off by " + std::to_string(worst);
}

}  // namespace tree_attn::cuda
