// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rules of what a query sees, on a device: a row has the bits of itself alone, whatever the rule, the shards and the
/// order (section 5).
#include "gpu/backend/backends.hpp"
#include "reference/oracle/error_bound.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/seen_cases.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

namespace tree_attn::test {
namespace {

constexpr std::array kTypes{DType::F32, DType::F16, DType::BF16};

/// A quarter of the random cases.
void check_random(unsigned seed) {
  std::mt19937 random(seed);
#if defined(TREE_ATTN_FOR_CUDA)
  constexpr int n = 12;  // thousands do not end in the time that a case has on a card
#else
  const int n = takes_all_cases() ? 2500 : 12;
#endif
  int n_over_ranks = 0, n_with_hidden = 0;
  for (int i = 0; i < n; ++i) {
    // One case of ten is large: each of its rows is decoded alone.
    const bool large = i % 10 == 0;
    SeenCase c = random_seen_case(random, large ? 400 : 200, kTypes);
    if (!large) c.axes.n_queries = 1 + (c.axes.n_queries - 1) % 8;
    if (i % 8 == 3) c.axes.head_dim = 300, c.axes.value_dim = 100;  // in 16 bits, rows for four warps
    n_over_ranks += c.n_holders() > 1, n_with_hidden += c.hides_leaves();
    check_rows_alone(device::backend(), c, seed + static_cast<unsigned>(i));
  }
  CHECK(n_over_ranks > n / 4);
  CHECK(n_with_hidden > n / 20);
}

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("seen on a device: random rules, shapes and shards: a row has the bits of itself alone, 1") { check_random(4601); }
TEST_CASE("seen on a device: random rules, shapes and shards: a row has the bits of itself alone, 2") { check_random(4602); }
TEST_CASE("seen on a device: random rules, shapes and shards: a row has the bits of itself alone, 3") { check_random(4603); }
TEST_CASE("seen on a device: random rules, shapes and shards: a row has the bits of itself alone, 4") { check_random(4604); }

/// @tested{thm_1, Thm. 1}
TEST_CASE("seen on a device: windows that begin in many leaves of a subtree of 32, and in many of a rank") {
  constexpr std::int64_t kN = 2040;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
#if !defined(TREE_ATTN_FOR_CUDA)
      // Few thread groups have several units each, some of them without a leaf.
      const emulated::SettingsScope scope({.n_multiprocessors = order == LeafOrder::kDealt ? 1 : 4});
#endif
      for (std::int64_t window = 30; window < kN; window += takes_all_cases() ? 61 : 305) {
        for (const std::int64_t sinks : {0, 70}) {
          SeenCase c{.axes = {.heads = 1, .kv_heads = 1, .head_dim = 8, .value_dim = 8, .n_keys = kN, .dtype = dtype},
                     .lengths = {kN},
                     .rule = {.window = window, .sinks = sinks},
                     .order = order,
                     .ranges = {{0, kOpenEnd}}};
          if (order == LeafOrder::kDealt) c.ranges = dealt_ranges(3);
          check_rows_alone(device::backend(), c, 4640);
        }
      }
    }
  }
}

