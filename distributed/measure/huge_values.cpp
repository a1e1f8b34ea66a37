// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decodes sums that overflowed again, over smaller values.
#include "tree_attn/distributed/measure/huge_values.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tree_attn {
namespace {

constexpr int kExponent = 64;

/// 2^-64 v of every value, in F32.
std::vector<float> smaller_values(const TensorView&, const TensorView& v) {
  std::vector<double> row(static_cast<std::size_t>(v.shape[3]));
  std::vector<float> smaller;
  for (std::int64_t i = 0; i < v.shape[0]; ++i) {
    for (std::int64_t h = 0; h < v.shape[1]; ++h) {
      for (std::int64_t a = 0; a < v.shape[2]; ++a) {
        load_row(v, i, h, a, row.data());
        for (const double x : row) smaller.push_back(static_cast<float>(std::ldexp(x, -kExponent)));
      }
    }
  }
  return smaller;
}

/// 2^64 z. Only rounding can take an average of floats beyond the largest one, see finish_value().
float enlarged(float z) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double wide = std::ldexp(static_cast<double>(z), kExponent);
  return static_cast<float>(std::abs(wide) <= kLargest * (1 + 0x1p-20) ? std::clamp(wide, -kLargest, kLargest) : wide);
}

}  // namespace

void decode_huge_values(Transport& transport, const Backend& backend, Workload& workload, const OpenShard& shard,
                        const Algorithm& algorithm, std::span<const KeyRange> ranges, const PlanOptions& options,
                        DecodeOutput& output) {
  const std::unique_ptr<Workload> smaller = with_values(workload, workload.shape().value_dim, smaller_values);
  const int last = workload.steps() - 1;
  const std::vector<std::int64_t> lengths = workload.lengths(last);
  OpenShard again =
      open_shard(backend, smaller->shape(), shard.cache->leaves(), shard.cache->capacity(), shard.session->scale());
  fill(*again.cache, *smaller, lengths);
  const std::unique_ptr<Decoder> decoder = algorithm.open(transport, again, ranges, options);
  const OutputView average = decoder->step(workload.step(last, lengths));
  for (std::size_t i = 0; i < output.out.size(); ++i) {
    if (!std::isfinite(output.out[i]) && std::isfinite(average.out[i])) output.out[i] = enlarged(average.out[i]);
  }
}

}  // namespace tree_attn
