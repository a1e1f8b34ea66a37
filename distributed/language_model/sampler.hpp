// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The next character, from the scores of a model: the likeliest, or a random one at a temperature.
#pragma once

#include "reference/state/require.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// Options of the choice of the next character.
struct Sampling {
  double temperature = 0;  ///< 0: the character with the largest score
  std::uint64_t seed = 1;  ///< equal seeds give equal characters from equal scores
};

/// The `step`-th uniform random number in [0, 1) of a seed, by the mixer splitmix64. It depends on nothing else, so all
/// ranks draw the same.
inline double uniform(std::uint64_t seed, std::uint64_t step) {
  std::uint64_t x = seed + (step + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

/// The scores of the characters, which are the first 128 tokens. @param logits [vocab], not empty
inline std::span<const float> scores_of_characters(std::span<const float> logits) {
  return logits.first(std::min<std::size_t>(logits.size(), 128));
}

/// An ASCII character, drawn with probability softmax(logits / temperature); at temperature 0 the one with the largest
/// score, and of several the lowest code. A score of NaN is not chosen while another exists.
/// @param logits [vocab], not empty; see scores_of_characters()
/// @param step number of the draw, from 0; with the seed it determines the random number
/// @throws std::invalid_argument if there are no logits, or the temperature is not at least 0
inline char sample(std::span<const float> logits, const Sampling& sampling, std::uint64_t step) {
  require(!logits.empty(), "sample: no logits");
  require(sampling.temperature >= 0, "sample: a temperature of ", sampling.temperature);
  const std::span<const float> scores = scores_of_characters(logits);
  std::size_t best = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > scores[best] || std::isnan(scores[best])) best = i;
  }
  if (sampling.temperature == 0) return static_cast<char>(best);

  // Invert the cumulative distribution.
  std::vector<double> sum_up_to;
  double sum = 0;
  for (const float score : scores) {
    const double weight = std::exp((static_cast<double>(score) - scores[best]) / sampling.temperature);
    sum_up_to.push_back(sum += std::isnan(weight) ? 0 : weight);
  }
  const double at = uniform(sampling.seed, step) * sum;
  const auto found = std::upper_bound(sum_up_to.begin(), sum_up_to.end(), at);
  return static_cast<char>(found == sum_up_to.end() ? best : static_cast<std::size_t>(found - sum_up_to.begin()));
}

}  // namespace tree_attn