TEST_CASE("seen on a device: windows that move as a cache grows and shrinks have the bits of a fresh session") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const KeyRange& range : {KeyRange{0, kOpenEnd}, dealt_ranges(2)[1]}) {
      const OwnedLeaves leaves(range, range.end == kOpenEnd ? LeafOrder::kContiguous : LeafOrder::kDealt);
      const SeenCase c{.axes = {.batch = 2, .heads = 2, .kv_heads = 1, .n_queries = 2, .n_keys = 700, .dtype = dtype},
                       .lengths = {700, 700}};
      const auto workload = workload_of(c, 4650);
      const auto cache = device::backend().make_cache(workload->shape(), leaves, 64);
      const auto session = cache->open(workload->scale);
      for (const std::int64_t n : {100, 150, 191, 192, 193, 260, 400, 463, 464, 465, 330, 331, 700, 129}) {
        for (const SeenRule& rule :
             {SeenRule{.causal = true, .window = 80}, SeenRule{.window = 80, .sinks = 3}, SeenRule{}}) {
          INFO(name_of(dtype) << ", " << name_of(leaves.order()) << ", " << n << " keys, window " << rule.window);
          const std::vector<std::int64_t> lengths{n, n / 2};
          for (std::int64_t i = 0; i < 2; ++i) {
            const std::int64_t kept = leaves.n_keys(lengths[static_cast<std::size_t>(i)]);
            cache->truncate(i, std::min(kept, cache->lengths()[static_cast<std::size_t>(i)]));
          }
          fill(*cache, *workload, lengths);
          const Step step{workload->query(0), lengths, rule};
          const Forest<float>& grown = session->decode(step).host();
          const Forest<float> fresh = decode_range(device::backend(), *workload, leaves, step);
          REQUIRE(same_bits(grown, fresh));
        }
      }
    }
  }
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("seen on a device: a soft cap is near the oracle, has the bits of any shards, and ends with its step") {
  std::mt19937 random(4660);
  for (int i = 0; i < 24; ++i) {
    SeenCase c = random_seen_case(random, 300, kTypes);
    c.axes.n_queries = 1 + (c.axes.n_queries - 1) % 8;
    if (i % 8 == 3) c.axes.head_dim = 300, c.axes.value_dim = 100;
    const auto workload = normal_workload(4661, c.axes, c.lengths);
    const double softcap = std::uniform_real_distribution<double>(0.1, 8)(random);
    INFO(c.text() << ", capped at " << softcap);
    const Step step{workload->query(0), workload->lengths(), c.rule, {}, {}, softcap};
    SeenCase whole = c;
    whole.ranges = c.order == LeafOrder::kDealt ? dealt_ranges(1) : std::vector<KeyRange>{{0, kOpenEnd}};
    const std::vector<float> states = decode_ranges(device::backend(), whole, *workload, step);
    REQUIRE(same_numbers(decode_ranges(device::backend(), c, *workload, step), states));

    const Shard all = workload->whole();
    const AttentionOptions options{.scale = workload->scale, .rule = c.rule, .lengths = c.lengths, .softcap = softcap};
    const AttentionResult exact = attention(step.q, all.k, all.v, options);
    ErrorModel model = tree_decode_model(std::max<std::int64_t>(1, c.axes.n_keys));
    if (c.axes.dtype != DType::F32) model.score_error = 1.5;
    model.n_additions = 2 * 3 * kLeafKeys + 64;
    const ErrorBound bound = error_bound(step.q, all.k, all.v, options, model);
    DecodeOutput output{std::vector<float>(exact.out.size()), std::vector<float>(exact.lse.size())};
    const std::int64_t d_v = c.axes.value_dim;
    for (std::size_t r = 0; r < output.lse.size(); ++r)
      output.lse[r] = finish(states.data() + static_cast<std::int64_t>(r) * state_size(d_v),
                             output.out.data() + static_cast<std::int64_t>(r) * d_v, d_v);
    const Comparison out = compare(output.out, exact.out, bound.out),
                     lse = compare(output.lse, exact.lse, bound.lse, NonFinite::Match);
    CHECK_MESSAGE(out.ok, out.message);
    CHECK_MESSAGE(lse.ok, lse.message);

    // One session, with a cap, another and none.
    const OwnedLeaves leaves(whole.ranges[0], c.order);
    const auto cache = device::backend().make_cache(workload->shape(), leaves, leaves.n_keys(workload->n_keys()));
    fill(*cache, *workload, step.lengths);
    const auto session = cache->open(workload->scale);
    for (const double cap : {softcap, 0.0, 2 * softcap, softcap}) {
      Step other = step;
      other.softcap = cap;
      CHECK(same_bits(session->decode(other).host(), decode_range(device::backend(), *workload, leaves, other)));
    }
  }
}

TEST_CASE("seen on a device: a value of Inf or NaN is in the rows that see it, and in no other") {
  for (const DType dtype : kTypes) check_hidden_values(device::backend(), dtype);
}

}  // namespace tree_attn::test
