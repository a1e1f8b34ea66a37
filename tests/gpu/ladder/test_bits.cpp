// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bits of the kernels do not depend on splits, blocks, batch, alignment or shards (design: what always holds, rule
/// 2).
#include "tree_attn/tests/support/device_params.hpp"
#include "tree_attn/tests/support/room_for_clusters.hpp"
#include "tree_attn/tests/support/sanitized.hpp"
#include "tree_attn/tests/support/sweep.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "tree_attn/gpu/platform/emulator/settings.hpp"
#endif

namespace tree_attn::test {
namespace {

/// Shapes for all kinds of workers, with tiles of one query, of a few, and more than one tile.
std::vector<Axes> shapes() {
  std::vector<Axes> shapes;
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t heads : {2, 6}) {
      shapes.push_back({.heads = heads, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 600, .dtype = dtype});
    }
    shapes.push_back(
        {.heads = 2, .kv_heads = 2, .head_dim = 128, .value_dim = 128, .n_queries = 2, .n_keys = 320, .dtype = dtype});
  }
  shapes.push_back({.heads = 20, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 300, .dtype = DType::BF16});
  return shapes;
}

}  // namespace

/// More parts than are listed at once, whose subtrees are more than a list holds although their states would fit.
/// @tested{thm_1, Thm. 1}
TEST_CASE("bits: parts of many subtrees are joined in rounds") {
  constexpr int kSplits = 70, kListedParts = 32, kListedSubtrees = 128;  // as JoinList has them
  const Axes axes{.heads = 1, .kv_heads = 1, .head_dim = 4, .value_dim = 4, .n_keys = kSplits * 23 * kLeafKeys};
  int n = 0;
  for (int i = 0; i < kListedParts; ++i) {
    const KeyRange part = split_range({0, axes.n_keys}, i, kSplits);
    n += n_subtrees(part.begin, part.end);
  }
  CHECK(n > kListedSubtrees);
  const auto workload = normal_workload(5050, axes);
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const std::vector<const device::LadderStep*> steps = tree_steps(shard, kSplits);
  REQUIRE(steps.size() >= 3);
  const DecodeOutput one = run_step(*steps[0], shard, {.n_splits = 1});
  CHECK(against_oracle(*workload, one) == "");
  for (const device::LadderStep* step : steps)
    CHECK_MESSAGE(same_output(run_step(*step, shard, {.n_splits = kSplits}), one), step->name);
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// Devices of the ends of compute capability 8, of 10 and of 12: without and with bulk copies, tensor maps and clusters,
/// with little shared memory and with much.
const emulated::Settings kDevices[] = {{.major = 8}, {.major = 8, .shared_bytes = 163 * 1024}, {.major = 10}, {.major = 12}};

/// A launch that asks for more shared memory than the device has is an error.
TEST_CASE("bits: no device changes any, in any step, for rows of every length") {
  std::vector<Axes> all = shapes();
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t d : {8, 129, 256, 264, 512, 520, 576}) {
      if (!takes_all_cases() && d != 8 && d != 256 && d != 576) continue;
      for (const std::int64_t heads : {1, 5})
        all.push_back({.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 200, .dtype = dtype});
    }
  }
  unsigned seed = 5249;
  int n_decodes = 0;
  for (const Axes& axes : all) {
    if (++seed % 4 != 0 && kIsSanitized) continue;
    const auto workload = normal_workload(seed, axes, std::vector<std::int64_t>{axes.n_keys - 3});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const device::LadderStep* step : device::all_kernels()) {
      if (step->refusal(shard.params, shard.dtype) != "") continue;
      const DecodeOutput want = run_step(*step, shard, {.n_splits = 3});
      for (const emulated::Settings& settings : kDevices) {
        const emulated::SettingsScope scope(settings);
        if (step->refusal(shard.params, shard.dtype) != "") continue;
        CAPTURE(std::string(step->name));
        CAPTURE(settings.major);
        CAPTURE(settings.shared_bytes);
        CAPTURE(axes.head_dim);
        CAPTURE(seed);
        CHECK(step->plan(shard.params, shard.dtype, {}).shared_bytes <= device::device().shared_bytes);
        CHECK(same_output(run_step(*step, shard, {.n_splits = 3}), want));
        ++n_decodes;
      }
    }
  }
  CHECK(n_decodes > (takes_all_cases() ? 1000 : kIsSanitized ? 100 : 500));
}

/// 16 query tiles on 132 multiprocessors: eight blocks for each in a batch of one.
TEST_CASE("equal runs: blocks for all multiprocessors, or for nearly all where query tiles are of one length") {
  const auto n_blocks = [](std::int64_t batch, std::int64_t heads) {
    const emulated::SettingsScope scope({.n_multiprocessors = 132});
    const AttentionShape shape{.batch = batch, .heads = heads, .kv_heads = heads, .head_dim = 64, .value_dim = 64};
    return device::kEqualRuns.plan(device::params_of(shape, {0, 1 << 16}), DType::F32, {}).n_blocks;
  };
  CHECK(n_blocks(1, 16) == 128);
  CHECK(n_blocks(2, 8) == 132);
  CHECK(n_blocks(1, 132) == 132);
  CHECK(n_blocks(1, 100) == 132);
  CHECK(n_blocks(1, 1000) == 132);

  // Long rows of 16 bits: as many blocks as have 1, 2, 4, ... leaves each.
  const auto of_long_rows = [](std::int64_t heads, std::int64_t n_keys) {
    const emulated::SettingsScope scope({.n_multiprocessors = 132});
    const AttentionShape shape{
        .dtype = DType::BF16, .value_dtype = DType::BF16, .heads = heads, .kv_heads = 1, .head_dim = 576, .value_dim = 512};
    return device::kEqualRuns.plan(device::params_of(shape, {0, n_keys}), DType::BF16, {}).n_blocks;
  };
  CHECK(of_long_rows(16, 1) == 1);
  CHECK(of_long_rows(16, 8192) == 128);
  CHECK(of_long_rows(16, 64000) == 125);
  CHECK(of_long_rows(128, 8192) == 128);
  CHECK(of_long_rows(16, 1 << 20) == 128);
}

