// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans carried out alone: the exchanges that algorithms share, with an operator for which order matters (section
/// 5).
#include "tree_attn/distributed/decoders/host_fabric.hpp"
#include "tree_attn/distributed/plan/plan_builder.hpp"
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/tests/distributed/decoders/forest_of.hpp"
#include "tree_attn/tests/support/decoding.hpp"
#include "tree_attn/tests/support/in_place_transport.hpp"

#include <random>

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

/// Combines by composing, whatever the operator.
class ComposingFabric : public HostFabric {
 public:
  using HostFabric::HostFabric;
  using HostFabric::run;
  void run(const Combine& combine) {
    settle();
    for (const auto& [left, right] : combine.pairs) compose(elements({left, combine.n}), elements({right, combine.n}));
  }
};

/// What the rank with this index contributes: two maps.
std::vector<float> contribution(int index) {
  const auto x = static_cast<float>(index);
  return {x + 2, 3 * x + 1, 2 * x + 3, 7 * x};
}

}  // namespace

/// The operators of the decoders are commutative in bits, so only here does the order of operands show.
/// @tested{thm_1, Thm. 1}
TEST_CASE("all_reduce: every rank ends with the contributions in rank order, for an operator that does not commute") {
  for (int p = 1; p <= 17; ++p) {
    for (const Topology& topology : groupings(p)) {
      std::vector<float> expected = contribution(0);
      for (int index = 1; index < p; ++index) compose(expected, contribution(index));
      std::vector<std::vector<float>> ended(static_cast<std::size_t>(p));
      run_threads(topology, kTimeout, [&](ThreadTransport& inner) {
        InPlaceTransport transport(inner);
        // Two blocks of two rows each.
        PlanBuilder builder;
        const Blocks mine = builder.allocate(kScalarBlock, 2);
        const Blocks result = builder.all_reduce(topology, transport.rank(), mine, Combine::Operator::kAdd);
        const Plan plan = builder.take();
        ComposingFabric fabric(transport, plan, 2, 1);
        std::ranges::copy(contribution(topology.index_of(transport.rank())), fabric.elements(mine).begin());
        execute(plan, fabric);
        const std::span<const float> got = fabric.elements(result);
        ended[static_cast<std::size_t>(transport.rank())].assign(got.begin(), got.end());
      });
      CAPTURE(p);
      for (const std::vector<float>& elements : ended) CHECK(elements == expected);
    }
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("plans: forests of any cut, empty ranges included, end as the output of the forest of the whole") {
  std::mt19937 random(3);
  int n_plans = 0;
  const auto check = [&](std::span<const std::int64_t> lengths) {
    const int p = static_cast<int>(lengths.size());
    const std::vector<KeyRange> ranges = ranges_of_lengths(lengths);
    Forest<float> whole = forest_of(0, ranges.back().end, 2, 1);
    const DecodeOutput expected = finish_rows(whole.fold(), 2, 1);
    for (const Topology& topology : groupings(p)) {
      for (const Algorithm& algorithm : algorithms()) {
        const auto* plan_of = std::get_if<PlanOf>(&algorithm.exchange);
        if (plan_of == nullptr || !algorithm.keeps_bits) continue;
        // Messages of all rows, and of slices.
        for (const std::int64_t slice_bytes : {kMpiNetwork.slice_bytes, std::int64_t{1}}) {
          ++n_plans;
          std::vector<DecodeOutput> ended(static_cast<std::size_t>(p));
          run_threads(topology, kTimeout, [&](ThreadTransport& inner) {
            InPlaceTransport transport(inner);
            const KeyRange range = topology.range_of(transport.rank(), ranges);
            const Plan plan =
                (*plan_of)(topology, transport.rank(), ranges, {.slice_bytes = slice_bytes, .n_rows = 2, .d_v = 1});
            HostFabric fabric(transport, plan, 2, 1);
            // Nothing of an earlier step is left, and the states that a rank has decoded are read where they are.
            fabric.step(forest_of(range.begin, range.end, 2, 1, 1).states());
            const Forest<float> own = forest_of(range.begin, range.end, 2, 1);
            ended[static_cast<std::size_t>(transport.rank())] = fabric.step(own.states()).copy();
            if (!std::ranges::equal(own.states(), forest_of(range.begin, range.end, 2, 1).states()))
              throw std::logic_error("a plan writes into the states of the decode");
          });
          INFO(algorithm.name << " on " << p << " ranks, slices of " << slice_bytes << " bytes");
          for (const DecodeOutput& output : ended) CHECK(same_bits(output, expected));
        }
      }
    }
  };
  for (std::int64_t n = 0; n < 12; ++n) check({{n}});
  for (int p = 2; p <= 17; ++p) {
    std::vector<std::int64_t> lengths;
    for (int index = 0; index < p; ++index) lengths.push_back(static_cast<std::int64_t>(random() % 12));
    check(lengths);
  }
  CHECK(n_plans > 400);
}

TEST_CASE("broadcast: the blocks of the first member reach every member, and no other rank") {
  for (int p = 1; p <= 9; ++p) {
    // The members are every other rank, last one first.
    std::vector<int> members;
    for (int rank = p - 1; rank >= 0; rank -= 2) members.push_back(rank);
    std::vector<float> ended(static_cast<std::size_t>(p));
    run_threads(Topology::pretend(p, 2), kTimeout, [&](ThreadTransport& inner) {
      InPlaceTransport transport(inner);
      PlanBuilder builder;
      const Blocks block = builder.allocate(kScalarBlock);
      const auto found = std::find(members.begin(), members.end(), transport.rank());
      if (found != members.end()) builder.broadcast(members, static_cast<int>(found - members.begin()), block);
      const Plan plan = builder.take();
      HostFabric fabric(transport, plan, 1, 1);
      fabric.elements(block)[0] = static_cast<float>(transport.rank());
      execute(plan, fabric);
      ended[static_cast<std::size_t>(transport.rank())] = fabric.elements(block)[0];
    });
    for (int rank = 0; rank < p; ++rank) {
      const bool is_member = (p - 1 - rank) % 2 == 0;
      CHECK(ended[static_cast<std::size_t>(rank)] == static_cast<float>(is_member ? p - 1 : rank));
    }
  }
}

TEST_CASE("plans: a forest in blocks that are apart is copied before it is sent, and one in adjacent blocks is not") {
  PlanBuilder builder;
  const BlockForest left = builder.own({0, 3});  // [0, 2), [2, 3)
  CHECK(builder.packed(left).blocks == left.blocks);
  builder.exchange();
  const BlockForest right = builder.receive(1, KeyRange{3, 5});  // [3, 4), [4, 5): joined to [0, 4), [4, 5)
  const BlockForest joined = builder.join(left, right);
  CHECK(joined.subtrees == cover(0, 5));
  CHECK(joined.blocks == std::vector<Block>{0, 3});
  CHECK(builder.packed(joined).blocks == std::vector<Block>{4, 5});
  const Plan plan = builder.take();
  REQUIRE(plan.operations.size() == 3);
  CHECK(std::get<Combine>(plan.operations[1]).pairs.size() == 2);
  CHECK(std::get<Copy>(plan.operations[2]).pairs.size() == 2);
  CHECK(plan.n_own == 2);
  CHECK(plan.offsets(3, 5).back() == 6 * 3 * 7);
}

TEST_CASE("plans: the last merge is left to the finish, unless another operation comes between") {
  const auto operations = [](std::int64_t n_keys, const auto& between) {
    PlanBuilder builder;
    const Block root = builder.root(builder.own({0, n_keys}));
    between(builder, root);
    builder.finish(root);
    return builder.take().operations;
  };
  const auto nothing = [](PlanBuilder&, Block) {};
  // One subtree, two and three: no merge, one, and one after another.
  std::vector<Operation> found = operations(4, nothing);
  REQUIRE(found.size() == 1);
  CHECK(!std::get<Finish>(found[0]).right);
  found = operations(3, nothing);
  REQUIRE(found.size() == 1);
  CHECK(std::get<Finish>(found[0]).state == 0);
  CHECK(std::get<Finish>(found[0]).right == 1);
  found = operations(7, nothing);
  REQUIRE(found.size() == 2);
  CHECK(std::get<Combine>(found[0]).pairs.size() == 1);
  CHECK(std::get<Finish>(found[1]).right == 1);
  // What is sent in between must hold the merged state.
  found = operations(3, [](PlanBuilder& builder, Block root) {
    builder.exchange();
    builder.send(1, Blocks{root, 1});
  });
  REQUIRE(found.size() == 3);
  CHECK(std::get<Combine>(found[0]).pairs.size() == 1);
  CHECK(!std::get<Finish>(found[2]).right);
}

TEST_CASE("plans: states of another range are refused") {
  const Topology topology = Topology::pretend(1, 1);
  const KeyRange range{0, 3};
  const Plan plan = std::get<PlanOf>(find_algorithm("gather").exchange)(topology, 0, {&range, 1}, {});
  run_threads(topology, kTimeout, [&](ThreadTransport& inner) {
    InPlaceTransport transport(inner);
    HostFabric fabric(transport, plan, 2, 1);
    CHECK_THROWS_AS(fabric.step(forest_of(0, 4, 2, 1).states()), std::logic_error);
  });
}

}  // namespace tree_attn::test
