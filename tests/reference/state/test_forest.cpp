// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The canonical tree: covers, carries, and bits that are independent of the cut.
#include "reference/state/forest.hpp"
#include "tests/support/same_bits.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <random>

namespace {

using namespace tree_attn;
using tree_attn::test::same_bits;

constexpr std::int64_t kValueDim = 3;

/// The forest of the keys [begin, end) of a fixed random problem.
Forest<float> forest_of(std::int64_t begin, std::int64_t end) {
  Forest<float> forest(1, kValueDim);
  for (std::int64_t a = begin; a < end; ++a) {
    std::mt19937 random(static_cast<unsigned>(a) + 7u);
    std::normal_distribution<float> normal(0, 5);
    const float s = normal(random);
    const float v[kValueDim] = {normal(random), normal(random), normal(random)};
    set_key(forest.next(), s, v, kValueDim);
    forest.push({0, a});
  }
  return forest;
}

}  // namespace

TEST_CASE("cover: subtrees are aligned, adjacent, and as few as the binary digits allow") {
  for (std::int64_t begin = 0; begin < 40; ++begin) {
    for (std::int64_t end = begin; end < 40; ++end) {
      std::int64_t at = begin;
      for (const Subtree& subtree : cover(begin, end)) {
        CHECK(subtree.begin() == at);
        CHECK(subtree.begin() % (std::int64_t{1} << subtree.level) == 0);
        at = subtree.end();
      }
      CHECK(at == end);
    }
  }
  CHECK(cover(0, 8).size() == 1);
  CHECK(cover(8, 16).size() == 1);
  CHECK(cover(1, 8).size() == 3);
  CHECK(cover(5, 5).empty());
}

TEST_CASE("forest: pushing keys one by one gives the cover of the range") {
  for (std::int64_t begin : {0, 1, 5, 8}) {
    for (std::int64_t end : {8, 13, 31, 32, 33}) CHECK(forest_of(begin, end).subtrees() == cover(begin, end));
  }
}

TEST_CASE("forest: any cut of the range gives the same bits at the root") {
  for (std::int64_t n : {1, 2, 7, 32, 33, 61}) {
    Forest<float> whole = forest_of(0, n);
    const std::vector<float> root(whole.fold().begin(), whole.fold().end());
    for (std::int64_t cut = 0; cut <= n; ++cut) {
      for (std::int64_t second = cut; second <= n; second += 5) {
        Forest<float> joined = forest_of(0, cut);
        const Forest<float> middle = forest_of(cut, second), last = forest_of(second, n);
        joined.append(middle.subtrees(), middle.states().data());
        joined.append(last.subtrees(), last.states().data());
        CHECK(same_bits(joined.fold(), root));
      }
    }
  }
}

TEST_CASE("forest: positions without a key change no bit") {
  Forest<float> short_run = forest_of(0, 11);
  Forest<float> padded = forest_of(0, 11);
  for (std::int64_t a = 11; a < 64; ++a) {
    set_empty(padded.next(), kValueDim);
    padded.push({0, a});
  }
  CHECK(padded.subtrees().size() == 1);
  CHECK(same_bits(padded.fold(), short_run.fold()));
}

TEST_CASE("forest: an empty forest folds to the empty state") {
  Forest<float> forest(2, kValueDim);
  const std::span<const float> states = forest.fold();
  CHECK(is_empty(states.data()));
  CHECK(is_empty(states.data() + state_size(kValueDim)));
}
