// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief All algorithms against the oracle: shapes, storage types, few keys, empty shards (Alg. 3, section 5).
#include "tests/support/decoding.hpp"

#include <cmath>

namespace tree_attn::test {
namespace {

/// Shards as even as leaves allow, for two groupings into nodes.
std::vector<Layout> even_layouts(std::int64_t n_keys, int p) {
  return {{mixed_grouping(p), even_ranges(n_keys, p, kLeafKeys)},
          {Topology::pretend(p, 2), even_ranges(n_keys, p, kLeafKeys)}};
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{eq_7, eq. (7)}
TEST_CASE("decoders: every head size, values of another size, grouped heads, several queries") {
  const Axes shapes[] = {
      {.heads = 4, .kv_heads = 4, .head_dim = 1, .value_dim = 1, .n_keys = 530},
      {.heads = 6, .kv_heads = 3, .head_dim = 46, .value_dim = 59, .n_keys = 497},
      {.batch = 2, .heads = 4, .kv_heads = 1, .head_dim = 59, .value_dim = 46, .n_queries = 3, .n_keys = 449},
      {.heads = 2, .kv_heads = 2, .head_dim = 111, .value_dim = 1, .n_keys = 600},
      {.heads = 4, .kv_heads = 2, .head_dim = 512, .value_dim = 512, .n_keys = 470},
      {.batch = 3, .heads = 8, .kv_heads = 2, .head_dim = 16, .value_dim = 24, .n_queries = 2, .n_keys = 513},
  };
  for (RankGroup* rank_group : rank_groups({1, 2, 3, 5, 8})) {
    unsigned seed = 100;
    for (Axes axes : shapes) {
      for (const DType dtype : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
        axes.dtype = dtype;
        CAPTURE(seed);
        CAPTURE(name_of(dtype));
        const auto workload = normal_workload(seed++, axes);
        const Layout layout{mixed_grouping(rank_group->size()), even_ranges(axes.n_keys, rank_group->size(), kLeafKeys)};
        REQUIRE(n_holders(layout.ranges) == rank_group->size());
        check_all(*rank_group, *workload, {layout});
      }
    }
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("decoders: no key and one, p - 1 and p leaves, and a key more") {
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    for (const std::int64_t n_keys :
         {std::int64_t{0}, std::int64_t{1}, (p - 1) * kLeafKeys, p * kLeafKeys, p * kLeafKeys + 1}) {
      CAPTURE(n_keys);
      const Axes axes{.batch = 2, .head_dim = 10, .value_dim = 7, .n_keys = n_keys};
      const auto workload = normal_workload(300 + static_cast<unsigned>(n_keys), axes);
      const std::vector<Layout> layouts = even_layouts(n_keys, p);
      REQUIRE(n_holders(layouts[0].ranges) == std::min<std::int64_t>((n_keys + kLeafKeys - 1) / kLeafKeys, p));
      check_all(*rank_group, *workload, layouts, [&](const Algorithm&, const DecodeOutput& output) {
        if (n_keys > 1) return;
        // No key: z = 0, lse = -inf. One key: z = v but for two roundings; lse, its score, is held against the oracle.
        for (std::int64_t r = 0; r < 8; ++r) {
          std::vector<float> z(7, 0.0f);
          if (n_keys == 1)
            load_row(workload->v(), r / 4, r % 4 / 2, 0, z.data());
          else
            CHECK(output.lse[static_cast<std::size_t>(r)] == -std::numeric_limits<float>::infinity());
          for (std::size_t j = 0; j < 7; ++j)
            CHECK(std::abs(output.out[static_cast<std::size_t>(r) * 7 + j] - z[j]) <= 0x1p-22f * std::abs(z[j]));
        }
      });
    }
  }
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("overflow: products q.k beyond F32 whose scores are not") {
  for (const auto& [scale, size] : {std::pair{1e-38, 1e19f}, {-3e-38, 1e19f}, {1e-40, 1e20f}}) {
    CAPTURE(scale);
    const Axes axes{.batch = 3, .head_dim = 6, .value_dim = 5, .n_queries = 2, .n_keys = 7 * kLeafKeys + 45};
    std::mt19937 random(1300);
    Tensor q = normal_tensor(random, axes.q(), DType::F32, size), k = normal_tensor(random, axes.k(), DType::F32, size);
    const auto workload = workload_of(std::move(q), std::move(k), normal_tensor(random, axes.v()), {}, scale);
    for (RankGroup* rank_group : rank_groups({1, 2, 3, 5, 8})) {
      const int p = rank_group->size();
      check_all(*rank_group, *workload, {{mixed_grouping(p), even_ranges(axes.n_keys, p, kLeafKeys)}},
                [](const Algorithm&, const DecodeOutput& output) {
                  for (const auto* numbers : {&output.out, &output.lse})
                    CHECK(std::ranges::all_of(*numbers, [](float x) { return std::isfinite(x); }));
                });
    }
  }
}

/// The numerator of the empty set is -0, the one number that changes no other when added.
TEST_CASE("decoders: values of -0 stay -0 beside empty shards and keys that are not in use") {
  const Axes axes{.batch = 2, .head_dim = 6, .value_dim = 5, .n_keys = 400};
  std::mt19937 random(450);
  Tensor q = normal_tensor(random, axes.q()), k = normal_tensor(random, axes.k());
  const Tensor v(std::vector<float>(static_cast<std::size_t>(n_elements(axes.v())), -0.0f), axes.v());
  const auto workload = workload_of(std::move(q), std::move(k), v, std::vector<std::int64_t>{400, 3});
  for (RankGroup* rank_group : rank_groups({1, 2, 3, 5, 8})) {
    const int p = rank_group->size();
    std::vector<std::int64_t> only(static_cast<std::size_t>(p), 0);
    only[static_cast<std::size_t>(p / 2)] = 400;
    check_all(*rank_group, *workload,
              {{mixed_grouping(p), ranges_of_lengths(only)}, {Topology::pretend(p, 2), even_ranges(400, p, kLeafKeys)}},
              [](const Algorithm& algorithm, const DecodeOutput& output) {
                // Where outputs are weighed by their lse, an empty shard adds +0.
                if (algorithm.rounding.weight_error_per_lse > 0) return;
                CHECK(std::all_of(output.out.begin(), output.out.end(), [](float z) { return z == 0 && std::signbit(z); }));
              });
  }
}

TEST_CASE("decoders: no keys, no heads, no batch, no components: an empty result and no hang") {
  for (RankGroup* rank_group : rank_groups({1, 2, 5})) {
    const Axes empties[] = {
        {.n_keys = 0}, {.batch = 0, .n_keys = 9}, {.heads = 0, .kv_heads = 0, .n_keys = 9}, {.value_dim = 0, .n_keys = 9}};
    for (const Axes& axes : empties) {
      const auto workload = normal_workload(500, axes);
      check_all(*rank_group, *workload, even_layouts(axes.n_keys, rank_group->size()));
    }
  }
}

}  // namespace tree_attn::test
