// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Thm. 1: the value of a reduction and the exact number of its dependent steps.
#include "reference/state/tree_reduce.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <string>

using namespace tree_attn;

/// @tested{thm_1, Thm. 1}
TEST_CASE("tree_reduce: the dependent steps are ceil(N/p) - 1 + ceil(log2 p'), N < p included") {
  for (std::int64_t N = 1; N <= 130; ++N) {
    std::vector<std::int64_t> x(static_cast<std::size_t>(N));
    std::iota(x.begin(), x.end(), 1);
    for (std::int64_t p = 1; p <= 70; ++p) {
      CAPTURE(N);
      CAPTURE(p);
      std::int64_t n_operations = 0;
      const auto got = tree_reduce(std::span<const std::int64_t>(x), p,
                                   [&](std::int64_t a, std::int64_t b) { return ++n_operations, a + b; });
      const auto chunk = static_cast<std::int64_t>(std::ceil(static_cast<double>(N) / static_cast<double>(p)));
      const auto workers = static_cast<std::int64_t>(std::ceil(static_cast<double>(N) / static_cast<double>(chunk)));
      REQUIRE(got.n_workers == workers);
      REQUIRE(workers <= std::min(N, p));
      REQUIRE(got.n_steps == chunk - 1 + static_cast<std::int64_t>(std::ceil(std::log2(static_cast<double>(workers)))));
      REQUIRE(got.value == N * (N + 1) / 2);
      REQUIRE(n_operations == N - 1);
      if (N <= p) REQUIRE(workers == N);
    }
  }
}

/// Alg. 3 takes N/p steps once and log p three times, and twice the devices with their keys take one step more.
/// @tested{thm_1, Thm. 1}
/// @tested{slip_6, slip 6}
/// @tested{slip_8, slip 8}
TEST_CASE("tree_reduce: the steps grow as N/p + log p, and only log p of them are those of an AllReduce") {
  const std::vector<int> x(1 << 16, 1);
  const auto n_steps = [&x](std::int64_t p, std::size_t N = 1 << 16) {
    return tree_reduce(std::span<const int>(x).first(N), p, std::plus<int>()).n_steps;
  };
  CHECK(n_steps(1) == 65535);
  CHECK(n_steps(2) == 32768);
  CHECK(n_steps(1024) == n_steps(1, 64) + n_steps(1024, 1024));
  CHECK(n_steps(1024, 1024) == 10);
  CHECK(n_steps(2048, 2048) == 11);
  CHECK(n_steps(1 << 20) == 16);
}

TEST_CASE("tree_reduce: the order is kept, so the operator need not commute") {
  for (std::size_t N = 1; N <= 26; ++N) {
    std::vector<std::string> letters;
    for (std::size_t a = 0; a < N; ++a) letters.push_back(std::string(1, static_cast<char>('a' + a)));
    for (std::int64_t p = 1; p <= 30; ++p) {
      const auto got = tree_reduce(std::span<const std::string>(letters), p, std::plus<std::string>());
      CHECK(got.value == std::string("abcdefghijklmnopqrstuvwxyz").substr(0, N));
    }
  }
}

TEST_CASE("tree_reduce: no elements or no workers is an error") {
  const std::vector<int> one{1};
  CHECK_INVALID(tree_reduce(std::span<const int>(), 2, std::plus<int>()), "tree_reduce: no elements");
  CHECK_INVALID(tree_reduce(std::span<const int>(one), 0, std::plus<int>()), "tree_reduce: 0 workers");
  CHECK(tree_reduce(std::span<const int>(one), 9, std::plus<int>()).n_steps == 0);
}
