// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The laws of the merge, bit for bit. CMake builds this file three times: as configured, with fused multiply-add,
/// and without.
#include "reference/state/state.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

namespace state_test {

using namespace tree_attn;

constexpr std::int64_t kValueDim = 6;
constexpr unsigned kSeed = 20240804;

template <class Real>
using State = std::vector<Real>;
template <class Real>
constexpr Real kInf = std::numeric_limits<Real>::infinity();
template <class Real>
constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();

template <class Real>
State<Real> empty_state() {
  State<Real> state(static_cast<std::size_t>(state_size(kValueDim)));
  set_empty(state.data(), kValueDim);
  return state;
}

template <class Real>
State<Real> key_state(Real s, const std::vector<Real>& v) {
  State<Real> state(static_cast<std::size_t>(state_size(kValueDim)));
  set_key(state.data(), s, v.data(), kValueDim);
  return state;
}

template <class Real>
State<Real> merged(State<Real> left, const State<Real>& right) {
  merge(left.data(), right.data(), kValueDim);
  return left;
}

template <class Real>
auto bits_of(Real x) {
  using Bits = std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<Bits>(x);
}

/// Equal bits, where any NaN equals any other: which of two NaN operands propagates depends on the processor, and finish()
/// makes them one.
template <class Real>
bool same_bits(const State<Real>& a, const State<Real>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](Real x, Real y) { return (x != x && y != y) || bits_of(x) == bits_of(y); });
}

/// A uniform value in [-1, 1), the same on every machine, unlike std::normal_distribution.
template <class Real>
Real uniform(std::mt19937& random) {
  return std::ldexp(static_cast<Real>(static_cast<std::int32_t>(random()) >> 8), -23);
}

template <class Real>
Real any_of(std::mt19937& random, std::initializer_list<Real> choices) {
  return choices.begin()[random() % choices.size()];
}

/// Scores near 0, large scores, scores with a shift of 0, which must have no sign, scores out of range, Inf and NaN.
template <class Real>
Real nasty_score(std::mt19937& random) {
  const Real x = uniform<Real>(random);
  return any_of<Real>(
      random, {x, 5 * x, 100 * x, 3000 * x, Real(1e10) * x, std::numeric_limits<Real>::max() * x, Real(0), Real(-0.0),
               Real(-1), std::numeric_limits<Real>::denorm_min(), -std::numeric_limits<Real>::denorm_min(), x, 5 * x, 5 * x,
               100 * x, -kInf<Real>, kInf<Real>, kNaN<Real>});
}

template <class Real>
std::vector<Real> nasty_value(std::mt19937& random) {
  std::vector<Real> v(kValueDim);
  for (Real& v_j : v) {
    const Real x = uniform<Real>(random);
    v_j = any_of<Real>(random, {x, x, x, x, 1000 * x, Real(0), Real(-0.0), std::numeric_limits<Real>::min() * x,
                                std::numeric_limits<Real>::denorm_min(), std::numeric_limits<Real>::max() * x, kInf<Real>,
                                -kInf<Real>, kNaN<Real>});
  }
  return v;
}

/// States of 0 to 4 such keys.
template <class Real>
State<Real> nasty_state(std::mt19937& random) {
  State<Real> state = empty_state<Real>();
  for (unsigned n = random() % 5; n > 0; --n) {
    const Real s = nasty_score<Real>(random);
    state = merged(state, key_state(s, nasty_value<Real>(random)));
  }
  return state;
}

TEST_CASE_TEMPLATE("state: pow2 is exact, and 0 below the normal range", Real, float, double) {
  const int lowest = std::numeric_limits<Real>::min_exponent - 1;
  for (int x = 0; x >= lowest; --x) CHECK(pow2(Real(x)) == std::ldexp(Real(1), x));
  for (const Real x :
       {Real(lowest - 1), Real(-5000), Real(-3e9), std::numeric_limits<Real>::lowest(), -kInf<Real>, kNaN<Real>}) {
    CHECK(bits_of(pow2(x)) == bits_of(Real(0)));
  }
}

