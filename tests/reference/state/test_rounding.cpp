// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Associativity in floating point: the bits of different trees, and the error of each.
///
/// Every tree here reduces single keys by the one merge. The trees are the chain (one worker), the canonical tree (Forest),
/// the pairwise tree of tree_reduce() with other chunks, and any of these over permuted keys.
#include "tree_attn/reference/energy/log_sum_exp.hpp"
#include "tree_attn/reference/oracle/error_bound.hpp"
#include "tree_attn/reference/state/forest.hpp"
#include "tree_attn/reference/state/tree_reduce.hpp"
#include "tree_attn/tests/support/compare.hpp"
#include "tree_attn/tests/support/same_bits.hpp"
#include "tree_attn/tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace rounding_test {

using namespace tree_attn;
using namespace tree_attn::test;

constexpr unsigned kSeed = 1;
constexpr std::int64_t kValueDim = 16;  // large enough that two trees do not agree in all bits by chance

using State = std::vector<float>;

State merged(State left, const State& right) {
  merge(left.data(), right.data(), static_cast<std::int64_t>(left.size()) - kValues);
  return left;
}

/// States of N keys with random scores and values. On request the values are integers, so small that no sum of them is
/// rounded.
std::vector<State> random_keys(std::int64_t N, bool whole = false, unsigned seed = kSeed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<State> keys;
  for (std::int64_t a = 0; a < N; ++a) {
    State state(static_cast<std::size_t>(state_size(kValueDim)));
    float v[kValueDim];
    for (float& v_j : v) v_j = whole ? std::round(4 * normal(random)) : normal(random);
    const float s = 2 * normal(random);
    set_key(state.data(), whole ? std::round(s) : s, v, kValueDim);
    keys.push_back(state);
  }
  return keys;
}

/// Sequential chunks on p workers, then pairs: p = 1 is the chain, p = N the pairwise tree over all keys.
State pairwise(const std::vector<State>& keys, std::int64_t p) {
  return tree_reduce(std::span<const State>(keys), p, merged).value;
}
State chain(const std::vector<State>& keys) { return pairwise(keys, 1); }

/// The canonical tree, with the keys between two cuts on one rank.
State canonical(const std::vector<State>& keys, std::vector<std::int64_t> cuts = {}) {
  const auto d_v = static_cast<std::int64_t>(keys[0].size()) - kValues;
  const auto N = static_cast<std::int64_t>(keys.size());
  cuts.push_back(N);
  std::sort(cuts.begin(), cuts.end());
  Forest<float> all(1, d_v);
  std::int64_t a = 0;
  for (const std::int64_t end : cuts) {
    Forest<float> rank(1, d_v);
    for (; a < end; ++a) {
      std::copy(keys[static_cast<std::size_t>(a)].begin(), keys[static_cast<std::size_t>(a)].end(), rank.slot());
      rank.push({0, a});
    }
    all.append(rank.subtrees(), rank.states().data());
  }
  const std::span<const float> root = all.fold();
  return {root.begin(), root.end()};
}

template <class T>
std::vector<T> permuted(const std::vector<T>& x, const std::function<std::size_t(std::size_t)>& from) {
  std::vector<T> y;
  for (std::size_t a = 0; a < x.size(); ++a) y.push_back(x[from(a)]);
  return y;
}

template <class T>
std::vector<T> shuffled(std::vector<T> x, unsigned seed) {
  std::mt19937 random(seed);
  std::shuffle(x.begin(), x.end(), random);
  return x;
}

TEST_CASE("rounding: the canonical tree has the same bits for every cut, other chunks have other bits") {
  CAPTURE(kSeed);
  const std::vector<State> keys = random_keys(100);
  const State root = canonical(keys);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::int64_t> cuts(random() % 8);
    for (std::int64_t& cut : cuts) cut = static_cast<std::int64_t>(random() % 101);
    CHECK(same_bits(canonical(keys, cuts), root));
  }
  // Pairs over single keys are the same tree, even if N is not a power of two.
  CHECK(same_bits(pairwise(keys, 100), root));
  // Any other number of workers is another tree.
  int n_other = 0;
  for (const std::int64_t p : {1, 2, 3, 5, 8, 16, 25}) n_other += !same_bits(pairwise(keys, p), root);
  CHECK(n_other == 7);
  int n_pairs = 0;
  for (const std::int64_t p : {2, 3, 5, 8, 16, 25}) n_pairs += same_bits(pairwise(keys, p), chain(keys));
  CHECK(n_pairs == 0);
}

TEST_CASE("rounding: if no sum is rounded, every tree over every order has the same bits") {
  CAPTURE(kSeed);
  const std::vector<State> keys = random_keys(100, true);
  const State want = chain(keys);
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<State> other = shuffled(keys, seed);
    CHECK(same_bits(chain(other), want));
    CHECK(same_bits(canonical(other), want));
    CHECK(same_bits(pairwise(other, 7), want));
  }
}

