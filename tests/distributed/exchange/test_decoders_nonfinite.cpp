// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief NaN and Inf in q, k and v reach the outputs that the formula says, on every algorithm, and no others (eq. (7)).
#include "reference/oracle/attention.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/decoding.hpp"

namespace tree_attn::test {
namespace {

constexpr std::int64_t kKeys = 7 * kLeafKeys + 45;
const Axes kAxes{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 6, .value_dim = 5, .n_queries = 2, .n_keys = kKeys};

/// Tensor that gets the number: always in batch entry 1, in head 1 of its kind, at component 2.
enum class Where { Query, Key, Value };

std::unique_ptr<TensorWorkload> workload_with(Where where, std::int64_t position, float number) {
  std::mt19937 random(900);
  Tensor q = normal_tensor(random, kAxes.q()), k = normal_tensor(random, kAxes.k()), v = normal_tensor(random, kAxes.v());
  if (where == Where::Query) q.set(1, 1, position, 2, number);
  if (where == Where::Key) k.set(1, 1, position, 2, number);
  if (where == Where::Value) v.set(1, 1, position, 2, number);
  return workload_of(std::move(q), std::move(k), std::move(v));
}

/// Checks one array of a result: the oracle's pattern, and the bits of the clean run where its value is that of the
/// clean one.
void check_reach(const std::vector<float>& clean, const std::vector<float>& ours, const std::vector<double>& clean_oracle,
                 const std::vector<double>& oracle) {
  // The numbers themselves are held to the bound elsewhere; this is about which are numbers.
  const Comparison all = compare(ours, oracle, 1e-4, NonFinite::Match);
  CHECK_MESSAGE(all.ok, all.message);
  bool untouched = true;
  for (std::size_t i = 0; i < ours.size(); ++i)
    if (oracle[i] == clean_oracle[i]) untouched = untouched && same_bits(std::span(&ours[i], 1), std::span(&clean[i], 1));
  CHECK(untouched);
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{eq_7, eq. (7)}
TEST_CASE("decoders: NaN and Inf on the first, a middle and the last rank reach their own outputs and no other") {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  for (RankGroup* rank_group : rank_groups({1, 2, 3, 5, 8})) {
    const int p = rank_group->size();
    const Layout layout{mixed_grouping(p), even_ranges(kKeys, p, kLeafKeys)};
    REQUIRE(n_holders(layout.ranges) == p);
    for (const Where where : {Where::Query, Where::Key, Where::Value}) {
      // A query position, or a key of the first, a middle and the last place.
      const std::vector<std::int64_t> positions =
          where == Where::Query ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{0, kKeys / 2, kKeys - 1};
      for (const std::int64_t position : positions) {
        for (const float number : {kNaN, kInf, -kInf}) {
          const auto workload = workload_with(where, position, number);
          // The clean run differs in nothing but the number itself, which would otherwise be the drawn one.
          const auto clean = workload_with(where, position, 0.25f);
          const AttentionResult oracle = attention(workload->query(0), workload->k(), workload->v(), {}),
                                clean_oracle = attention(clean->query(0), clean->k(), clean->v(), {});
          for (const Algorithm& algorithm : algorithms()) {
            INFO(algorithm.name << ", tensor " << static_cast<int>(where) << ", position " << position << ", number "
                                << number << ", " << layout.text());
            const DecodeOutput clean_output = decode(*rank_group, algorithm, *clean, layout)[0].output;
            for (const RankResult& result : decode(*rank_group, algorithm, *workload, layout)) {
              check_reach(clean_output.out, result.output.out, clean_oracle.out, oracle.out);
              check_reach(clean_output.lse, result.output.lse, clean_oracle.lse, oracle.lse);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("decoders: a rank whose scores are all -inf is neutral, bit for bit") {
  for (RankGroup* rank_group : rank_groups({2, 3, 4, 5, 8})) {
    const int p = rank_group->size();
    if (p < 2) continue;
    // Equal aligned shards; the keys of one place have a component of -inf, and all queries are positive there.
    const std::int64_t n_keys = kLeafKeys * p;
    for (const int index : {0, p / 2, p - 1}) {
      const Axes axes{.head_dim = 6, .value_dim = 5, .n_keys = n_keys};
      std::mt19937 random(1000);
      Tensor q = normal_tensor(random, axes.q()), k = normal_tensor(random, axes.k()), v = normal_tensor(random, axes.v());
      for (std::int64_t h = 0; h < axes.heads; ++h) q.set(0, h, 0, 2, 1);
      Tensor k_seen = k, v_nan = v;
      for (std::int64_t h = 0; h < axes.kv_heads; ++h) {
        for (std::int64_t a = kLeafKeys * index; a < kLeafKeys * (index + 1); ++a) {
          k.set(0, h, a, 2, -std::numeric_limits<float>::infinity());
          // Values of keys that are not seen are not looked at.
          v_nan.set(0, h, a, a % 5, std::numeric_limits<float>::quiet_NaN());
        }
      }
      const auto workload = workload_of(q, k, v), not_looked_at = workload_of(q, k, v_nan);
      const Layout layout{mixed_grouping(p), even_ranges(n_keys, p, kLeafKeys)};
      check_all(*rank_group, *workload, {layout});
      for (const Algorithm& algorithm : algorithms()) {
        CAPTURE(algorithm.name);
        const std::vector<RankResult> results = decode(*rank_group, algorithm, *workload, layout),
                                      nan = decode(*rank_group, algorithm, *not_looked_at, layout);
        CHECK(same_bits(results[0].output, nan[0].output));
        if (index + 1 < p || !algorithm.keeps_bits) continue;
        // Behind the last keys, not seen is the same as not there.
        const auto shorter = workload_of(q, k_seen, v, std::vector<std::int64_t>{n_keys - kLeafKeys}, workload->scale);
        CHECK(same_bits(results[0].output, decode_alone(*shorter)));
      }
    }
  }
}

/// The one place where a max that drops NaN shows: elsewhere the sums carry it as well.
/// @tested{alg_3, Alg. 3}
TEST_CASE("decoders: NaN on the only rank that holds keys is not taken for the empty set of the others") {
  const Axes axes{.head_dim = 6, .value_dim = 5, .n_keys = 7};
  std::mt19937 random(1050);
  Tensor q = normal_tensor(random, axes.q()), k = normal_tensor(random, axes.k()), v = normal_tensor(random, axes.v());
  k.set(0, 0, 3, 2, std::numeric_limits<float>::quiet_NaN());
  const auto workload = workload_of(std::move(q), std::move(k), std::move(v));
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    std::vector<Layout> layouts;
    for (int index = 0; index < p; ++index) {
      std::vector<std::int64_t> lengths(static_cast<std::size_t>(p), 0);
      lengths[static_cast<std::size_t>(index)] = 7;
      layouts.push_back({mixed_grouping(p), ranges_of_lengths(lengths)});
    }
    check_all(*rank_group, *workload, layouts, [](const Algorithm&, const DecodeOutput& output) {
      for (std::size_t r = 0; r < 4; ++r) CHECK(std::isnan(output.lse[r]) == (r < 2));
    });
  }
}

}  // namespace tree_attn::test