TEST_CASE_TEMPLATE("state: a key has an integer shift and a weight in [1/2, 1], which together give 2^s", Real, float,
                   double) {
  std::mt19937 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    const Real s = 100 * uniform<Real>(random);
    const Real e = key_shift(s), w = key_weight(s);
    CHECK(e == std::ceil(s));
    CHECK((w >= Real(0.5) && w <= Real(1)));
    CHECK(static_cast<double>(e + std::log2(w)) == doctest::Approx(static_cast<double>(s)).epsilon(1e-5));
  }
  CHECK(key_shift(-kInf<Real>) == -kInf<Real>);
  CHECK(key_weight(-kInf<Real>) == Real(0));
  CHECK(key_shift(kInf<Real>) == kInf<Real>);
  CHECK(std::isnan(key_weight(kInf<Real>)));
  CHECK(key_shift(kNaN<Real>) == -kInf<Real>);
  CHECK(std::isnan(key_weight(kNaN<Real>)));
  // A shift of zero has no sign.
  for (const Real zero : {Real(-0.3), Real(-0.0), Real(0)}) CHECK(bits_of(key_shift(zero)) == bits_of(Real(0)));
}

TEST_CASE_TEMPLATE("state: the empty set is neutral on both sides, bit for bit, for -0, NaN and Inf too", Real, float,
                   double) {
  std::mt19937 random(kSeed);
  const State<Real> empty = empty_state<Real>();
  CHECK(same_bits(merged(empty, empty), empty));
  for (int i = 0; i < 20000; ++i) {
    const State<Real> x = nasty_state<Real>(random);
    REQUIRE(same_bits(merged(x, empty), x));
    REQUIRE(same_bits(merged(empty, x), x));
  }
  const State<Real> minus_zero = key_state(Real(1), std::vector<Real>(kValueDim, Real(-0.0)));
  CHECK(std::signbit(merged(minus_zero, empty)[kValues]));
  CHECK(std::signbit(merged(empty, minus_zero)[kValues]));
}

TEST_CASE_TEMPLATE("state: merge commutes bit for bit, for all states", Real, float, double) {
  std::mt19937 random(kSeed + 1);
  for (int i = 0; i < 50000; ++i) {
    const State<Real> x = nasty_state<Real>(random), y = nasty_state<Real>(random);
    REQUIRE(same_bits(merged(x, y), merged(y, x)));
  }
}

TEST_CASE_TEMPLATE("state: merging gives the same bits with and without fused multiply-add", Real, float, double) {
  // Build the states without exp2, whose last bit depends on the library, then hash a chain of merges (FNV-1a).
  std::mt19937 random(kSeed + 2);
  State<Real> state = empty_state<Real>();
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < 5000; ++i) {
    State<Real> x(static_cast<std::size_t>(state_size(kValueDim)));
    for (Real& number : x) number = uniform<Real>(random);
    x[kShift] = std::floor(30 * x[kShift]);
    x[kSum] = (3 + x[kSum]) / 4;
    state = i % 100 == 0 ? x : merged(state, x);
    for (const Real number : state) hash = (hash ^ static_cast<std::uint64_t>(bits_of(number))) * 0x100000001b3u;
  }
  // The hash is the same on all machines and under all flags.
  CHECK(hash == (sizeof(Real) == 4 ? 12200567522563207952u : 6922265957960747054u));
}

