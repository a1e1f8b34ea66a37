// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bits of the kernels do not depend on splits, blocks or the device (design: what always holds, rule 2).
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

#include <array>

namespace tree_attn::test {

/// More units than a warp loads at once, and more splits than any device has.
/// @tested{thm_1, Thm. 1}
TEST_CASE("bits: so many splits that their states are merged in rounds") {
  constexpr int kSplits = 70;
  const Axes axes{.heads = 1, .kv_heads = 1, .head_dim = 4, .value_dim = 4, .n_keys = kSplits * 23 * kLeafKeys};
  const auto workload = normal_workload(5050, axes);
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const DecodeOutput one = run_step(device::kEqualRuns, shard, {.n_splits = 1});
  CHECK(against_oracle(*workload, one) == "");
  int n_steps = 0;
  for (const device::LadderStep* step : device::all_kernels()) {
    if (!step->is_canonical || step->max_splits < kSplits || step->refusal(shard.params, shard.dtype) != "") continue;
    CHECK_MESSAGE(same_output(run_step(*step, shard, {.n_splits = kSplits}),
                              step->is_fused ? run_step(*step, shard, {.n_splits = 1}) : one),
                  step->name);
    ++n_steps;
  }
  CHECK(n_steps >= 3);
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// Devices of the ends of compute capability 8, and of 10 and 12, whose tensor cores are emulated as those of 9: without and
/// with bulk copies, tensor maps and clusters, with little shared memory and with much.
const emulated::Settings kDevices[] = {{.major = 8}, {.major = 8, .shared_bytes = 163 * 1024}, {.major = 10}, {.major = 12}};

/// Tensor cores of compute capability 8 add otherwise, so there steps on tensor cores have bits of their own. A launch that
/// asks for more shared memory than the device has is an error.
TEST_CASE("bits: no device changes any, in any step, for rows of every length, but for the sums of its tensor cores") {
  // All kinds of workers, with tiles of one query, of a few, and more than one tile; and latent rows.
  std::vector<Axes> all{{.heads = 20, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 300, .dtype = DType::BF16}};
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    const auto add = [&](std::int64_t heads, std::int64_t kv_heads, std::int64_t d_h, std::int64_t d_v, std::int64_t l,
                         std::int64_t n_keys) {
      all.push_back({.heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = d_h,
                     .value_dim = d_v,
                     .n_queries = l,
                     .n_keys = n_keys,
                     .dtype = dtype});
    };
    add(2, 2, 64, 64, 1, 600), add(6, 2, 64, 64, 1, 600), add(2, 2, 128, 128, 2, 320), add(11, 1, 576, 512, 1, 200);
    for (const std::int64_t d : {8, 129, 256, 264, 512, 520, 576}) {
      if (takes_all_cases() || d == 8 || d == 256 || d == 576) add(1, 1, d, d, 1, 200), add(5, 1, d, d, 1, 200);
    }
  }
  unsigned seed = 5249;
  int n_decodes = 0, n_apart = 0;
  for (const Axes& axes : all) {
    if (++seed % 4 != 0 && kIsSanitized) continue;
    const auto workload = normal_workload(seed, axes, std::vector<std::int64_t>{axes.n_keys - 3});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const device::LadderStep* step : device::all_kernels()) {
      if (step->refusal(shard.params, shard.dtype) != "") continue;
      const bool scalar = is_scalar(step->plan(shard.params, shard.dtype, {}));
      const DecodeOutput of_9 = run_step(*step, shard, {.n_splits = 3});
      DecodeOutput of_8 = scalar ? of_9 : DecodeOutput{};
      for (const emulated::Settings& settings : kDevices) {
        const emulated::SettingsScope scope(settings);
        if (step->refusal(shard.params, shard.dtype) != "") continue;
        if (settings.major == 8 && of_8.out.empty()) {
          of_8 = run_step(*step, shard, {.n_splits = 2});
          n_apart += !same_output(of_8, of_9);
        }
        INFO(std::string(step->name) << " on " << settings.major << ", " << settings.shared_bytes << " bytes, d "
                                     << axes.head_dim << ", seed " << seed);
        CHECK(step->plan(shard.params, shard.dtype, {}).shared_bytes <= device::device().shared_bytes);
        CHECK(same_output(run_step(*step, shard, {.n_splits = 3}), settings.major == 8 ? of_8 : of_9));
        ++n_decodes;
      }
    }
  }
  CHECK(n_decodes > (takes_all_cases() ? 1000 : kIsSanitized ? 100 : 500));
  CHECK(n_apart > 0);
}

