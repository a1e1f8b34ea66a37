// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel: how rows are copied in the background changes no bit. Those of the
/// ladder, which define the bits, are compared by test_plain.cpp.
#include "tests/support/device_params.hpp"

#include <array>
#include <utility>

namespace tree_attn::test {
TEST_CASE("copies: rows in bulk and rows one by one have the same bits, and rows that cannot be copied are refused") {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const std::int64_t n_keys : {1, 7, 8, 16, 200, 333, 600}) {
      const std::int64_t d = n_keys % 2 == 0 ? 64 : 512;  // those of 16 bits by a warp and by four
      const Axes axes{
          .heads = n_keys == 600 ? 6 : 2, .kv_heads = 2, .head_dim = d, .value_dim = d, .n_keys = n_keys, .dtype = dtype};
      INFO(name_of(dtype) << ", keys " << n_keys);
      const auto dense = normal_workload(5700 + static_cast<unsigned>(n_keys), axes);
      DeviceShard shard(dense->query(0), dense->whole(), dense->lengths(), dense->scale);
      CHECK(device::has_bulk_rows(shard.params, dtype));
      const DecodeOutput want = run_step(device::kEqualRuns, *dense);
      // Values that are no multiple of 16 bytes are copied by pieces.
      TensorWorkload shorter({}, dense->query(0), dense->k(), dense->v().components(d - 1), dense->lengths(), dense->scale);
      const DeviceShard one_by_one(shorter.query(0), shorter.whole(), shorter.lengths(), shorter.scale);
      CHECK_FALSE(device::has_bulk_rows(one_by_one.params, dtype));
      const DecodeOutput of_shorter = run_step(device::kEqualRuns, one_by_one);
      CHECK(same_bits(of_shorter.lse, want.lse));
      for (std::size_t r = 0; r < want.lse.size(); ++r)
        CHECK(same_bits(
            std::span(of_shorter.out).subspan(r * static_cast<std::size_t>(d - 1), static_cast<std::size_t>(d - 1)),
            std::span(want.out).subspan(r * static_cast<std::size_t>(d), static_cast<std::size_t>(d - 1))));
      CHECK(against_oracle(*dense, want, device::kEqualRuns, shard) == "");
      CHECK(same_output(run_step(device::kEqualRuns, *packed(*dense), {.n_splits = 3}), want));
      const auto is_refused = [&](const DecodeParams& params) {
        CHECK(device::kEqualRuns.refusal(params, dtype) == "rows that do not start at multiples of 16 bytes");
      };
      for (DeviceView DecodeParams::*const view : {&DecodeParams::k, &DecodeParams::v}) {
        for (const std::size_t axis : {0, 1, 2}) {
          DecodeParams odd = shard.params;
          ++(odd.*view).stride[axis], is_refused(odd);
        }
        DecodeParams odd = shard.params;
        (odd.*view).data = static_cast<const char*>((odd.*view).data) + 8, is_refused(odd);
      }
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
  CHECK(device::has_bulk_rows(shard.params, shard.dtype));
  CHECK(same_output(run_step(device::kEqualRuns, shard), want));
}

}  // namespace tree_attn::test