TEST_CASE_TEMPLATE("state: merge is associative bit for bit where every sum is exact", Real, float, double) {
  std::mt19937 random(kSeed + 4);
  const auto integer_state = [&random] {
    std::vector<Real> v(kValueDim);
    for (Real& v_j : v) v_j = static_cast<Real>(static_cast<int>(random() % 17) - 8);
    return key_state(static_cast<Real>(random() % 8), v);
  };
  for (int i = 0; i < 2000; ++i) {
    const State<Real> x = integer_state(), y = integer_state(), z = integer_state();
    REQUIRE(same_bits(merged(merged(x, y), z), merged(x, merged(y, z))));
    REQUIRE(same_bits(merged(merged(x, y), z), merged(merged(z, x), y)));
  }
}

TEST_CASE_TEMPLATE("state: scores beyond 2^31 neither overflow nor lose the larger key", Real, float, double) {
  const std::vector<Real> one(kValueDim, Real(1)), two(kValueDim, Real(2));
  std::vector<Real> z(kValueDim);
  for (const Real s : {Real(3e9), Real(-3e9), Real(1e18), Real(-1e18), std::numeric_limits<Real>::max(),
                       std::numeric_limits<Real>::lowest()}) {
    CAPTURE(s);
    // Merged with itself it counts twice. Merged with a score of 0 only the larger key remains.
    CHECK(finish(merged(key_state(s, one), key_state(s, two)).data(), z.data(), kValueDim) == Real(kLn2) * (s + 1));
    CHECK(z[0] == Real(1.5));
    finish(merged(key_state(s, one), key_state(Real(0), two)).data(), z.data(), kValueDim);
    CHECK(z[0] == (s > 0 ? Real(1) : Real(2)));
  }
}

TEST_CASE_TEMPLATE("state: the empty set finishes as 0 and -inf", Real, float, double) {
  std::vector<Real> z(kValueDim, Real(7));
  CHECK(is_empty(empty_state<Real>().data()));
  CHECK(finish(empty_state<Real>().data(), z.data(), kValueDim) == -kInf<Real>);
  for (const Real z_j : z) CHECK(bits_of(z_j) == bits_of(Real(0)));
  // A masked key gives the empty state, and its value is not read.
  CHECK(same_bits(key_state(-kInf<Real>, std::vector<Real>(kValueDim, kNaN<Real>)), empty_state<Real>()));
  // A key with a NaN score has the same shift, but its state is not empty.
  const State<Real> nan = key_state(kNaN<Real>, std::vector<Real>(kValueDim, Real(1)));
  CHECK_FALSE(is_empty(nan.data()));
  CHECK_FALSE(is_empty(merged(empty_state<Real>(), nan).data()));
}

TEST_CASE_TEMPLATE("state: the shift is the largest score rounded up, so D is at least half of the paper's", Real, float,
                   double) {
  std::mt19937 random(kSeed + 6);
  for (const int n_keys : {1, 2, 100}) {
    State<Real> state = empty_state<Real>();
    std::vector<Real> scores;
    for (int a = 0; a < n_keys; ++a) {
      scores.push_back(30 * uniform<Real>(random));
      state = merged(state, key_state(scores.back(), std::vector<Real>(kValueDim)));
    }
    const Real largest = *std::ranges::max_element(scores);
    CHECK(state[kShift] == std::ceil(largest));
    double of_paper = 0;
    for (const Real s : scores) of_paper += std::exp2(static_cast<double>(s) - static_cast<double>(largest));
    CHECK(static_cast<double>(state[kSum]) <= of_paper * (1 + 1e-5));
    CHECK(static_cast<double>(state[kSum]) >= of_paper * (0.5 - 1e-5));
  }
}

TEST_CASE_TEMPLATE("state: one key finishes as its value and its score", Real, float, double) {
  std::mt19937 random(kSeed + 5);
  const Real epsilon = std::numeric_limits<Real>::epsilon();
  std::vector<Real> v(kValueDim), z(kValueDim);
  for (int i = 0; i < 500; ++i) {
    const Real s = 50 * uniform<Real>(random);
    for (Real& v_j : v) v_j = uniform<Real>(random);
    const Real lse = finish(key_state(s, v).data(), z.data(), kValueDim);
    CHECK(std::abs(lse - Real(kLn2) * s) <= 4 * epsilon * std::max(Real(1), std::abs(s)));
    for (std::size_t j = 0; j < z.size(); ++j) REQUIRE(std::abs(z[j] - v[j]) <= epsilon * std::abs(v[j]));
  }
}