/// 16 query tiles on 132 multiprocessors: eight blocks for each in a batch of one.
TEST_CASE("equal runs: blocks for all multiprocessors, or for nearly all where query tiles are of one length") {
  const emulated::SettingsScope scope({.n_multiprocessors = 132});
  const auto n_blocks = [](Axes axes) { return plan_of(device::kEqualRuns, axes).n_blocks; };
  for (const auto& [batch, heads, n] : {std::array{1, 16, 128}, {2, 8, 132}, {1, 132, 132}, {1, 100, 132}, {1, 1000, 132}})
    CHECK(n_blocks(
              {.batch = batch, .heads = heads, .kv_heads = heads, .head_dim = 64, .value_dim = 64, .n_keys = 1 << 16}) == n);
}

/// Three sequences of eight leaves, four blocks of six: two parts of a tile have two, four or six leaves.
/// @tested{thm_1, Thm. 1}
TEST_CASE("equal runs: parts of one subtree each, and of several, in tiles of as many leaves") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Axes axes{
        .batch = 3, .heads = 1, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .n_keys = 8 * kLeafKeys, .dtype = dtype};
    const auto workload = normal_workload(8190, axes);
    const DecodeOutput want = run_step(device::kEqualRuns, *workload, {.n_splits = 1});
    for (const int n : {2, 4, 8}) CHECK(same_output(run_step(device::kEqualRuns, *workload, {.n_splits = n}), want));
    CHECK(same_output(run_step(device::kEqualRuns, *workload), want));
  }
}

TEST_CASE("bits: a block is as large as the shared memory of the device allows") {
  const auto plan_on = [](const emulated::Settings& settings, DType dtype, std::int64_t heads, std::int64_t d) {
    const emulated::SettingsScope scope(settings);
    return plan_of(device::kEqualRuns,
                   {.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 64, .dtype = dtype});
  };
  const auto size_on = [&](const emulated::Settings& settings, DType dtype, std::int64_t heads, std::int64_t d) {
    const device::LaunchPlan plan = plan_on(settings, dtype, heads, d);
    return std::pair{plan.n_threads / 32, plan.n_stages};
  };
  const emulated::Settings consumer{.major = 8}, a100{.major = 8, .shared_bytes = 163 * 1024}, h200{.major = 9},
      blackwell{.major = 12};
  // Warps, and tiles or steps in the ring of each.
  for (const std::int64_t d : {32, 128}) {
    CHECK(size_on(consumer, DType::F32, 1, d) == std::pair{4, 5});
    CHECK(size_on(a100, DType::F32, 1, d) == std::pair{7, 5});
    CHECK(size_on(h200, DType::F32, 1, d) == std::pair{8, 5});
    CHECK(size_on(blackwell, DType::F32, 1, d) == std::pair{4, 5});
  }
  CHECK(size_on(consumer, DType::F32, 1, 576) == std::pair{1, 5});
  CHECK(size_on(h200, DType::F32, 1, 576) == std::pair{2, 5});
  CHECK(size_on(consumer, DType::BF16, 4, 64) == std::pair{2, 3});
  CHECK(size_on(a100, DType::BF16, 4, 64) == std::pair{4, 3});
  CHECK(size_on(h200, DType::BF16, 4, 64) == std::pair{4, 6});
  CHECK(size_on(blackwell, DType::BF16, 4, 64) == std::pair{2, 5});
  CHECK(size_on(a100, DType::BF16, 8, 256) == std::pair{4, 3});
  CHECK(size_on(h200, DType::BF16, 8, 256) == std::pair{4, 2});
  CHECK(size_on(blackwell, DType::BF16, 8, 256) == std::pair{2, 2});
  // Four warps for eight rows, and boxes of the ring of all.
  CHECK(size_on(consumer, DType::BF16, 9, 512) == std::pair{8, 9});
  CHECK(size_on(a100, DType::F16, 8, 512) == std::pair{4, 18});
  CHECK(size_on(h200, DType::BF16, 8, 512) == std::pair{4, 26});
  // Four warpgroups from nine latent rows on, and two leaves.
  for (const std::int64_t heads : {9, 16, 17, 128}) {
    CHECK(size_on(h200, DType::BF16, heads, 512) == std::pair{16, 2});
    CHECK(size_on(h200, DType::F16, heads, 512) == std::pair{16, 2});
  }

  // Every size of memory is kept to, and none is wasted: more of it never makes a block smaller.
  for (const auto& [dtype, heads] : {std::pair{DType::F32, 1}, {DType::BF16, 4}, {DType::BF16, 8}}) {
    for (const int major : {8, 9}) {
      std::size_t before = 0;
      for (std::size_t n_bytes = 99 * 1024; n_bytes <= 227 * 1024; n_bytes += 128) {
        const std::size_t taken = plan_on({.major = major, .shared_bytes = n_bytes}, dtype, heads, 128).shared_bytes;
        if (taken > n_bytes || taken < before)
          FAIL(n_bytes << " bytes, of which " << taken << " are taken after " << before);
        before = taken;
      }
    }
  }
}
#endif

}  // namespace tree_attn::test
