// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bits: the same on every rank, and for canonical algorithms the same for every layout, batch and number of steps.
#include "tests/support/decoding.hpp"

#include <limits>
#include <random>

namespace tree_attn::test {
/// check_all() compares with the bits of one rank that holds everything, so with those of every other number of ranks too.
/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("decoders: canonical bits for every layout and every grouping into nodes") {
  std::mt19937 random(2408);
  const auto workload = normal_workload(600, {.head_dim = 12, .value_dim = 9, .n_keys = 333});
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    std::vector<Layout> layouts;
    for (const Topology& topology : groupings(p)) {
      layouts.push_back({topology, even_ranges(333, p, kLeafKeys)});
      layouts.push_back({topology, uneven_ranges(random, 333, p)});
      layouts.push_back({topology, uneven_ranges(random, 333, p), false});
    }
    REQUIRE(n_holders(layouts[0].ranges) == std::min(p, 6));
    check_all(*rank_group, *workload, layouts);
  }
}

TEST_CASE("decoders: NaN of any sign and payload leaves every rank with the same bits, those of the one quiet NaN") {
  constexpr std::int64_t kKeys = 512;
  const Axes axes{.heads = 3, .kv_heads = 3, .head_dim = 8, .value_dim = 6, .n_keys = kKeys};
  std::mt19937 random(800);
  Tensor q = normal_tensor(random, axes.q()), k = normal_tensor(random, axes.k()), v = normal_tensor(random, axes.v());
  for (std::int64_t a = 0; a < kKeys; a += 5) {
    // Another payload for every one, every other one negative. Head 0 has them in its keys, head 1 in its values.
    const auto nan = std::bit_cast<float>(0x7FC00000u + static_cast<std::uint32_t>(a) + (a % 2 == 0 ? 0x80000000u : 0u));
    k.set(0, 0, a, 3, nan);
    v.set(0, 1, a, a % 6, nan);
  }
  // Head 2 makes its own: +Inf on the first ranks and -Inf on the last.
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (std::int64_t a = 0; a < kKeys; ++a) v.set(0, 2, a, a % 6, a < kKeys / 2 ? kInf : -kInf);
  const auto workload = workload_of(std::move(q), std::move(k), std::move(v));
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    check_all(*rank_group, *workload, {{mixed_grouping(p), even_ranges(kKeys, p, kLeafKeys)}},
              [](const Algorithm&, const DecodeOutput& output) {
                for (std::size_t i = 0; i < 18; ++i) CHECK(std::bit_cast<std::uint32_t>(output.out[i]) == 0x7FC00000u);
                CHECK(std::bit_cast<std::uint32_t>(output.lse[0]) == 0x7FC00000u);
                CHECK((std::isfinite(output.lse[1]) && std::isfinite(output.lse[2])));
              });
  }
}

}  // namespace tree_attn::test
