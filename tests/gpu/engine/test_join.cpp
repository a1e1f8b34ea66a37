// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Joining the forests of neighbouring ranges: the bits of the CPU's forest, for any number of parts and any room
/// (section 5, Alg. 3).
#include "tree_attn/reference/state/forest.hpp"
#include "tree_attn/tests/gpu/engine/part_kernels.hpp"
#include "tree_attn/tests/support/device_params.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace tree_attn::test {
namespace {

constexpr std::int64_t kDim = device::kStateDim;

/// States of the positions of a range. Some are empty, some far apart, and if asked for some are not finite.
std::vector<float> states_of(KeyRange range, bool all_finite) {
  std::mt19937 random(8500);
  std::vector<float> states = normal_elements(random, range.size() * state_size(kDim));
  for (std::int64_t i = 0; i < range.size(); ++i) {
    float* const state = states.data() + i * state_size(kDim);
    state[kShift] = static_cast<float>(static_cast<int>((i % 5 == 0 ? 80 : 10) * state[kShift]));
    state[kSum] = 0.5f + std::abs(state[kSum]);
    if (i % 7 == 3) set_empty(state, kDim);
    if (!all_finite && i % 31 == 11) state[kValues + i % kDim] = std::numeric_limits<float>::infinity();
    if (!all_finite && i == 20) state[kSum] = std::numeric_limits<float>::quiet_NaN();
    if (!all_finite && i == 21) state[kShift] = std::numeric_limits<float>::infinity();
  }
  return states;
}

/// The subtrees that cover a range, as the CPU merges them, and their fold.
std::vector<float> forest_of(const std::vector<float>& states, KeyRange range) {
  Forest<float> forest(1, kDim);
  for (std::int64_t i = 0; i < range.size(); ++i) {
    std::copy_n(states.data() + i * state_size(kDim), state_size(kDim), forest.slot());
    forest.push({0, range.begin + i});
  }
  std::vector<float> all(forest.states().begin(), forest.states().end());
  const auto root = forest.fold();
  all.insert(all.end(), root.begin(), root.end());
  return all;
}

/// Equal in bits; a NaN is a NaN.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y)); });
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("join: parts of a range join to the bits of the CPU's forest, at once or in batches") {
  for (const KeyRange range :
       {KeyRange{0, 64}, KeyRange{0, 1000}, KeyRange{37, 4500}, KeyRange{128, 129}, KeyRange{64, 1344}, KeyRange{64, 192},
        KeyRange{0, 1024}, KeyRange{2048, 4096}, KeyRange{128, 128}}) {
    for (const bool all_finite : {true, false}) {
      const std::vector<float> states = states_of(range, all_finite), forest = forest_of(states, range);
      // More parts than are listed at once, more than there are leaves; room for a few subtrees, for
      // several batches of several groups, or for all.
      for (const int n_parts : {1, 2, 7, 16, 64, 65, 150}) {
        for (const int n_entries : {24, 108, 360}) {
          CAPTURE(range.end);
          CAPTURE(all_finite);
          CAPTURE(n_parts);
          CAPTURE(n_entries);
          CHECK(same(device::join_splits_on_device(states, range, n_parts, n_entries), forest));
        }
      }
    }
  }
}

}  // namespace tree_attn::test
