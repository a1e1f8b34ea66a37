// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Forests of states for tests of exchanges, without queries and keys.
#pragma once

#include "tree_attn/reference/state/forest.hpp"
#include "tree_attn/reference/state/state.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

namespace tree_attn::test {

/// The states of the keys [begin, end) of a fixed sequence. Row 1 has a score of NaN, row 2 an infinite value.
/// @param shift added to the scores: another sequence
inline Forest<float> forest_of(std::int64_t begin, std::int64_t end, std::int64_t n_rows, std::int64_t d_v,
                               float shift = 0) {
  Forest<float> forest(n_rows, d_v);
  std::vector<float> v(static_cast<std::size_t>(d_v));
  for (std::int64_t a = begin; a < end; ++a) {
    float* state = forest.slot();
    for (std::int64_t row = 0; row < n_rows; ++row, state += state_size(d_v)) {
      const auto x = static_cast<float>(a + 10 * row);
      for (std::size_t j = 0; j < v.size(); ++j) v[j] = std::cos(static_cast<float>(j + 1) * x);
      if (row == 2 && a == 11) v[0] = HUGE_VALF;
      set_key(state, row == 1 && a == 7 ? NAN : shift + 20 * std::sin(x), v.data(), d_v);
    }
    forest.push({0, a});
  }
  return forest;
}

}  // namespace tree_attn::test
