// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every smoke case of tests/data/cases.json that is a decode, on every algorithm (Alg. 3).
#include "tests/support/cases.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/sanitized.hpp"

namespace tree_attn::test {
namespace {

void check_case(RankGroup& rank_group, const Case& c) {
  const int p = rank_group.size();
  const auto workload = input_of(c, p);
  const std::vector<KeyRange> ranges = ranges_of(c, p);
  REQUIRE(n_holders(ranges) == std::min<std::int64_t>(p, (workload->n_keys() + kLeafKeys - 1) / kLeafKeys));
  const bool as_it_lies = c.input.find("packed") != std::string::npos || c.input.find("base pointers") != std::string::npos;
  const Layout layout{mixed_grouping(p), ranges, !as_it_lies};
  if (c.overflows()) {
    for (const Algorithm& algorithm : algorithms()) {
      CAPTURE(algorithm.name);
      for (const RankResult& result : decode(rank_group, algorithm, *workload, layout)) {
        CHECK(std::all_of(result.output.out.begin(), result.output.out.end(), [](float z) { return std::isnan(z); }));
        CHECK(std::all_of(result.output.lse.begin(), result.output.lse.end(), [](float lse) { return std::isnan(lse); }));
      }
    }
    return;
  }
  check_all(rank_group, *workload, {layout});
}

}  // namespace

/// A case runs over its own numbers of ranks where there are threads, over those at hand under mpirun. Shards that a case
/// deals out cyclically are neighbouring runs here, for positions have an order. None is left out.
/// @tested{alg_3, Alg. 3}
TEST_CASE("decoders: every smoke case of other projects' suites") {
  const std::vector<Case> cases = cases_of("smoke");
  CHECK(cases.size() > 200);
  std::size_t n_run = 0, n_left_out = 0;
  for (const Case& c : cases) {
    CAPTURE(c.name);
    CAPTURE(c.seed);
    if (kIsSanitized && (n_run + n_left_out) % 4 != 0) {
      ++n_left_out;
      continue;
    }
    const std::vector<RankGroup*> here = rank_groups(c.ranks);
    for (RankGroup* rank_group : here) check_case(*rank_group, c);
    n_run += !here.empty();
  }
  CHECK(n_run + n_left_out == cases.size());
}

}  // namespace tree_attn::test
