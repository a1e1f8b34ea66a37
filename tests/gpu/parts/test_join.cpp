// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Joining the forests of neighbouring ranges: the bits of the CPU's forest, for any number of parts and any room
/// (section 5, Alg. 3).
#include "reference/state/forest.hpp"
#include "tests/gpu/parts/part_kernels.hpp"
#include "tests/support/device_params.hpp"

#include <cstring>
#include <random>

namespace tree_attn::test {

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("join: parts of a range join to the bits of the CPU's forest, at once or in batches") {
  constexpr std::int64_t kDim = device::kJoinDim;
  std::mt19937 random(8500);
  for (const KeyRange range : {KeyRange{0, 64}, KeyRange{0, 1000}, KeyRange{37, 4500}, KeyRange{128, 129}}) {
    std::vector<float> states = normal_elements(random, range.size() * state_size(kDim));
    Forest<float> forest(1, kDim);
    for (std::int64_t i = 0; i < range.size(); ++i) {
      float* const state = states.data() + i * state_size(kDim);
      state[kShift] = static_cast<float>(static_cast<int>(10 * state[kShift]));
      state[kSum] = 0.5f + std::abs(state[kSum]);
      std::copy_n(state, state_size(kDim), forest.slot());
      forest.push({0, range.begin + i});
    }
    const auto root = forest.fold();
    // More parts than are listed at once, more than there are leaves; room for a few subtrees or for all.
    for (const int n_parts : {1, 2, 7, 64, 65, 150}) {
      for (const int n_entries : {24, 400}) {
        CAPTURE(range.end);
        CAPTURE(n_parts);
        CAPTURE(n_entries);
        const std::vector<float> joined = device::join_splits_on_device(states, range, n_parts, n_entries);
        CHECK(std::memcmp(joined.data(), root.data(), root.size_bytes()) == 0);
      }
    }
  }
}

}  // namespace tree_attn::test
