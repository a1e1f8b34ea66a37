// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The collectives alone, with an operator for which order matters (section 5).
#include "distributed/transport/collectives.hpp"

#include <numeric>

#include "tests/support/decoding.hpp"
#include "distributed/transport/thread_transport.hpp"

namespace tree_attn::test {
namespace {

constexpr double kTimeout = 20;

/// Maps x -> a x + b modulo a prime, composed left to right: associative, exact in F32, and not commutative.
constexpr int kPrime = 1009;
void compose(std::span<float> left, std::span<const float> right) {
  const auto mod = [](float x) { return static_cast<float>(static_cast<int>(x) % kPrime); };
  for (std::size_t i = 0; i < left.size(); i += 2) {
    left[i + 1] = mod(right[i] * left[i + 1] + right[i + 1]);
    left[i] = mod(right[i] * left[i]);
  }
}

/// What the place of the row contributes: two maps.
std::vector<float> contribution(int place) {
  const auto x = static_cast<float>(place);
  return {x + 2, 3 * x + 1, 2 * x + 3, 7 * x};
}

/// The states of the keys [begin, end) of a fixed sequence, two rows.
Forest<float> forest_of(std::int64_t begin, std::int64_t end) {
  Forest<float> forest(2, 1);
  for (std::int64_t a = begin; a < end; ++a) {
    const auto x = static_cast<float>(a);
    float* states = forest.slot();
    for (int row = 0; row < 2; ++row) set_key(states + 3 * row, std::sin(x + static_cast<float>(row)), &x, 1);
    forest.push({0, a});
  }
  return forest;
}

}  // namespace

/// The operators of the decoders are commutative in bits, so only here does the order of operands show.
/// @tested{thm_1, Thm. 1}
TEST_CASE("all_reduce: every rank ends with the contributions in row order, for an operator that does not commute") {
  for (int p = 1; p <= 17; ++p) {
    for (const Topology& topology : groupings(p)) {
      std::vector<float> expected = contribution(0);
      for (int place = 1; place < p; ++place) compose(expected, contribution(place));
      std::vector<std::vector<float>> ended(static_cast<std::size_t>(p));
      run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
        std::vector<float> numbers = contribution(topology.place_of(transport.rank()));
        all_reduce(transport, numbers, compose);
        ended[static_cast<std::size_t>(transport.rank())] = numbers;
      });
      CAPTURE(p);
      for (const std::vector<float>& numbers : ended) CHECK(numbers == expected);
    }
  }
}

TEST_CASE("forests: gathered, passed around the ring or reduced, they join to the forest of the whole") {
  std::mt19937 random(3);
  for (int p = 1; p <= 9; ++p) {
    std::vector<std::int64_t> lengths;
    for (int place = 0; place < p; ++place) lengths.push_back(static_cast<std::int64_t>(random() % 12));
    const std::vector<Run> runs = runs_of_lengths(lengths);
    Forest<float> expected = forest_of(0, runs.back().end);
    for (const Topology& topology : groupings(p)) {
      std::vector<Forest<float>> ended(static_cast<std::size_t>(3 * p), Forest<float>(2, 1));
      run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
        const int place = topology.place_of(transport.rank());
        const Run run = runs[static_cast<std::size_t>(place)];
        const Forest<float> mine = forest_of(run.begin, run.end);
        const auto mine_of = [&](int i) -> Forest<float>& {
          return ended[static_cast<std::size_t>(3 * transport.rank() + i)];
        };
        mine_of(0) = all_gather_forest(transport, runs, mine);
        mine_of(1) = ring_gather_forest(transport, runs, mine);
        mine_of(2) = mine;
        reduce_forest(transport, topology.row(), runs, butterfly(p, place), mine_of(2));
      });
      CAPTURE(p);
      for (const Forest<float>& forest : ended) {
        CHECK(forest.subtrees() == expected.subtrees());
        CHECK(same_bits(forest.states(), expected.states()));
      }
    }
  }
}

TEST_CASE("broadcast: the first member's numbers reach every member of the group, and nobody else") {
  for (int p = 1; p <= 9; ++p) {
    // The group is every other rank, last one first.
    std::vector<int> group;
    for (int rank = p - 1; rank >= 0; rank -= 2) group.push_back(rank);
    std::vector<float> ended(static_cast<std::size_t>(p));
    run_threads(Topology::pretend(p, 2), kTimeout, [&](ThreadTransport& transport) {
      std::vector<float> numbers{static_cast<float>(transport.rank())};
      if (std::find(group.begin(), group.end(), transport.rank()) != group.end()) broadcast(transport, group, numbers);
      ended[static_cast<std::size_t>(transport.rank())] = numbers[0];
    });
    for (int rank = 0; rank < p; ++rank) {
      const bool is_member = (p - 1 - rank) % 2 == 0;
      CHECK(ended[static_cast<std::size_t>(rank)] == static_cast<float>(is_member ? p - 1 : rank));
    }
  }
}

}  // namespace tree_attn::test
