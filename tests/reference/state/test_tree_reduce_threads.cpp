// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Thm. 1 on threads: the value, bits and steps of the reduction in one thread.
#include "tree_attn/reference/state/tree_reduce_threads.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace tree_attn;

/// @tested{thm_1, Thm. 1}
TEST_CASE("tree_reduce_threads: value, steps and workers are those of tree_reduce, and the order is kept") {
  for (std::size_t N = 1; N <= 26; ++N) {
    std::vector<std::string> letters;
    for (std::size_t a = 0; a < N; ++a) letters.push_back(std::string(1, static_cast<char>('a' + a)));
    for (const std::int64_t p : {1, 2, 3, 4, 7, 8, 13, 30}) {
      CAPTURE(N);
      CAPTURE(p);
      const auto want = tree_reduce(std::span<const std::string>(letters), p, std::plus<std::string>());
      const auto got = tree_reduce_threads(std::span<const std::string>(letters), p, std::plus<std::string>());
      CHECK(got.value == want.value);
      CHECK(got.n_steps == want.n_steps);
      CHECK(got.n_workers == want.n_workers);
    }
  }
}

TEST_CASE("tree_reduce_threads: every chunk is reduced on its own thread") {
  const std::vector<int> x(64, 1);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  // Wait in the first operation until all workers have reached theirs. With fewer threads than workers this would not
  // return.
  std::atomic<int> n_waiting = 0;
  const auto op = [&](int a, int b) {
    {
      const std::lock_guard lock(mutex);
      if (threads.insert(std::this_thread::get_id()).second) ++n_waiting;
    }
    while (n_waiting < 8) std::this_thread::yield();
    return a + b;
  };
  CHECK(tree_reduce_threads(std::span<const int>(x), 8, op).value == 64);
  CHECK(threads.size() == 8);
  CHECK(threads.count(std::this_thread::get_id()) == 0);
}

TEST_CASE("tree_reduce_threads: an exception of the operator on any worker is rethrown, and no thread waits forever") {
  std::vector<int> x(64);
  std::iota(x.begin(), x.end(), 0);
  for (const int bad : {1, 9, 33, 63}) {
    const auto op = [bad](int a, int b) {
      if (b == bad) throw std::runtime_error("element " + std::to_string(bad));
      return std::min(a, b);
    };
    CHECK_THROWS_WITH_AS(tree_reduce_threads(std::span<const int>(x), 8, op), ("element " + std::to_string(bad)).c_str(),
                         std::runtime_error);
  }
}

TEST_CASE("tree_reduce_threads: no elements or no workers is an error") {
  const std::vector<int> one{1};
  CHECK_THROWS_WITH_AS(tree_reduce_threads(std::span<const int>(), 2, std::plus<int>()), "tree_reduce_threads: no elements",
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(tree_reduce_threads(std::span<const int>(one), 0, std::plus<int>()), "tree_reduce_threads: 0 workers",
                       std::invalid_argument);
  CHECK(tree_reduce_threads(std::span<const int>(one), 9, std::plus<int>()).n_steps == 0);
}
