// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads memory in order, once, with nothing else to do: the speed that the others are compared with.
///
/// The hardware alone fetches ahead. A loop that requests lines as well may be faster, above all where they lie in a cache.
#include "tests/bench/baselines.hpp"

namespace tree_attn::bench {

std::uint64_t read_bytes(const std::byte* data, std::size_t n_bytes) {
  // Eight independent sums: no addition waits for the one before it, so that only memory limits the rate.
  using Words [[gnu::vector_size(64), gnu::may_alias]] = std::uint64_t;
  constexpr std::size_t kSums = 8;
  const Words* words = reinterpret_cast<const Words*>(data);
  Words sums[kSums]{};
  for (std::size_t i = 0; i < n_bytes / sizeof(Words); i += kSums)
    for (std::size_t j = 0; j < kSums; ++j) sums[j] += words[i + j];

  for (std::size_t j = 1; j < kSums; ++j) sums[0] += sums[j];
  std::uint64_t sum = 0;
  for (std::size_t lane = 0; lane < sizeof(Words) / sizeof sum; ++lane) sum += sums[0][lane];
  return sum;
}

}  // namespace tree_attn::bench
