// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One decode without a cache of its own, and the output of a step.
#include "reference/decode/decode.hpp"

#include "reference/decode/backend.hpp"
#include "reference/decode/leaf_kernel.hpp"

#include <iterator>

namespace tree_attn {

Forest<float> decode_shard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                           const std::function<void()>& progress) {
  const auto cache = cpu_backend().make_cache(shape_of(q, shard.k, shard.v), {shard.begin, shard.end()});
  cache->borrow(shard, rows_in_use(lengths, cache->leaves()));
  return std::move(cache->open(scale)->decode({q, lengths}, progress).host());
}

DecodeOutput finish_rows(std::span<const float> states, std::int64_t n_rows, std::int64_t d_v) {
  require(n_rows >= 0 && d_v >= 0 && std::ssize(states) == n_rows * state_size(d_v), "finish_rows: ", states.size(),
          " elements for ", n_rows, " states of 2 + ", d_v);
  DecodeOutput output{std::vector<float>(static_cast<std::size_t>(n_rows * d_v)),
                      std::vector<float>(static_cast<std::size_t>(n_rows))};
  leaf_kernel().finish_states(states.data(), n_rows, d_v, output.out.data(), output.lse.data());
  return output;
}

}  // namespace tree_attn
