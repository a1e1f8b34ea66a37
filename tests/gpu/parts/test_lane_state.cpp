// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The laws of the state, in bits, on device code; and its merge against that of the CPU (section 5).
#include "reference/decode/decode.hpp"
#include "tests/gpu/parts/state_kernels.hpp"
#include "tests/support/device_params.hpp"

#include <cstring>
#include <random>

namespace tree_attn::test {
namespace {

constexpr std::int64_t kDim = device::kStateDim;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// n random states: shifts far apart and near, and every eighth empty.
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
    for (std::int64_t j = 0; j < kDim; ++j) state[kValues + j] = normal(random);
  }
  return states;
}

std::vector<float> normal_values(std::mt19937& random, std::int64_t n) { return normal_elements(random, n * kDim); }

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
  CHECK(same(merged, want));
  CHECK(same(device::merge_on_device(right, a), merged));

  std::vector<float> empty(a.size());
  for (std::int64_t i = 0; i < n; ++i) set_empty(empty.data() + i * state_size(kDim), kDim);
  CHECK(same(device::merge_on_device(a, empty), a));
  CHECK(same(device::merge_on_device(empty, a), a));
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
  CHECK(same(device::merge_on_device(left, right), want));
}

/// Whole numbers whose sums no order can change: associativity is then one of bits.
/// @tested{thm_1, Thm. 1}
TEST_CASE("state on the device: merge is associative in bits where the additions are exact") {
  std::mt19937 random(8100);
  std::uniform_int_distribution<int> small(-50, 50);
  const std::int64_t n = 256;
  const auto exact_states = [&] {
    std::vector<float> states(static_cast<std::size_t>(n * state_size(kDim)));
    for (float& x : states) x = static_cast<float>(small(random) / 8);
    for (std::int64_t i = 0; i < n; ++i)
      states[static_cast<std::size_t>(i * state_size(kDim) + kSum)] = static_cast<float>(1 + i % 7);
    return states;
  };
  const std::vector<float> a = exact_states(), b = exact_states(), c = exact_states();
  CHECK(same(device::merge_on_device(device::merge_on_device(a, b), c),
             device::merge_on_device(a, device::merge_on_device(b, c))));
}

TEST_CASE("state on the device: a key has the state of set_key(), up to the device's own exp2, and its edges") {
  std::mt19937 random(8200);
  std::vector<float> scores = normal_elements(random, 200, 40);
  scores[3] = -kInf, scores[4] = kInf, scores[5] = kNaN, scores[6] = 0, scores[7] = -0.3f, scores[8] = 17;
  const std::vector<float> values = normal_values(random, 200);
  const std::vector<float> states = device::keys_on_device(scores, values);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    CAPTURE(scores[i]);
    std::vector<float> want(static_cast<std::size_t>(state_size(kDim)));
    set_key(want.data(), scores[i], values.data() + i * kDim, kDim);
    const float* const got = states.data() + i * want.size();
    bool right = std::memcmp(got, want.data(), sizeof(float)) == 0;  // the shift, in bits
    for (std::size_t j = 1; j < want.size(); ++j)
      right = right && ((std::isnan(want[j]) && std::isnan(got[j])) ||
                        std::abs(got[j] - want[j]) <= 4 * 0x1p-23f * std::abs(want[j]));
    CHECK(right);
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("state on the device: eight keys at once have the bits of eight keys that climb one by one") {
  std::mt19937 random(8300);
  const std::int64_t n = 80;
  for (const float spread : {1.0f, 30.0f, 90.0f}) {
    std::vector<float> scores = normal_elements(random, 8 * n, spread);
    for (std::size_t i = 0; i < scores.size(); i += 13) scores[i] = -kInf;
    for (std::size_t i = 160; i < 168; ++i) scores[i] = -kInf;
    const std::vector<float> values = normal_values(random, 8 * n);
    const std::vector<float> states = device::keys_on_device(scores, values),
                             eights = device::eights_on_device(scores, values);
    Forest<float> forest(1, kDim);
    bool right = true;
    for (std::int64_t i = 0; i < n; ++i) {
      forest.clear();
      for (std::int64_t a = 0; a < 8; ++a) {
        std::copy_n(states.data() + (8 * i + a) * state_size(kDim), state_size(kDim), forest.slot());
        forest.push({0, a});
      }
      const auto root = forest.fold();
      right = right && std::memcmp(root.data(), eights.data() + i * state_size(kDim), root.size_bytes()) == 0;
    }
    CHECK(right);
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("state on the device: forests of any runs join to the bits of the CPU's forest") {
  std::mt19937 random(8400);
  for (const std::vector<std::int64_t>& cuts : std::vector<std::vector<std::int64_t>>{
           {0, 100}, {0, 1, 2, 3}, {0, 64, 64, 100}, {0, 37, 61, 200}, {5, 9, 77}, {63, 65, 200, 201, 333}}) {
    std::vector<KeyRange> ranges;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) ranges.push_back({cuts[i], cuts[i + 1]});
    const std::int64_t n = cuts.back() - cuts.front();
    const std::vector<float> states = random_states(random, n);
    Forest<float> forest(1, kDim);
    for (std::int64_t i = 0; i < n; ++i) {
      std::copy_n(states.data() + i * state_size(kDim), state_size(kDim), forest.slot());
      forest.push({0, cuts.front() + i});
    }
    const auto root = forest.fold();
    CHECK(same(device::join_on_device(states, ranges), std::vector<float>(root.begin(), root.end())));
  }
}

}  // namespace tree_attn::test
