// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernels: how rows are copied in the background, and merges in a cluster, change no bit. Those of the
/// ladder, which define the bits, are compared by test_plain.cpp.
#include "tests/support/device_params.hpp"
#include "tests/support/room_for_clusters.hpp"

#include <array>
#include <utility>

namespace tree_attn::test {
namespace {

/// The plan of the short end for elements of BF16 in rows of 64.
device::LaunchPlan short_plan(std::int64_t heads, std::int64_t kv_heads, std::int64_t n_keys, int n_splits) {
  return plan_of(
      device::kShortEnd,
      {.heads = heads, .kv_heads = kv_heads, .head_dim = 64, .value_dim = 64, .n_keys = n_keys, .dtype = DType::BF16},
      n_splits);
}

}  // namespace

TEST_CASE("copies: rows in bulk, rows one by one and elements one by one have the same bits") {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t n_keys : {1, 7, 8, 16, 200, 333, 600}) {
      const std::int64_t d = n_keys % 2 == 0 ? 64 : 512;  // those of 16 bits by a warp and by four
      const Axes axes{
          .heads = n_keys == 600 ? 6 : 2, .kv_heads = 2, .head_dim = d, .value_dim = d, .n_keys = n_keys, .dtype = dtype};
      INFO(name_of(dtype) << ", keys " << n_keys);
      const auto dense = normal_workload(5700 + static_cast<unsigned>(n_keys), axes);
      DeviceShard shard(dense->query(0), dense->whole(), dense->lengths(), dense->scale);
      // Whole steps of eight rows are copied at once; of the last one there must be memory.
      const int row_bytes = static_cast<int>(d) * static_cast<int>(bytes_of(dtype));
      CHECK(device::has_bulk_rows(shard.params, dtype, row_bytes) == (n_keys % 8 == 0));
      CHECK_FALSE(device::has_bulk_rows(shard.params, dtype, 2 * row_bytes));
      const DecodeOutput want = run_step(device::kEqualRuns, *dense);
      CHECK(against_oracle(*dense, want, longest_chain(device::kEqualRuns, shard)) == "");
      for (const std::size_t offset : {2, 4, 8, 12}) {
        if (offset % bytes_of(dtype) == 0)
          CHECK(same_output(run_step(device::kEqualRuns, *misaligned(*dense, offset)), want));
      }
      for (const device::LadderStep* kernel : {&device::kEqualRuns, &device::kShortEnd})
        CHECK(same_output(run_step(*kernel, *packed(*dense), {.n_splits = 3}), want));
    }
  }
}

TEST_CASE("copies: of rows past the shard that may be copied no bit depends") {
  // The shard is the first 61 positions of 64 in memory; the others are NaN.
  const Axes axes{.heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 64};
  const auto workload = normal_workload(5710, axes, std::vector<std::int64_t>{61});
  DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const DecodeOutput want = run_step(device::kEqualRuns, shard);
  shard.params.end = 61;
  CHECK(device::has_bulk_rows(shard.params, shard.dtype, 256));
  CHECK(same_output(run_step(device::kEqualRuns, shard), want));
}

TEST_CASE("short end: a cluster where the splits of a query tile fit into one, else equal runs") {
  const RoomForClusters room;
  const auto cluster = [&](int n) { return n <= room.largest() ? n : 0; };
  CHECK(short_plan(1, 1, 16384, 8).cluster == cluster(8));
  CHECK((short_plan(1, 1, 16384, 8).n_counters == 0) == (room.largest() >= 8));
  if (room.largest() > 8) CHECK(short_plan(1, 1, 16384, room.largest()).cluster == room.largest());
  for (const int n : {8, 9, 16}) CHECK(short_plan(1, 1, 16385, n).cluster == 0);
  CHECK(short_plan(1, 1, 16384, 7).cluster == 0);
  CHECK(short_plan(1, 1, 2048, 1).cluster == cluster(1));
  CHECK(short_plan(1, 1, 2049, 1).cluster == 0);
  CHECK(short_plan(1, 1, 4096, 17).cluster == 0);
  CHECK(short_plan(4, 1, 4096, 5).cluster == cluster(5));
  // Without a wish: one leaf, one block; and no clusters where they leave the device idle or do not fit on it at once.
  CHECK(short_plan(1, 1, 1, 0).cluster == cluster(1));
  const std::int64_t n = device::device().n_multiprocessors;
  CHECK(short_plan(2 * n, 2 * n, 512, 0).cluster == 0);
  CHECK(short_plan(1, 1, 1 << 20, 0).cluster == 0);
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// As on a part of a device, or one of whose parts none has 16 multiprocessors, or 8.
TEST_CASE("short end: no cluster of a size of which the device holds none, and no more of them than it holds at once") {
  int largest = 16;
  const auto cluster_on = [&](int major, int n_multiprocessors, std::int64_t kv_heads, std::int64_t n_leaves, int n_splits) {
    const emulated::SettingsScope scope(
        {.n_multiprocessors = n_multiprocessors, .major = major, .largest_cluster = largest});
    const device::LaunchPlan plan = short_plan(kv_heads, kv_heads, n_leaves * kLeafKeys, n_splits);
    if (plan.cluster == 0) CHECK(plan.n_blocks == (n_splits > 0 ? n_splits * kv_heads : plan.n_blocks));
    return plan.cluster;
  };
  for (const int here : {1, 2, 3, 4, 7, 8, 16, 132}) {
    CAPTURE(here);
    for (int n = 1; n <= 16; ++n) {
      // Clusters that are asked for may take turns.
      for (const std::int64_t kv_heads : {1, 40}) CHECK(cluster_on(9, here, kv_heads, 8, n) == (n <= here ? n : 0));
      CHECK(cluster_on(8, here, 1, 8, n) == 0);
    }
    CHECK(cluster_on(9, here, 1, 8, 0) == std::min(here, 8));
    CHECK(cluster_on(8, here, 1, 8, 0) == 0);
    // One for every query tile at once, or none.
    CHECK(cluster_on(9, here, 4, 8, 0) == (here == 132 ? 8 : here % 4 == 0 ? here / 4 : 0));
    // 65 leaves are too many for two blocks.
    CHECK(cluster_on(9, here, 1, 65, 0) == (here >= 3 && here <= 16 ? here : 0));
  }

  // 8k keys: 16 blocks for each of 8 query tiles, 8 for each of 16. Where there are no clusters of 16, those of 8 would
  // leave half of the device idle. 1k keys: no block has more leaves than warps.
  for (largest = 16; largest >= 7; --largest) {
    CAPTURE(largest);
    CHECK(cluster_on(9, 132, 8, 128, 0) == (largest >= 15 ? largest : 0));
    CHECK(cluster_on(9, 132, 16, 128, 0) == (largest >= 8 ? 8 : 0));
    CHECK(cluster_on(9, 132, 8, 16, 0) == largest);
    for (const int n : {8, 9, 16}) CHECK(cluster_on(9, 132, 8, 128, n) == (n <= largest ? n : 0));
  }

  const auto workload = normal_workload(5950, {.heads = 2, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 900});
  const DecodeOutput want = run_step(device::kEqualRuns, *workload);
  for (const int here : {1, 2, 5, 16, 31, 32, 132}) {
    for (const int largest_cluster : {8, 16}) {
      const emulated::SettingsScope scope({.n_multiprocessors = here, .largest_cluster = largest_cluster});
      for (const int n_splits : {0, 1, 2, 5, 8})
        CHECK(same_output(run_step(device::kShortEnd, *workload, {.n_splits = n_splits}), want));
    }
  }
}
#endif

}  // namespace tree_attn::test
