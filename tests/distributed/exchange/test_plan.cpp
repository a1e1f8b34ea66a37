// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plans carried out alone: the exchanges that algorithms share, in an order that shows (section 5).
#include "distributed/exchange/decoder.hpp"
#include "distributed/exchange/plan_builder.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/state/forest.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/plan_runner.hpp"
#include "tests/support/sanitized.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <mutex>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace tree_attn::test::plan_test {
namespace {

constexpr double kTimeout = 30;
constexpr std::int64_t kRows = 3, kValueDim = 2, kNeverCut = std::int64_t{1} << 60;

/// The states of the leaves of a range of a fixed sequence, each with one key. Row 1 has a score of NaN, row 2 an infinite
/// value.
/// @param shift added to the scores: another sequence
Forest<float> forest_of(KeyRange range, float shift = 0) {
  Forest<float> forest(kRows, kValueDim);
  std::vector<float> v(static_cast<std::size_t>(kValueDim));
  for (std::int64_t a = range.begin / kLeafKeys; a < range.end / kLeafKeys; ++a) {
    float* state = forest.next();
    for (std::int64_t row = 0; row < kRows; ++row, state += state_size(kValueDim)) {
      const auto x = static_cast<float>(a + 10 * row);
      for (std::size_t j = 0; j < v.size(); ++j) v[j] = std::cos(static_cast<float>(j + 1) * x);
      if (row == 2 && a == 11) v[0] = HUGE_VALF;
      set_key(state, row == 1 && a == 7 ? NAN : shift + 20 * std::sin(x), v.data(), kValueDim);
    }
    forest.push({kLeafLevel, a});
  }
  return forest;
}

/// The algorithms that have plans. Where these have a radix: all up to 8, between nodes and inside them, for messages of all
/// rows and of slices.
std::vector<std::pair<const Algorithm*, PlanOptions>> algorithms_and_options() {
  std::vector<std::pair<const Algorithm*, PlanOptions>> all;
  for (const Algorithm& algorithm : algorithms()) {
    if (!std::holds_alternative<PlanOf>(algorithm.exchange)) continue;
    for (int radix = 2; radix <= (algorithm.radix == nullptr ? 2 : 8); ++radix) {
      PlanOptions options{.radix = radix, .slice_bytes = 0, .n_rows = kRows, .d_v = kValueDim};
      all.emplace_back(&algorithm, options);
      if (algorithm.radix == nullptr) continue;
      options.slice_bytes = kNeverCut;
      for (const int node_radix : {0, 2, 3}) options.node_radix = node_radix, all.emplace_back(&algorithm, options);
    }
  }
  return all;
}

}  // namespace

/// The operators of the decoders are commutative in bits, but for the maximum of two NaN, which is the left one.
/// @tested{thm_1, Thm. 1}
TEST_CASE("all_reduce: every rank ends with the contributions in rank order, each counted once") {
  const auto lower = std::bit_cast<float>(0x7FC00001u), higher = std::bit_cast<float>(0x7FC00002u);
  for (int p = 1; p <= 17; ++p) {
    for (const Topology& topology : groupings(p)) {
      CAPTURE(p);
      std::vector<std::vector<float>> ended(static_cast<std::size_t>(p));
      run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
        // Blocks with one row for each pair of ranks: two blocks for the maximum, two for the sum.
        PlanBuilder builder;
        const Blocks mine = builder.allocate(kScalarBlock, 2), ones = builder.allocate(kScalarBlock, 2);
        const Blocks largest = builder.all_reduce(topology, transport.rank(), mine, Combine::Operator::kMax),
                     sum = builder.all_reduce(topology, transport.rank(), ones, Combine::Operator::kAdd);
        Runner runner = runner_of(transport, builder.take(), p * p, 1);
        const int me = topology.index_of(transport.rank());
        for (int row = 0; row < 2 * p * p; ++row) {
          const auto [first, second] = std::minmax({row / p % p, row % p});
          runner.elements(mine)[static_cast<std::size_t>(row)] = me == first ? lower : me == second ? higher : 0.0f;
        }
        std::ranges::fill(runner.elements(ones), 1.0f);
        runner.step({});
        std::vector<float>& got = ended[static_cast<std::size_t>(transport.rank())];
        for (const Blocks& result : {largest, sum}) std::ranges::copy(runner.elements(result), std::back_inserter(got));
      });
      std::vector<float> expected(static_cast<std::size_t>(2 * p * p), lower);
      expected.resize(2 * expected.size(), static_cast<float>(p));
      for (const std::vector<float>& elements : ended) CHECK(same_bits(elements, expected));
    }
  }
}

