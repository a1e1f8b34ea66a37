// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel: how rows are copied in the background changes no bit. Those of the
/// ladder, which define the bits, are compared by test_plain.cpp.
#include "tests/support/device_params.hpp"

#include <array>
#include <utility>

namespace tree_attn::test {
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
      CHECK(same_output(run_step(device::kEqualRuns, *packed(*dense), {.n_splits = 3}), want));
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

}  // namespace tree_attn::test
