// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Scores that are finite are finite in every algorithm, though a product on the way is beyond F32 (section 5).
#include "tests/support/decoding.hpp"

#include <cmath>

namespace tree_attn::test::decoders_overflow_test {
namespace {

const Axes kAxes{.batch = 3, .head_dim = 6, .value_dim = 5, .n_queries = 2};

/// q, k and v of normal numbers. @param size deviation of q and k
struct Draft {
  Tensor q, k, v;
};
Draft draft(std::int64_t n_keys, float size = 1) {
  Axes axes = kAxes;
  axes.n_keys = n_keys;
  std::mt19937 random(1300);
  return {normal_tensor(random, axes.q(), DType::F32, size), normal_tensor(random, axes.k(), DType::F32, size),
          normal_tensor(random, axes.v())};
}

/// Checks that all is finite, within the bound and of the same bits everywhere. Ranks hold a leaf, several, or none.
void check_finite(TensorWorkload& workload) {
  DecodeOutput canonical;
  for (RankGroup* rank_group : rank_groups({1, 2, 3, 5, 8})) {
    std::optional<Verifier> verify;
    if (rank_group->has_oracle()) verify.emplace(workload, workload.scale, rank_group->size(), cpu_backend());
    const std::int64_t n_keys = workload.n_keys();
    std::vector<Layout> layouts{{mixed_grouping(rank_group->size()), even_ranges(n_keys, rank_group->size(), kLeafKeys)}};
    if (rank_group->size() == 3)
      layouts.push_back({Topology::pretend(3, 1), ranges_of_lengths(std::vector<std::int64_t>{0, n_keys, 0})});
    for (const Layout& layout : layouts) {
      for (const Algorithm& algorithm : algorithms()) {
        INFO(algorithm.name << ", " << layout.text());
        const std::vector<RankResult> results = decode(*rank_group, algorithm, workload, layout);
        const DecodeOutput& output = results[0].output;
        for (const auto* numbers : {&output.out, &output.lse})
          CHECK(std::ranges::all_of(*numbers, [](float x) { return std::isfinite(x); }));
        if (verify) CHECK((*verify)(algorithm, output).passed);
        for (const RankResult& rank : results) CHECK(same_bits(rank.output, output));
        if (algorithm.keeps_bits && canonical.out.empty()) canonical = output;
        if (algorithm.keeps_bits) CHECK(same_bits(output, canonical));
      }
    }
  }
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("overflow: products q.k beyond F32 whose scores are not") {
  for (const double scale : {1e-38, -3e-38, 1e-40}) {
    CAPTURE(scale);
    const Draft d = draft(7 * kLeafKeys + 45, scale == 1e-40 ? 1e20f : 1e19f);
    check_finite(*workload_of(d.q, d.k, d.v, {}, scale));
  }
}

}  // namespace tree_attn::test::decoders_overflow_test