/// Two large exponents may cancel, and lse is near 0 then.
TEST_CASE_TEMPLATE("state: lse is rounded once, whatever the exponents of 2^e and D are", Real, float, double) {
  std::mt19937 random(kSeed + 6);
  const long double ln_2 = 0.693147180559945309417232121458176568L;
  // The nearest float. In double the operations round too.
  const Real bound = std::numeric_limits<Real>::epsilon() * (sizeof(Real) == 4 ? Real(0.5 + 0x1p-20) : Real(3));
  for (int trial = 0; trial < 200000; ++trial) {
    const int i = static_cast<int>(random() % 83) - 62;
    const bool cancels = random() % 2 == 0;
    const Real e = cancels ? static_cast<Real>(static_cast<int>(random() % 5) - 2 - i)
                           : std::trunc(std::ldexp(uniform<Real>(random), static_cast<int>(random() % 40)));
    const Real m = std::exp2(uniform<Real>(random) / 2), state[] = {e, std::ldexp(m, i)};
    CAPTURE(e);
    CAPTURE(state[kSum]);
    const long double lse = ln_2 * (static_cast<long double>(e) + i + std::log2(static_cast<long double>(m)));
    REQUIRE(std::fabs(finish_lse(state) - lse) <= std::ldexp(static_cast<long double>(bound), std::ilogb(lse)));
  }
}

TEST_CASE("log2: the nearest float for every x in [1/2, 2], exact for powers of two, and Inf and NaN stay") {
  const auto nearest = [](float x) { return static_cast<float>(std::log2(static_cast<long double>(x))); };
  const auto rounded = [](float x) { return static_cast<float>(log2_of(0, x)); };
  std::int64_t n_wrong = 0;
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(0.5f); bits <= std::bit_cast<std::uint32_t>(2.0f); ++bits) {
    const float x = std::bit_cast<float>(bits);
    n_wrong += rounded(x) != nearest(x);
  }
  CHECK(n_wrong == 0);
  for (int i = -149; i <= 127; ++i) {
    CHECK(log2_of(0, std::ldexp(1.0f, i)) == i);
    const float x = std::ldexp(1.7f, i);  // of a subnormal, a few bits are left
    CHECK(rounded(x) == nearest(x));
  }
  for (int i = -1074; i <= 1023; ++i) CHECK(log2_of(0, std::ldexp(1.0, i)) == i);
  CHECK((log2_of(-3, kInf<float>) == kInf<double> && log2_of(-3, kInf<double>) == kInf<double>));
  CHECK((std::isnan(log2_of(-3, kNaN<float>)) && std::isnan(log2_of(-3, kNaN<double>))));
}

/// z is an average of finite values. If the quotient is rounded past the largest finite number, that number is the nearest
/// result.
TEST_CASE_TEMPLATE("state: a quotient past the largest number is the largest number", Real, float, double) {
  constexpr Real kLargest = std::numeric_limits<Real>::max();
  const Real below_one[] = {0, Real(1) - std::numeric_limits<Real>::epsilon()};
  CHECK(std::isinf(kLargest / below_one[kSum]));
  CHECK(finish_value(below_one, kLargest) == kLargest);
  CHECK(finish_value(below_one, -kLargest) == -kLargest);
  CHECK(finish_value(below_one, kInf<Real>) == kInf<Real>);
  CHECK(std::isnan(finish_value(below_one, kNaN<Real>)));
}

