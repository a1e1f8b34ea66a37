// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Long rows on tensor cores, and values that are the first components of the keys, as in the latent rows of MLA: the
/// bits of step 6 (sections 5 and 6.3). That rows are copied once is in tests/gpu/engine/test_row_tiles.cpp.
#include "gpu/backend/backends.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/seen_cases.hpp"

#include <array>

#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

namespace tree_attn::test::latent_test {
namespace {

constexpr std::array kTypes{DType::BF16, DType::F16};

/// One kv head of latent rows, and the same with values in memory of their own.
struct Latent {
  std::unique_ptr<TensorWorkload> apart;
  TensorWorkload in_keys;  ///< over the memory of the other

  Latent(unsigned seed, const Axes& axes, std::vector<std::int64_t> lengths)
      : Latent(*normal_workload(seed, axes, std::move(lengths))) {}
  explicit Latent(TensorWorkload& of)
      : apart(workload_of(copy_of(of.query(0)), copy_of(of.k()), copy_of(of.k().components(of.v().shape[3])), of.lengths(),
                          of.scale)),
        in_keys({}, apart->query(0), apart->k(), apart->k().components(of.v().shape[3]), of.lengths(), of.scale) {}
};

Axes axes_of(DType dtype, std::int64_t heads, std::int64_t d_h, std::int64_t d_v, std::int64_t n_keys) {
  return {.heads = heads, .kv_heads = 1, .head_dim = d_h, .value_dim = d_v, .n_keys = n_keys, .dtype = dtype};
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("latent rows: the bits of step 6 for 1 to 128 heads, values in the keys or apart") {
  unsigned seed = 8300;
  for (const DType dtype : kTypes) {
    for (const auto& [d_h, d_v] : {std::pair{576, 512}, {320, 256}, {512, 512}, {264, 72}, {296, 290}}) {
      for (const std::int64_t heads : {1, 8, 9, 16, 17, 33, 64, 128}) {
        for (const std::int64_t n_keys : {1, 63, 64, 65, 130, 200, 500, 1500}) {
          ++seed;
          if (heads * n_keys > (is_in_software() ? 5000 : takes_all_cases() ? 100'000 : 30'000)) continue;
          if (!takes_all_cases() && seed % 13 != 0 && (kIsSanitized || d_h != 576 || n_keys != 130)) continue;
          Latent latent(seed, axes_of(dtype, heads, d_h, d_v, n_keys), {n_keys - n_keys / 100});
          INFO(name_of(dtype) << ", d_h " << d_h << ", d_v " << d_v << ", " << heads << " heads, N " << n_keys);
          const DecodeOutput plain = run_step(device::kTensor, latent.in_keys, {.n_splits = 2});
          if (heads == 1) CHECK(against_oracle(*latent.apart, plain, 3 * 64 * 2 + 20) == "");
          for (TensorWorkload* workload : {&latent.in_keys, &*latent.apart}) {
            for (const auto& options : {device::LaunchOptions{}, {.n_splits = 1, .unit_log = 5}, {.n_splits = 3}})
              CHECK(same_output(run_step(device::kEqualRuns, *workload, options), plain));
          }
        }
      }
    }
  }
}

TEST_CASE("latent rows: a key of Inf or NaN, or a value, and rows without a key have the bits of step 6") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : kTypes) {
    for (const auto& [d_h, d_v] : {std::pair{576, 512}, {296, 290}}) {
      for (const auto& [component, number] : {std::pair{5, kInf}, {5, -kInf}, {d_h - 1, std::nanf("")}, {d_v, kInf}}) {
        const auto normal = normal_workload(8400, axes_of(dtype, 11, d_h, d_v, 150), std::vector<std::int64_t>{139});
        Tensor q = copy_of(normal->query(0)), k = copy_of(normal->k());
        k.set(0, 0, 77, component, number);
        const auto with = workload_of(std::move(q), std::move(k), copy_of(normal->v()), normal->lengths(), normal->scale);
        Latent latent(*with);
        INFO(name_of(dtype) << ", d_h " << d_h << ", " << number << " at " << component);
        const DecodeOutput plain = run_step(device::kTensor, latent.in_keys);
        CHECK(same_output(run_step(device::kEqualRuns, latent.in_keys, {.n_splits = 2}), plain));
        CHECK(same_output(run_step(device::kEqualRuns, *latent.apart), plain));
      }
    }
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("latent rows: with causal rows and windows, over ranks and in both orders, a row has the bits of itself alone") {
  std::mt19937 random(8450);
  const auto upto = [&random](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  for (unsigned i = 0; i < (takes_all_cases() ? 40 : 6); ++i) {
    const std::int64_t n_keys = 1 + upto(400);
    SeenCase c{.axes = {.batch = 2,
                        .heads = 1 + upto(5),
                        .kv_heads = 1,
                        .head_dim = i % 2 == 0 ? 576 : 257 + upto(200),
                        .value_dim = i % 2 == 0 ? 512 : 1 + upto(511),
                        .n_queries = 1 + upto(3),
                        .n_keys = n_keys,
                        .dtype = kTypes[i % 2]},
               .lengths = {n_keys, upto(n_keys)},
               .rule = {.causal = upto(1) > 0, .window = upto(2) * (1 + upto(n_keys)), .sinks = upto(1) * 70},
               .order = upto(1) > 0 ? LeafOrder::kContiguous : LeafOrder::kDealt,
               .ranges = {{0, kOpenEnd}}};
    if (c.rule.window == 0) c.rule.sinks = 0;
    if (c.order == LeafOrder::kDealt) c.ranges = dealt_ranges(1 + static_cast<int>(upto(2)));
    check_rows_alone(device::backend(), c, 8451 + i);
  }
}

/// Blocks without a part, and ends of shards inside units.
/// @tested{thm_1, Thm. 1}
TEST_CASE("latent rows: many blocks have the bits of a few") {
  constexpr std::int64_t kKeys = 41 * kLeafKeys + 5;
  for (const std::int64_t heads : {1, 11}) {
    if (!takes_all_cases() && heads == 11) continue;
    Axes axes = axes_of(DType::BF16, heads, 296, 288, kKeys);
    axes.batch = 3;
    for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{kKeys, kKeys, kKeys}, {kKeys, 0, 700}}) {
      const auto workload = normal_workload(8475, axes, lengths);
      const DecodeOutput plain = run_step(device::kTensor, *workload, {.n_splits = 2});
      for (const int n_splits : {8, 9, 10, 13, 17, 33, 40, 60}) {
        if (!takes_all_cases() && n_splits % 4 != 1) continue;
        INFO(heads << " heads, " << n_splits << " splits, " << lengths[1]);
        CHECK(same_output(run_step(device::kEqualRuns, *workload, {.n_splits = n_splits}), plain));
      }
      for (const KeyRange range : {KeyRange{0, kKeys}, {3 * kLeafKeys, 40 * kLeafKeys - 7}, {64, 12 * kLeafKeys}}) {
        const Forest<float> few = forest_of(device::kEqualRuns, *workload, range, 2);
        CHECK(same_bits(forest_of(device::kEqualRuns, *workload, range, 20), few));
        CHECK(same_bits(forest_of(device::kEqualRuns, *workload, range, 35), few));
      }
    }
  }
}

#if !defined(TREE_ATTN_FOR_CUDA)
TEST_CASE("latent rows: teams have the same bits in any order of blocks, and where these have little memory") {
  const auto workload = normal_workload(8540, axes_of(DType::BF16, 11, 296, 288, 41 * kLeafKeys),
                                        std::vector<std::int64_t>{41 * kLeafKeys - 3});
  emulated::Settings settings{.major = 12, .shared_bytes = 163 * 1024};
  const DecodeOutput want = [&] {
    const emulated::SettingsScope scope(settings);
    return run_step(device::kEqualRuns, *workload, {.n_splits = 17});
  }();
  settings.shared_bytes = 99 * 1024;
  for (settings.seed = 0; settings.seed < 4; ++settings.seed) {
    const emulated::SettingsScope scope(settings);
    for (const int n_splits : {17, 33})
      CHECK(same_output(run_step(device::kEqualRuns, *workload, {.n_splits = n_splits}), want));
  }
}
#endif

}  // namespace tree_attn::test::latent_test
