// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A random mask and a random soft cap for a step of seen_cases.hpp.
#pragma once

#include "tree_attn/tests/support/seen_cases.hpp"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::test {

/// The memory of a mask, and the cap.
struct MaskOfCase {
  std::vector<std::byte> bytes;
  Mask mask{};
  double softcap = 0;

  MaskOfCase(std::mt19937& random, const SeenCase& c) {
    const Axes& axes = c.axes;
    if (random() % 2 == 0) softcap = std::uniform_real_distribution<double>(0.1, 20)(random);
    if (random() % 4 == 0) return;
    const std::array<std::int64_t, 4> shape{random() % 2 == 0 ? 1 : axes.batch, random() % 2 == 0 ? 1 : axes.heads,
                                            axes.n_queries, axes.n_keys};
    const bool is_boolean = random() % 2 == 0;
    const auto n = static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
    // One more byte in front: elements may be at any alignment. In half of the rows few keys are seen, in some none.
    bytes.resize(1 + n * (is_boolean ? 1 : sizeof(float)) + sizeof(float));
    unsigned one_in = 2;
    for (std::size_t i = 0; i < n; ++i) {
      if (shape[3] > 0 && i % static_cast<std::size_t>(shape[3]) == 0) one_in = random() % 2 == 0 ? 2 : 1000;
      const bool is_seen = random() % one_in == 0;
      const float element =
          is_seen ? std::normal_distribution<float>(0, 3)(random) : -std::numeric_limits<float>::infinity();
      if (is_boolean)
        bytes[1 + i] = static_cast<std::byte>(is_seen);
      else
        std::memcpy(bytes.data() + 1 + i * sizeof element, &element, sizeof element);
    }
    mask = Mask::dense(bytes.data() + 1, is_boolean, shape);
  }
  MaskOfCase(const MaskOfCase&) = delete;
  MaskOfCase& operator=(const MaskOfCase&) = delete;

  std::string text() const {
    return (mask.data == nullptr ? ""
            : mask.is_boolean    ? ", a boolean mask"
                                 : ", a mask that is added") +
           (softcap > 0 ? ", capped at " + std::to_string(softcap) : "");
  }
};

}  // namespace tree_attn::test