TEST_CASE_TEMPLATE("state: every component finishes by itself, whatever the others are", Real, float, double) {
  constexpr Real kLargest = std::numeric_limits<Real>::max();
  const Real sums[] = {1, 3, Real(1) - std::numeric_limits<Real>::epsilon(), 0, kNaN<Real>, kInf<Real>};
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 4000; ++trial) {
    const auto d_v = static_cast<std::int64_t>(random() % 40);
    State<Real> state(static_cast<std::size_t>(state_size(d_v)));
    state[kShift] = any_of<Real>(random, {0, 7, -kInf<Real>});
    state[kSum] = sums[random() % std::size(sums)];
    // One component in forty is small and the others are not, or the other way round.
    const bool most_are_small = random() % 2 == 0;
    for (std::int64_t j = 0; j < d_v; ++j) {
      const bool is_small = (random() % 40 > 0) == most_are_small;
      state[static_cast<std::size_t>(kValues + j)] =
          is_small ? uniform<Real>(random) : any_of<Real>(random, {kLargest, -kLargest, kInf<Real>, kNaN<Real>});
    }
    State<Real> z(static_cast<std::size_t>(d_v)), want = z;
    for (std::int64_t j = 0; j < d_v; ++j)
      want[static_cast<std::size_t>(j)] = finish_value(state.data(), state[static_cast<std::size_t>(kValues + j)]);
    finish(state.data(), z.data(), d_v);
    REQUIRE(std::equal(z.begin(), z.end(), want.begin(), [](Real x, Real y) { return bits_of(x) == bits_of(y); }));
  }
}

TEST_CASE_TEMPLATE("state: NaN and Inf follow the formula", Real, float, double) {
  const std::vector<Real> one(kValueDim, Real(1));
  std::vector<Real> z(kValueDim), v = one;
  const State<Real> other = key_state(Real(2), one);

  // A score of NaN or +inf makes every result NaN, merged with any other key and on either side.
  for (const Real s : {kNaN<Real>, -kNaN<Real>, kInf<Real>}) {
    for (const State<Real>& state :
         {key_state(s, one), merged(key_state(s, one), other), merged(other, key_state(s, one))}) {
      CHECK(std::isnan(finish(state.data(), z.data(), kValueDim)));
      for (const Real z_j : z) CHECK(std::isnan(z_j));
    }
  }

  // A NaN or Inf value affects only its own component.
  v[1] = kInf<Real>, v[2] = kNaN<Real>;
  finish(merged(other, key_state(Real(-3), v)).data(), z.data(), kValueDim);
  CHECK(z[0] == Real(1));
  CHECK(z[1] == kInf<Real>);
  CHECK(std::isnan(z[2]));

  // Inf plus -Inf, and Inf times a weight of exactly 0.
  std::vector<Real> w = one;
  w[1] = -kInf<Real>;
  finish(merged(key_state(Real(2), w), key_state(Real(-3), v)).data(), z.data(), kValueDim);
  CHECK(std::isnan(z[1]));
  finish(merged(other, key_state(Real(-3000), v)).data(), z.data(), kValueDim);
  CHECK(std::isnan(z[1]));
}

TEST_CASE_TEMPLATE("state: every NaN is returned with the same bits", Real, float, double) {
  std::vector<Real> z(kValueDim);
  const auto canonical = bits_of(kNaN<Real>);
  using Bits = std::remove_const_t<decltype(canonical)>;
  for (const Real nan : {kNaN<Real>, -kNaN<Real>, std::bit_cast<Real>(static_cast<Bits>(canonical | Bits{0x1234}))}) {
    State<Real> state = key_state(Real(1), std::vector<Real>(kValueDim, nan));
    finish(state.data(), z.data(), kValueDim);
    for (const Real z_j : z) CHECK(bits_of(z_j) == canonical);
    state[kSum] = nan;
    CHECK(bits_of(finish(state.data(), z.data(), kValueDim)) == canonical);
    CHECK(bits_of(finish_lse(state.data())) == canonical);
  }
}

}  // namespace state_test