/// Three sequences of eight leaves, four blocks of six: two parts of a tile have two, four or six leaves.
/// @tested{thm_1, Thm. 1}
TEST_CASE("equal runs: parts of one subtree each, and of several, in tiles of as many leaves") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    Axes axes{.heads = 1, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .n_keys = 8 * kLeafKeys, .dtype = dtype};
    axes.batch = 3;
    const auto workload = normal_workload(8190, axes, std::vector<std::int64_t>(3, 8 * kLeafKeys));
    const DecodeOutput want = run_step(device::kEqualRuns, *workload, {.n_splits = 1});
    for (const int n : {2, 4, 8}) CHECK(same_output(run_step(device::kEqualRuns, *workload, {.n_splits = n}), want));
    const emulated::SettingsScope scope({.n_multiprocessors = 4});
    CHECK(same_output(run_step(device::kEqualRuns, *workload), want));
  }
}

TEST_CASE("bits: a block is as large as the shared memory of the device allows") {
  const auto size_on = [](const emulated::Settings& settings, DType dtype, std::int64_t heads, std::int64_t d) {
    const auto workload =
        normal_workload(5290, {.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 64, .dtype = dtype});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const emulated::SettingsScope scope(settings);
    const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, shard.dtype, {});
    return std::pair{plan.n_threads / 32, plan.n_stages};
  };
  const emulated::Settings consumer{.major = 8}, a100{.major = 8, .shared_bytes = 163 * 1024}, h200{.major = 9},
      blackwell{.major = 12};
  // Warps, and tiles or steps in the ring of each.
  for (const std::int64_t d : {32, 128}) {
    CHECK(size_on(consumer, DType::F32, 1, d) == std::pair{4, 3});
    CHECK(size_on(a100, DType::F32, 1, d) == std::pair{6, 3});
    CHECK(size_on(h200, DType::F32, 1, d) == std::pair{8, 3});
    CHECK(size_on(blackwell, DType::F32, 1, d) == std::pair{4, 3});
  }
  CHECK(size_on(consumer, DType::F32, 1, 576) == std::pair{1, 2});
  CHECK(size_on(h200, DType::F32, 1, 576) == std::pair{2, 2});
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
  CHECK(size_on(h200, DType::BF16, 128, 512) == std::pair{8, 25});

  // A block of a cluster has room for its forest and for a join, or there is no cluster.
  const auto cluster_on = [](const emulated::Settings& settings) {
    const emulated::SettingsScope scope(settings);
    const AttentionShape shape{.dtype = DType::BF16,
                               .value_dtype = DType::BF16,
                               .batch = 1,
                               .heads = 8,
                               .kv_heads = 1,
                               .head_dim = 256,
                               .value_dim = 256};
    return device::kShortEnd.plan(device::params_of(shape, {0, 512}), DType::BF16, {.n_splits = 2}).cluster;
  };
  CHECK(cluster_on(h200) == 2);
  CHECK(cluster_on(blackwell) == 0);

  // Every size of memory is kept to, and none is wasted: more of it never makes a block smaller.
  for (const auto& [dtype, heads] : {std::pair{DType::F32, 1}, {DType::BF16, 4}, {DType::BF16, 8}}) {
    const auto workload = normal_workload(
        5291, {.heads = heads, .kv_heads = 1, .head_dim = 128, .value_dim = 128, .n_keys = 64, .dtype = dtype});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const int major : {8, 9}) {
      std::size_t before = 0;
      for (std::size_t n_bytes = 99 * 1024; n_bytes <= 227 * 1024; n_bytes += 128) {
        const emulated::SettingsScope scope({.major = major, .shared_bytes = n_bytes});
        const std::size_t taken = device::kEqualRuns.plan(shard.params, shard.dtype, {}).shared_bytes;
        if (taken > n_bytes || taken < before)
          FAIL(n_bytes << " bytes, of which " << taken << " are taken after " << before);
        before = taken;
      }
    }
  }
}
#endif

TEST_CASE("bits: misaligned, packed and strided arrays change none") {
  unsigned seed = 5300;
  for (const Axes& axes : shapes()) {
    if (axes.n_queries != 1) continue;
    const auto workload = normal_workload(seed++, axes);
    const DecodeOutput aligned = run_step(device::kEqualRuns, *workload);
    CHECK(same_output(run_step(device::kEqualRuns, *packed(*workload)), aligned));
    for (const std::size_t offset : {2, 4, 8, 12}) {
      if (offset % bytes_of(axes.dtype) == 0)
        CHECK(same_output(run_step(device::kEqualRuns, *misaligned(*workload, offset)), aligned));
    }
  }
}

}  // namespace tree_attn::test
