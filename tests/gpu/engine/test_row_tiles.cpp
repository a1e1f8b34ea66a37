// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Several tiles of rows that read one ring: a row has the bits of itself alone, and keys and values are copied once
/// for all of them (section 6.3).
#include "tree_attn/tests/support/device_params.hpp"
#include "tree_attn/tests/support/room_for_clusters.hpp"
#include "tree_attn/tests/support/sweep.hpp"

#if !defined(TREE_ATTN_FOR_CUDA)
#include "tree_attn/gpu/platform/emulator/stream.hpp"
#endif

namespace tree_attn::test {
namespace {

/// Rows of a tile, and of the largest query tile: as in with_tile() and row_tiles().
std::int64_t tile_rows(const Axes& axes) { return axes.dtype == DType::F16 && axes.head_dim > 128 ? 4 : 8; }

/// One kv head with so many rows.
Axes rows_of(std::int64_t n_rows, DType dtype, std::int64_t d, std::int64_t n_keys) {
  return {.heads = 1, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_queries = n_rows, .n_keys = n_keys, .dtype = dtype};
}

/// The step of row r alone.
DecodeOutput alone(TensorWorkload& workload, std::int64_t r) {
  const auto row = workload_of(copy_of(workload.query(0).positions(r, r + 1)), copy_of(workload.k()), copy_of(workload.v()),
                               workload.lengths(), workload.scale);
  return run_step(device::kEqualRuns, *row, {.n_splits = 1});
}

/// Rows of a step that have other bits than the same rows alone.
int n_different(TensorWorkload& workload, const DecodeOutput& all, std::int64_t first, std::int64_t step) {
  int n = 0;
  const std::int64_t d = workload.v().shape[3];
  for (std::int64_t r = first; r < workload.query(0).shape[2]; r += step) {
    DecodeOutput row{{all.out.begin() + r * d, all.out.begin() + (r + 1) * d},
                     {all.lse.begin() + r, all.lse.begin() + r + 1}};
    n += !same_output(row, alone(workload, r));
  }
  return n;
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("row tiles: a row has the bits of itself alone, in query tiles of 1, 2 and 4 tiles, and in several") {
  unsigned seed = 4700;
  std::int64_t drawn = 0;
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const std::int64_t d : {64, 128, 256}) {
      for (const std::int64_t n_rows : {5, 8, 9, 13, 16, 17, 23, 25, 32, 33, 66}) {
        if (!takes_all_cases() && ++drawn % 4 != 1) continue;
        const auto workload = normal_workload(++seed, rows_of(n_rows, dtype, d, 500));
        for (const int n_splits : {0, 1, 3}) {
          INFO(name_of(dtype) << ", d " << d << ", " << n_rows << " rows, " << n_splits << " splits");
          CHECK(n_different(*workload, run_step(device::kEqualRuns, *workload, {.n_splits = n_splits}), seed % 3, 3) == 0);
          const RoomForClusters room;
          CHECK(n_different(*workload, run_step(device::kShortEnd, *workload, {.n_splits = n_splits}), seed % 5, 5) == 0);
        }
      }
    }
  }
}

/// A row whose query is NaN sends its team over the leaves again, and so does a value.
TEST_CASE("row tiles: what is not finite in one of them leaves the bits of the others") {
  for (const std::int64_t n_rows : {12, 29}) {
    for (const bool in_value : {false, true}) {
      const Axes axes = rows_of(n_rows, DType::BF16, 64, 300);
      std::mt19937 random(4790);
      Tensor q = normal_tensor(random, axes.q(), axes.dtype), k = normal_tensor(random, axes.k(), axes.dtype),
             v = normal_tensor(random, axes.v(), axes.dtype);
      if (in_value)
        v.set(0, 0, 77, 5, std::numeric_limits<float>::infinity());
      else
        q.set(0, 0, n_rows - 1, 3, std::numeric_limits<float>::quiet_NaN());
      const auto workload = workload_of(std::move(q), std::move(k), std::move(v));
      INFO(n_rows << " rows, " << (in_value ? "a value" : "a query"));
      const DecodeOutput all = run_step(device::kEqualRuns, *workload, {.n_splits = 2});
      CHECK(n_different(*workload, all, 0, 1) == 0);
      CHECK(std::isnan(all.out[static_cast<std::size_t>((n_rows - 1) * 64)]) == !in_value);
      CHECK(std::isfinite(all.out[5]) == !in_value);
    }
  }
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// Copies through tensor maps bring rows and nothing else, and every byte of a cache of whole leaves once for each query
/// tile: 32 rows, or 16 where a tile has four; half of that where the shared memory of a device holds two warps.
TEST_CASE("row tiles: keys and values are copied once for all rows of up to four tiles") {
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const std::int64_t d : {64, 128, 256}) {
      for (const std::size_t shared_bytes : {std::size_t{227 * 1024}, std::size_t{99 * 1024}}) {
        for (const std::int64_t n_rows : {1, 8, 9, 16, 17, 32, 33, 64, 65}) {
          const Axes axes = rows_of(n_rows, dtype, d, 5 * kLeafKeys);
          const auto workload = normal_workload(4800, axes);
          emulated::Settings settings{.n_multiprocessors = 16, .shared_bytes = shared_bytes};
          if (shared_bytes < 227 * 1024) settings.major = 12;
          const emulated::SettingsScope scope(settings);
          for (const device::DecodeKernel* kernel : {&device::kEqualRuns, &device::kShortEnd}) {
            const std::int64_t of_tile = tile_rows(axes) * (shared_bytes < 227 * 1024 ? 2 : 4);
            const std::int64_t before = emulated::traffic().bytes_bulk;
            run_step(*kernel, *workload, {.n_splits = 2});
            INFO(name_of(dtype) << ", d " << d << ", " << n_rows << " rows, " << shared_bytes << " bytes, " << kernel->name);
            CHECK(emulated::traffic().bytes_bulk - before == (n_rows + of_tile - 1) / of_tile * 5 * kLeafKeys * 2 * d * 2);
          }
        }
      }
    }
  }
}
#endif

}  // namespace tree_attn::test
