// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Many queries of latent rows, and more than 16 of others, by warpgroups where there are any: the bits of
/// rung 6, and those of warps (section 6.3). Latent rows of any length are in tests/gpu/ladder/test_latent.cpp.
#include "gpu/backend/backends.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/seen_cases.hpp"
#include "tests/support/sweep.hpp"

#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

namespace tree_attn::test::many_rows_test {
namespace {

/// One kv head of latent rows, whose values are the first components of its keys.
struct Latent {
  std::unique_ptr<TensorWorkload> memory;
  TensorWorkload workload;

  Latent(unsigned seed, const Axes& axes, std::vector<std::int64_t> lengths)
      : memory(normal_workload(seed, axes, std::move(lengths))),
        workload({}, memory->query(0), memory->k(), memory->k().components(axes.value_dim), memory->lengths(),
                 memory->scale) {}
};

Axes axes_of(DType dtype, std::int64_t heads, std::int64_t d_h, std::int64_t d_v, std::int64_t n_keys) {
  return {.heads = heads, .kv_heads = 1, .head_dim = d_h, .value_dim = d_v, .n_keys = n_keys, .dtype = dtype};
}

/// The states of all keys of a case, from caches that hold values in the keys, in pages, or apart.
std::vector<float> decode_caches(const SeenCase& c, TensorWorkload& workload, const Step& step, bool in_keys,
                                 bool in_pages) {
  Forest<float> joined(workload.shape().n_rows(), c.axes.value_dim);
  for (const KeyRange& range : closed(c.ranges, step.longest())) {
    const OwnedLeaves leaves(range, c.order);
    AttentionShape shape = workload.shape();
    shape.values_in_keys = in_keys;
    const auto cache = device::backend().make_cache(shape, leaves, leaves.n_keys(workload.n_keys()));
    cache->set_scales({.k = c.key_scales, .v = c.key_scales});
    if (in_pages) cache->use_pages({.n_pages = c.axes.batch * (workload.n_keys() / kLeafKeys + 2)});
    fill(*cache, workload, step.lengths);
    const Forest<float> forest = std::move(cache->open(workload.scale)->decode(step).host());
    joined.append(forest.subtrees(), forest.states().data());
  }
  const std::span<const float> all = joined.fold();
  return {all.begin(), all.end()};
}

}  // namespace

TEST_CASE("many rows: sequences of different lengths, one of them empty") {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    Axes axes = axes_of(dtype, 20, 576, 512, 460);
    axes.batch = 3;
    Latent latent(6990, axes, {460, 0, 131});
    CHECK(same_output(run_step(device::kEqualRuns, latent.workload, {.n_splits = 3}),
                      run_step(device::kTensor, latent.workload, {.n_splits = 2})));
  }
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// A block walks over several of them, one after the other.
TEST_CASE("many rows: few blocks for sequences of different lengths") {
  const emulated::SettingsScope scope({.n_multiprocessors = 2});
  for (const std::int64_t heads : {20, 40, 70}) {
    Axes axes = axes_of(DType::BF16, heads, 576, 512, 330);
    axes.batch = 4;
    Latent latent(6993, axes, {330, 70, 0, 150});
    const DeviceShard shard(latent.workload.query(0), latent.workload.whole(), latent.workload.lengths(),
                            latent.workload.scale);
    INFO(heads << " heads");
    CHECK(device::kEqualRuns.plan(shard.params, shard.dtype, {}).cluster == (heads > 32 ? 2 : 1));
    CHECK(same_output(run_step(device::kEqualRuns, latent.workload), run_step(device::kTensor, latent.workload)));
  }
}
#endif

/// Large and equal scores, of which the shift is subtracted another way, and a scale of 0.
TEST_CASE("many rows: scores of any size have the bits of rung 6") {
  for (const double scale : {0.0, -0.3, 1e5, 3e9}) {
    Latent latent(6997, axes_of(DType::BF16, 18, 576, 512, 200), {197});
    latent.workload.scale = scale;
    INFO("scale " << scale);
    CHECK(same_output(run_step(device::kEqualRuns, latent.workload, {.n_splits = 2}),
                      run_step(device::kTensor, latent.workload)));
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("many rows: causal rows, windows, both orders, shards and pages have the bits of values apart") {
  std::mt19937 random(7000);
  const auto upto = [&random](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  constexpr std::array kTypes{DType::BF16, DType::F16, DType::F8_E4M3};
  for (unsigned i = 0; i < (takes_all_cases() ? 60 : 9); ++i) {
    const std::int64_t n_keys = 1 + upto(700), l = 1 + upto(7);
    SeenCase c{.axes = axes_of(kTypes[i % 3], (1 + upto(63)) / l + 1, 576, 512, n_keys),
               .lengths = {n_keys, upto(n_keys)},
               .rule = {.causal = upto(2) > 0, .window = upto(1) * (1 + upto(n_keys)), .sinks = upto(1) * 70},
               .order = upto(2) > 0 ? LeafOrder::kContiguous : LeafOrder::kDealt,
               .ranges = {{0, kOpenEnd}}};
    c.axes.batch = 2, c.axes.n_queries = l;
    if (i % 4 > 1) c.axes.head_dim = 288, c.axes.value_dim = 250;
    if (c.rule.window == 0) c.rule.sinks = 0;
    const std::int64_t cut = upto(n_keys / kLeafKeys) * kLeafKeys;
    if (upto(1) > 0) c.ranges = {{0, cut}, {cut, kOpenEnd}};
    if (c.order == LeafOrder::kDealt) c.ranges = dealt_ranges(1 + static_cast<int>(upto(2)));
    if (c.axes.dtype == DType::F8_E4M3 && i % 2 == 0) c.key_scales = {0.375f, 3};
    Latent latent(7001 + i, c.axes, c.lengths);
    const Step step{.q = latent.workload.query(0),
                    .lengths = latent.workload.lengths(),
                    .rule = c.rule,
                    .softcap = upto(2) == 0 ? 3.5 : 0};
    INFO(c.text() << ", softcap " << step.softcap);
    const std::vector<float> apart = decode_caches(c, latent.workload, step, false, false);
    CHECK(same_numbers(decode_caches(c, latent.workload, step, true, false), apart));
    CHECK(same_numbers(decode_caches(c, latent.workload, step, true, true), apart));
  }
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("many rows: rows of up to 256 elements have the bits of rung 6, for 17 to 66 queries, every length and split") {
  unsigned seed = 7100;
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const auto& [d_h, d_v] : {std::pair{64, 64}, {128, 128}, {256, 256}, {96, 40}, {40, 200}, {8, 1}}) {
      for (const std::int64_t l : {17, 31, 32, 33, 64, 66}) {
        for (const std::int64_t n_keys : {1, 64, 65, 130, 500, 1500}) {
          ++seed;
          if (!takes_all_cases() && seed % (is_in_software() ? 61 : 13) != 0) continue;
          if (is_in_software() && l * n_keys > 5000) continue;
          const auto workload = normal_workload(seed,
                                                {.heads = 2,
                                                 .kv_heads = 2,
                                                 .head_dim = d_h,
                                                 .value_dim = d_v,
                                                 .n_queries = l,
                                                 .n_keys = n_keys,
                                                 .dtype = dtype},
                                                std::vector<std::int64_t>{n_keys - n_keys / 100});
          INFO(name_of(dtype) << ", d_h " << d_h << ", d_v " << d_v << ", " << l << " queries, N " << n_keys);
          const DecodeOutput plain = run_step(device::kTensor, *workload, {.n_splits = 2});
          for (const auto& options : {device::LaunchOptions{}, {.n_splits = 1, .unit_log = 5}, {.n_splits = 3}})
            CHECK(same_output(run_step(device::kEqualRuns, *workload, options), plain));
        }
      }
    }
  }
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// @tested{thm_1, Thm. 1}
TEST_CASE("many rows: causal rows, windows, caps, both orders, shards, pages and scales of keys have the bits of warps") {
  std::mt19937 random(7200);
  const auto upto = [&random](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  const DType types[] = {DType::BF16, DType::F16, DType::F8_E4M3};
  for (unsigned i = 0; i < (takes_all_cases() ? 240 : 18); ++i) {
    const std::int64_t n_keys = 1 + upto(700), l = 1 + upto(15), rows = 9 + upto(55), d = std::int64_t{64} << (i / 3 % 3);
    SeenCase c{.axes = {.batch = 2,
                        .heads = 2 * (rows / l + 1),
                        .kv_heads = 2,
                        .head_dim = d - 16 * upto(1),
                        .value_dim = d - 8 * upto(3),
                        .n_queries = l,
                        .n_keys = n_keys,
                        .dtype = types[i % 3]},
               .lengths = {n_keys, upto(n_keys)},
               .rule = {.causal = upto(2) > 0, .window = upto(1) * (1 + upto(n_keys)), .sinks = upto(1) * 70},
               .order = upto(2) > 0 ? LeafOrder::kContiguous : LeafOrder::kDealt,
               .ranges = {{0, kOpenEnd}}};
    if (c.rule.window == 0) c.rule.sinks = 0;
    const std::int64_t cut = upto(n_keys / kLeafKeys) * kLeafKeys;
    if (upto(1) > 0) c.ranges = {{0, cut}, {cut, kOpenEnd}};
    if (c.order == LeafOrder::kDealt) c.ranges = dealt_ranges(1 + static_cast<int>(upto(2)));
    const auto workload = normal_workload(7201 + i, c.axes, c.lengths);
    const Step step{
        .q = workload->query(0), .lengths = workload->lengths(), .rule = c.rule, .softcap = upto(2) == 0 ? 3.5 : 0};
    const auto decode = [&](int major, bool in_pages) {
      const emulated::SettingsScope scope({.n_multiprocessors = 1 + static_cast<int>(i % 5), .major = major});
      return decode_caches(c, *workload, step, false, in_pages);
    };
    INFO(c.text() << ", softcap " << step.softcap);
    const std::vector<float> of_warps = decode(12, false);
    CHECK(same_numbers(decode(9, false), of_warps));
    CHECK(same_numbers(decode(9, true), of_warps));
  }
}
#endif

}  // namespace tree_attn::test::many_rows_test
