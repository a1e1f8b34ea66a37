// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The state on device code, in bits: its laws, its merge against that of the CPU, and units that are combined
/// against the CPU's forest (section 5, Alg. 3).
#include "gpu/engine/units.hpp"
#include "reference/decode/decode.hpp"
#include "reference/state/forest.hpp"
#include "tests/gpu/engine/part_kernels.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/same_bits.hpp"

#include <cstring>
#include <random>

namespace tree_attn::test::lane_state_test {
namespace {

constexpr std::int64_t kDim = device::kStateDim;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// n random states: shifts far apart and near, component 0 of them all -0, and every eighth empty.
std::vector<float> random_states(std::mt19937& random, std::int64_t n) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> shift(-140, 140), near(-3, 3);
  std::vector<float> states(static_cast<std::size_t>(n * state_size(kDim)));
  for (std::int64_t i = 0; i < n; ++i) {
    float* const state = states.data() + i * state_size(kDim);
    if (i % 8 == 5) {
      set_empty(state, kDim);
      continue;
    }
    state[kShift] = static_cast<float>(i % 2 == 0 ? shift(random) : near(random));
    state[kSum] = 0.5f + std::abs(normal(random));
    for (std::int64_t j = 0; j < kDim; ++j) state[kValues + j] = j == 0 ? -0.0f : normal(random);
  }
  return states;
}

/// The subtrees that cover a range, as the CPU merges the states of its leaves.
std::vector<float> forest_of(const std::vector<float>& states, KeyRange leaves) {
  Forest<float> forest(1, kDim);
  for (std::int64_t i = 0; i < leaves.size(); ++i) {
    std::copy_n(states.data() + i * state_size(kDim), state_size(kDim), forest.next());
    forest.push({kLeafLevel, leaves.begin + i});
  }
  return {forest.states().begin(), forest.states().end()};
}

/// Equal in bits; a NaN is a NaN.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(
      a, b, [](float x, float y) { return std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y)); });
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("state on the device: merge has the bits of the CPU's, is commutative, and the empty set changes none") {
  std::mt19937 random(8000);
  const std::int64_t n = 512;
  const std::vector<float> a = random_states(random, n), b = random_states(random, n + 3);
  const std::vector<float> right(b.begin() + 3 * state_size(kDim), b.end());
  const std::vector<float> merged = device::merge_on_device(a, right);
  std::vector<float> want = a;
  for (std::int64_t i = 0; i < n; ++i) merge(want.data() + i * state_size(kDim), right.data() + i * state_size(kDim), kDim);
  CHECK(same_bits(merged, want));
  CHECK(same_bits(device::merge_on_device(right, a), merged));

  std::vector<float> empty(a.size());
  for (std::int64_t i = 0; i < n; ++i) set_empty(empty.data() + i * state_size(kDim), kDim);
  CHECK(same_bits(device::merge_on_device(a, empty), a));
  CHECK(same_bits(device::merge_on_device(empty, a), a));
}

/// As tests/reference/state/test_contraction.cpp for the compiler of the host: a fused multiply-add would not round them.
/// @tested{alg_3, Alg. 3}
TEST_CASE("state on the device: merge rounds products that are subnormal") {
  std::mt19937 random(8050);
  std::uniform_real_distribution<float> between(1, 2);
  const std::int64_t n = 64;
  std::vector<float> left(static_cast<std::size_t>(n * state_size(kDim))), right(left.size());
  for (std::size_t i = 0; i < left.size(); ++i)
    left[i] = between(random) * 0x1p-126f, right[i] = between(random) * 0x1p-126f;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i * state_size(kDim) + kShift);
    left[at] = 0, right[at] = static_cast<float>(-1 - i % 20);
  }
  std::vector<float> want = left;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const std::size_t shift = i - i % static_cast<std::size_t>(state_size(kDim));
    if (i == shift) continue;
    volatile float product = std::ldexp(right[i], static_cast<int>(right[shift]));
    want[i] = left[i] + product;
  }
  CHECK(same_bits(device::merge_on_device(left, right), want));
}