TEST_CASE("rounding: merge commutes, so the symmetries of the tree change no bit, and other permutations do") {
  CAPTURE(kSeed);
  const std::vector<State> keys = random_keys(128);
  const State root = canonical(keys);
  // a -> a xor c swaps siblings at every level at which c has a set bit. These are the orders that the ranks of a butterfly
  // use.
  for (std::size_t c = 0; c < 128; ++c)
    CHECK(same_bits(canonical(permuted(keys, [c](std::size_t a) { return a ^ c; })), root));
  CHECK(same_bits(canonical(permuted(keys, [](std::size_t a) { return 127 - a; })), root));
  // Swapped neighbours that are not siblings, a rotation, the reversed chain, a random order.
  const auto swap_cousins = [](std::size_t a) { return a % 4 == 1 ? a + 1 : a % 4 == 2 ? a - 1 : a; };
  CHECK_FALSE(same_bits(canonical(permuted(keys, swap_cousins)), root));
  CHECK_FALSE(same_bits(canonical(permuted(keys, [](std::size_t a) { return (a + 1) % 128; })), root));
  CHECK_FALSE(same_bits(chain(permuted(keys, [](std::size_t a) { return 127 - a; })), chain(keys)));
  int n_same = 0;
  for (unsigned seed = 0; seed < 20; ++seed) n_same += same_bits(canonical(shuffled(keys, seed)), root);
  CHECK(n_same == 0);
}

TEST_CASE("rounding: the error of a sum is at most n_a u for chains of n_a additions, and large for a long chain") {
  // Terms in [1, 2): their sum is exact in double, and rounded in float at every addition that carries.
  CAPTURE(kSeed);
  const double u = 0x1p-24;
  for (const std::int64_t N : {1 << 10, 1 << 14, 1 << 18, 1 << 20}) {
    std::mt19937 random(kSeed);
    std::vector<float> x(static_cast<std::size_t>(N));
    for (float& x_a : x) x_a = 1 + std::ldexp(static_cast<float>(random() >> 9), -23);
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    const auto error = [&](std::int64_t p) {
      const auto got = tree_reduce(std::span<const float>(x), p, std::plus<float>());
      const double relative = std::abs(static_cast<double>(got.value) - sum) / sum;
      CAPTURE(N);
      CAPTURE(p);
      // n_steps is the longest chain. n u is the bound to first order, (1 + u)^n - 1 to all orders.
      CHECK(relative <= std::expm1(static_cast<double>(got.n_steps) * std::log1p(u)));
      return relative;
    };
    const double of_tree = error(N), of_pairs = error(64), of_chain = error(1);
    CHECK(of_tree <= 2 * u);
    CHECK(of_pairs <= of_chain + 2 * u);
    if (N >= 1 << 18) CHECK(of_chain > 30 * of_tree);
  }
}

TEST_CASE("rounding: a chain of equal terms stagnates, the tree does not") {
  // 2^24 + 1 is not a float, so every further 1 is lost.
  const std::vector<float> ones((1 << 24) + (1 << 22), 1.0f);
  const auto sum = [&ones](std::int64_t p) {
    return tree_reduce(std::span<const float>(ones), p, std::plus<float>()).value;
  };
  CHECK(sum(1) == 0x1p24f);
  CHECK(sum(64) == 0x1p24f + 0x1p22f);
}

TEST_CASE("rounding: chain, tree and pairs stay within the bound of their own longest chain") {
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  constexpr std::int64_t d_h = 16;
  for (const std::int64_t N : {50, 1000, 8192}) {
    for (const float sigma : {1.0f, 4.0f}) {
      CAPTURE(N);
      CAPTURE(sigma);
      const Tensor q = normal_tensor(random, {1, 1, 1, d_h}, DType::F32, sigma), k = normal_tensor(random, {1, 1, N, d_h}),
                   v = normal_tensor(random, {1, 1, N, kValueDim});
      const AttentionOptions options;
      const AttentionResult oracle = attention(q, k, v, options);

      // The states of single keys, in float.
      const auto scale = static_cast<float>(kLog2E * scale_of(q, options));
      std::vector<State> keys;
      for (std::int64_t a = 0; a < N; ++a) {
        float q_row[d_h], k_row[d_h], v_row[kValueDim];
        load_row<float>(q, 0, 0, 0, q_row);
        load_row<float>(k, 0, 0, a, k_row);
        load_row<float>(v, 0, 0, a, v_row);
        keys.emplace_back(static_cast<std::size_t>(state_size(kValueDim)));
        set_key(keys.back().data(), scale * std::inner_product(q_row, q_row + d_h, k_row, 0.0f), v_row, kValueDim);
      }

      // Each tree against the bound with its own n_a.
      const auto check = [&](const State& state, std::int64_t n_steps) {
        const ErrorModel model{.n_additions = static_cast<double>(n_steps) + 2};
        const ErrorBound bound = error_bound(q, k, v, options, model);
        std::vector<float> z(kValueDim);
        const float lse = finish(state.data(), z.data(), kValueDim);
        const Comparison comparison = compare(z, oracle.out, bound.out);
        CHECK_MESSAGE(comparison.ok, comparison.message);
        CHECK(std::abs(lse - oracle.lse[0]) <= bound.lse[0]);
      };
      for (const std::int64_t p : {std::int64_t{1}, std::int64_t{7}, N}) {
        const auto got = tree_reduce(std::span<const State>(keys), p, merged);
        check(got.value, got.n_steps);
      }
      const std::int64_t depth = static_cast<std::int64_t>(std::ceil(std::log2(static_cast<double>(N))));
      check(canonical(keys), depth);
      check(canonical(shuffled(keys, kSeed)), depth);
    }
  }
}

}  // namespace rounding_test