/// Host and device have the same bits for every plan, those of the whole where an algorithm keeps its bits, and count what
/// is predicted.
/// @tested{thm_1, Thm. 1}
TEST_CASE("plans: forests of any cut, empty ranges included, end as the output of the forest of the whole, on devices too") {
  const WorkloadShape shape{{.heads = kRows, .kv_heads = kRows, .head_dim = 4, .value_dim = kValueDim}, 0, {}};
  std::mt19937 random(3);
  const std::vector<std::pair<const Algorithm*, PlanOptions>> all = algorithms_and_options();
  int n_copies = 0, n_sliced = 0, n_empty = 0;
  const auto check = [&](std::vector<std::int64_t> lengths) {  // in leaves
    const int p = static_cast<int>(lengths.size());
    for (std::int64_t& n : lengths) n *= kLeafKeys;
    const std::vector<KeyRange> ranges = ranges_of_lengths(lengths);
    n_empty += n_holders(ranges) < p;
    Forest<float> whole = forest_of({0, ranges.back().end});
    const DecodeOutput expected = finish_rows(whole.fold(), kRows, kValueDim);
    for (const Topology& topology : groupings(p)) {
      std::vector<int> n_wrong(all.size());
      std::vector<Traffic> counted(all.size());
      std::mutex mutex;
      run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
        const KeyRange range = topology.range_of(transport.rank(), ranges);
        const Forest<float> own = forest_of(range), other = forest_of(range, 1);
        const std::vector<float> before(own.states().begin(), own.states().end());
        for (std::size_t i = 0; i < all.size(); ++i) {
          const auto& [algorithm, options] = all[i];
          const Plan plan = std::get<PlanOf>(algorithm->exchange)(topology, transport.rank(), ranges, options);
          Runner runner = runner_of(transport, plan, kRows, kValueDim);
          // Nothing of an earlier step is left, and the states that a rank has decoded stay as they are.
          runner.step(other.states());
          transport.clear_traffic();
          const DecodeOutput output = runner.step(own.states()).copy();
          const Traffic of_step = transport.traffic();
          bool is_right = (!algorithm->keeps_bits || same_bits(output, expected)) && same_bits(own.states(), before);
          if (p <= 6 && options.radix <= 3) {
            Runner device = runner_of(transport, plan, kRows, kValueDim, emulated::make_blocks);
            emulated::DeviceBuffer<float> states(std::max<std::int64_t>(std::ssize(before), 1));
            states.upload(before);
            transport.clear_traffic();
            is_right = same_bits(device.step({states.data(), before.size()}).copy(), output) && is_right;
            is_right = transport.traffic() == of_step && is_right;
          }
          const std::scoped_lock lock(mutex);
          n_wrong[i] += !is_right;
          add(counted[i], of_step);
          for (const Operation& operation : plan.operations) n_copies += std::holds_alternative<Copy>(operation);
        }
      });
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto& [algorithm, options] = all[i];
        INFO(algorithm->name << ", " << (Layout{topology, ranges}.text()) << ", radix " << options.radix << " and "
                             << options.node_radix << ", slices above " << options.slice_limit());
        CHECK(n_wrong[i] == 0);
        const Prediction predicted = predict(*algorithm, shape, topology, ranges, options);
        check_predicted(counted[i], predicted);
        PlanOptions whole_rows = options;
        whole_rows.slice_bytes = kNeverCut;
        n_sliced += predicted.collectives > predict(*algorithm, shape, topology, ranges, whole_rows).collectives;
      }
    }
  };
  for (std::int64_t n = 0; n < 12; ++n) check({{n}});
  check({{0, 0, 0}});
  for (int p = 2; p <= (kIsSanitized ? 6 : 17); ++p) {
    std::vector<std::int64_t> lengths;
    for (int index = 0; index < p; ++index)
      lengths.push_back(std::max<std::int64_t>(0, static_cast<std::int64_t>(random() % 12) - 3));
    check(lengths);
  }
  CHECK(n_sliced > (kIsSanitized ? 20 : 100));
  CHECK(n_copies > 0);
  CHECK(n_empty > 4);
}

TEST_CASE("broadcast: the blocks of the first member reach every member, and no other rank") {
  for (int p = 1; p <= 9; ++p) {
    // The members are every other rank, last one first.
    std::vector<int> members;
    for (int rank = p - 1; rank >= 0; rank -= 2) members.push_back(rank);
    std::vector<float> ended(static_cast<std::size_t>(p));
    run_threads(Topology::pretend(p, 2), kTimeout, [&](ThreadTransport& transport) {
      PlanBuilder builder;
      const Blocks block = builder.allocate(kScalarBlock);
      const auto found = std::find(members.begin(), members.end(), transport.rank());
      if (found != members.end()) builder.broadcast(members, static_cast<int>(found - members.begin()), block);
      Runner runner = runner_of(transport, builder.take(), 1, 1);
      runner.elements(block)[0] = static_cast<float>(transport.rank());
      runner.step({});
      ended[static_cast<std::size_t>(transport.rank())] = runner.elements(block)[0];
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
  run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
    Runner runner = runner_of(transport, plan, kRows, kValueDim);
    CHECK_THROWS_AS(runner.step(forest_of({0, 4 * kLeafKeys}).states()), std::logic_error);
  });
}

}  // namespace tree_attn::test::plan_test