/// The formula of plain.hpp.
/// @tested{eq_7, eq. (7)}
TEST_CASE("state on the device: a leaf has the weights of one shift, and a tree over its positions") {
  std::mt19937 random(8300);
  const std::int64_t n = 40;
  for (const float spread : {1.0f, 30.0f, 90.0f}) {
    std::vector<float> scores = normal_elements(random, n * kLeafKeys, spread);
    for (std::size_t i = 0; i < scores.size(); i += 13) scores[i] = -kInf;
    std::fill_n(scores.begin() + 2 * kLeafKeys, kLeafKeys, -kInf);
    std::vector<float> values = normal_elements(random, n * kLeafKeys * kDim);
    values[13 * kDim] = kInf;  // of a key that is not seen
    const std::vector<float> states = device::leaves_on_device(scores, values);
    for (std::int64_t i = 0; i < n; ++i) {
      const float* const s = scores.data() + i * kLeafKeys;
      float e = -kInf;
      for (std::int64_t a = 0; a < kLeafKeys; ++a) e = std::max(e, key_shift(s[a]));
      std::vector<float> want{e};
      for (std::int64_t j = -1; j < kDim; ++j) {
        float x[kLeafKeys];
        for (std::int64_t a = 0; a < kLeafKeys; ++a) {
          x[a] = j < 0 ? 0.0f : -0.0f;
          if (s[a] == -kInf) continue;
          const float w = exp2_fraction(s[a] - key_shift(s[a])) * pow2(key_shift(s[a]) - e);
          x[a] = j < 0 ? w : w * values[static_cast<std::size_t>((i * kLeafKeys + a) * kDim + j)];
        }
        for (std::int64_t m = kLeafKeys / 2; m > 0; m /= 2)
          for (std::int64_t a = 0; a < m; ++a) x[a] = x[2 * a] + x[2 * a + 1];
        want.push_back(x[0]);
      }
      CHECK(same_bits(std::span(states).subspan(static_cast<std::size_t>(i * state_size(kDim)), want.size()), want));
    }
  }
}

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("combine: units of a shard become the CPU's forest, whatever their size, finite or not") {
  std::mt19937 random(8500);
  const auto draw = [&random](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  std::vector<KeyRange> ranges{{0, 64}, {0, 1000}, {37, 4500}, {128, 129}, {64, 1344}, {64, 192}, {0, 1024}, {2048, 4096}};
  const std::size_t n_listed = ranges.size(), n_drawn = is_in_software() ? 40 : 4000;
  while (ranges.size() < n_listed + n_drawn) {
    const std::int64_t begin = draw(1, 1 << draw(1, 12));
    ranges.push_back({begin, begin + draw(1, 1 << draw(0, 8))});
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const KeyRange leaves = ranges[i];
    for (const bool all_finite : {true, false}) {
      std::vector<float> states = random_states(random, leaves.size());
      for (std::int64_t a = 0; a < leaves.size() && !all_finite; ++a) {
        float* const state = states.data() + a * state_size(kDim);
        if (a % 31 == 11) state[kValues + a % kDim] = kInf;
        if (a == 20) state[kSum] = std::numeric_limits<float>::quiet_NaN();
        if (a == 22) state[kShift] = kInf;
      }
      const std::vector<float> forest = forest_of(states, leaves);
      for (const int log : i < n_listed ? std::vector{0, 1, 2, 5, 12} : std::vector{static_cast<int>(draw(0, 6))}) {
        // Units of a shard end where its subtrees do.
        const Count begin = Count(leaves.begin), end = Count(leaves.end);
        const Units units({leaves.begin * kLeafKeys, leaves.end * kLeafKeys}, {begin, end, end, end}, log, false);
        std::vector<float> of_units;
        for (Count k = 0; k < units.size(); ++k) {
          const std::int64_t from = units.begin_of(k), to = units.end_of(from);
          const std::vector<float> unit(states.begin() + (from - leaves.begin) * state_size(kDim),
                                        states.begin() + (to - leaves.begin) * state_size(kDim));
          const std::vector<float> of_unit = forest_of(unit, {from, to});
          REQUIRE(std::ssize(of_unit) == state_size(kDim));
          of_units.insert(of_units.end(), of_unit.begin(), of_unit.end());
        }
        for (const int n_warps : i < n_listed ? std::vector{1, 2, 8} : std::vector{1 << draw(0, 3)}) {
          INFO("leaves " << leaves.begin << " to " << leaves.end << ", all finite " << all_finite << ", c " << log
                         << ", warps " << n_warps);
          CHECK(same(device::combine_on_device(of_units, leaves, log, n_warps), forest));
        }
      }
    }
  }
}

}  // namespace tree_attn::test::lane_state_test
