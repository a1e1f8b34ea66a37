// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief States from (o, lse) and back: equal to decoded states where that is exact, and within a rounding elsewhere.
#include "reference/oracle/attention.hpp"
#include "reference/state/lse.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lse_test {

using namespace tree_attn;
using namespace tree_attn::test;

constexpr std::int64_t kValueDim = 5;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
using State = std::vector<float>;

State state_of(const std::vector<float>& o, float lse, LseForm form = LseForm::kNatural) {
  State state(static_cast<std::size_t>(state_size(std::ssize(o))));
  set_from_lse(state.data(), o.data(), lse, std::ssize(o), form);
  return state;
}

State merged(State left, const State& right) {
  merge(left.data(), right.data(), kValueDim);
  return left;
}

const std::vector<float> kO = {1.5f, -2, 0.25f, -0.0f, 3e5f};

/// @tested{alg_3, Alg. 3}
TEST_CASE("lse: an integer in base two gives the state of a key, bit for bit, and comes back") {
  for (const float s : {0.0f, -3.0f, 17.0f, 1000.0f, -4096.0f}) {
    CAPTURE(s);
    State key(static_cast<std::size_t>(state_size(kValueDim)));
    set_key(key.data(), s, kO.data(), kValueDim);
    CHECK(same_bits(state_of(kO, s, LseForm::kBaseTwo), key));
    std::vector<float> o(kO.size());
    CHECK(to_lse(key.data(), o.data(), kValueDim, LseForm::kBaseTwo) == s);
    CHECK(same_bits(o, kO));
  }
}

TEST_CASE("lse: (o, lse) of the parts of a sequence merge to attention over the whole") {
  std::mt19937 random(47);
  const std::int64_t d = 16, n = 300, cut = 130;
  const Tensor q = normal_tensor(random, {1, 1, 1, d}, DType::F32, 4), k = normal_tensor(random, {1, 1, n, d}),
               v = normal_tensor(random, {1, 1, n, d});
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    return attention(q, k.view().positions(begin, end), v.view().positions(begin, end));
  };
  const AttentionResult whole = part(0, n), left = part(0, cut), right = part(cut, n);
  for (const LseForm form : {LseForm::kNatural, LseForm::kBaseTwo, LseForm::kNaturalOrInfEmpty}) {
    const double unit = form == LseForm::kBaseTwo ? kLog2E : 1;
    std::vector<double> l(static_cast<std::size_t>(state_size(d))), r = l, o(d);
    set_from_lse(l.data(), left.out.data(), left.lse[0] * unit, d, form);
    set_from_lse(r.data(), right.out.data(), right.lse[0] * unit, d, form);
    merge(l.data(), r.data(), d);
    const double lse = to_lse(l.data(), o.data(), d, form);
    CHECK(lse == doctest::Approx(whole.lse[0] * unit).epsilon(1e-14));
    for (std::int64_t j = 0; j < d; ++j)
      CHECK(o[static_cast<std::size_t>(j)] == doctest::Approx(whole.out[static_cast<std::size_t>(j)]).epsilon(1e-13));
  }
}

TEST_CASE("lse: a round trip moves lse and o by their rounding alone, at any size") {
  for (const float lse : {1e-30f, 0.3f, -0.7f, 12.34f, -88.0f, 1000.1f, -3e4f, 7e6f}) {
    CAPTURE(lse);
    for (const LseForm form : {LseForm::kNatural, LseForm::kBaseTwo}) {
      const State state = state_of(kO, lse, form);
      CHECK(state[kSum] >= 0.5f);
      CHECK(state[kSum] <= 1.0f);
      CHECK(state[kShift] == std::round(state[kShift]));
      std::vector<float> o(kO.size());
      // D is rounded to a float, so lse moves by u, and by its own last place.
      CHECK(std::fabs(to_lse(state.data(), o.data(), kValueDim, form) - lse) <= 0x1p-23 + std::fabs(lse) * 0x1p-23);
      for (std::size_t j = 0; j < o.size(); ++j) CHECK(std::fabs(o[j] - kO[j]) <= std::fabs(kO[j]) * 0x1p-23);
    }
  }
  // The product with log2 e in F32 would be off by 2^-24 of 7e6, and the weight by a third of itself.
  const State large = state_of(kO, 7e6f);
  CHECK(std::log2(double{large[kSum]}) + double{large[kShift]} == doctest::Approx(7e6 * kLog2E).epsilon(1e-14));
}

TEST_CASE("lse: -inf is the empty set, whatever o holds, and comes back as o = 0") {
  for (const LseForm form : {LseForm::kNatural, LseForm::kBaseTwo, LseForm::kNaturalOrInfEmpty}) {
    const State empty = state_of({kNaN, kInf, 1, 2, 3}, -kInf, form), some = state_of(kO, 2.5f, form);
    CHECK(is_empty(empty.data()));
    CHECK(same_bits(merged(some, empty), some));
    CHECK(same_bits(merged(empty, some), some));
    std::vector<float> o(kO.size(), 7.0f);
    CHECK(to_lse(empty.data(), o.data(), kValueDim, form) == -kInf);
    CHECK(same_bits(o, std::vector<float>(kO.size(), 0.0f)));
  }
}

TEST_CASE("lse: NaN and +inf give NaN, but +inf of FlashAttention 2 is the empty set") {
  for (const LseForm form : {LseForm::kNatural, LseForm::kBaseTwo}) {
    for (const float lse : {kNaN, kInf}) {
      const State state = merged(state_of(kO, lse, form), state_of(kO, 0, form));
      std::vector<float> o(kO.size());
      const float back = to_lse(state.data(), o.data(), kValueDim, form);
      CHECK(back != back);
      for (const float x : o) CHECK(x != x);
    }
  }
  // Its normalize_softmax_lse(): a row without keys has o = 0 and lse = +inf.
  const State none = state_of(std::vector<float>(kO.size(), 0.0f), kInf, LseForm::kNaturalOrInfEmpty);
  CHECK(is_empty(none.data()));
  const State unknown = state_of(kO, kNaN, LseForm::kNaturalOrInfEmpty);
  CHECK(unknown[kSum] != unknown[kSum]);
}

TEST_CASE("lse: FlashInfer's initial state, lse = -5e4 and o = 0, weighs nothing beside another") {
  // Its math::inf is 5e4, and state_t::init() has m = -inf and d = 1.
  const State initial = state_of(std::vector<float>(kO.size(), 0.0f), -5e4f, LseForm::kBaseTwo);
  CHECK(initial[kShift] == -5e4f);
  CHECK(initial[kSum] == 1);
  const State some = state_of({1.5f, -2, 0.25f, 4, 3e5f}, -30.5f, LseForm::kBaseTwo);
  CHECK(same_bits(merged(some, initial), some));
  CHECK(same_bits(merged(initial, some), some));
}

}  // namespace lse_test
