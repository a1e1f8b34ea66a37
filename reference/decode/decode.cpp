// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One decode without a cache of its own, and the output of a step.
#include "reference/decode/decode.hpp"

#include "reference/decode/backend.hpp"
#include "reference/decode/leaf_kernel.hpp"

#include <algorithm>
#include <cmath>

namespace tree_attn {

Forest<float> decode_shard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                           const std::function<void()>& progress, int lift) {
  const auto cache = cpu_backend().make_cache(shape_of(q, shard.k, shard.v), {shard.begin, shard.end()});
  cache->borrow(shard, rows_in_use(lengths, cache->leaves()));
  return std::move(cache->open(scale)->decode(q, lengths, lift, progress).host());
}

DecodeOutput finish_rows(std::span<const float> states, std::int64_t n_rows, std::int64_t d_v) {
  DecodeOutput output{std::vector<float>(static_cast<std::size_t>(n_rows * d_v)),
                      std::vector<float>(static_cast<std::size_t>(n_rows))};
  leaf_kernel().finish_states(states.data(), n_rows, d_v, output.out.data(), output.lse.data());
  return output;
}

bool needs_lift(const DecodeOutput& output) {
  const std::size_t n_rows = output.lse.size(), d_v = n_rows == 0 ? 0 : output.out.size() / n_rows;
  for (std::size_t r = 0; r < n_rows; ++r) {
    const auto row = output.out.begin() + static_cast<std::ptrdiff_t>(r * d_v);
    const bool finite = std::all_of(row, row + static_cast<std::ptrdiff_t>(d_v), [](float z) { return std::isfinite(z); });
    if (std::isfinite(output.lse[r]) && !finite) return true;
  }
  return false;
}

void take_lifted(DecodeOutput& output, const DecodeOutput& lifted) {
  for (std::size_t i = 0; i < output.out.size(); ++i) {
    if (!std::isfinite(output.out[i]) && std::isfinite(lifted.out[i])) output.out[i] = lifted.out[i];
  }
}

}  // namespace tree_attn
