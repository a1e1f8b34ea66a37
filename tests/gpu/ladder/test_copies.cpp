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

/// Rows of 1 to 17 elements, which leave padding of every size, and the next widths of thread groups.
/// @tested{eq_7, eq. (7)}
TEST_CASE("copies: rows of every small length have the bits of rows that are padded with zeros, NaN after them") {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (std::int64_t d = 1; d <= 17; ++d) {
      for (const std::int64_t d_v : {d, 18 - d}) {
        const Axes axes{
            .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = d, .value_dim = d_v, .n_keys = 70, .dtype = dtype};
        const Axes wide_axes{
            .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 32, .value_dim = 32, .n_keys = 70, .dtype = dtype};
        const auto narrow = normal_workload(5800 + static_cast<unsigned>(d), axes);
        const auto zeros_after = [&](const TensorView& view, const Shape& shape) {
          Tensor wide(std::vector<float>(static_cast<std::size_t>(n_elements(shape)), 0.0f), shape, dtype);
          for_each_row(view.shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
            std::memcpy(const_cast<std::byte*>(wide.view().row(i, h, a)), view.row(i, h, a),
                        static_cast<std::size_t>(view.shape[3]) * bytes_of(dtype));
          });
          return wide;
        };
        const auto wide = workload_of(zeros_after(narrow->query(0), wide_axes.q()), zeros_after(narrow->k(), wide_axes.k()),
                                      zeros_after(narrow->v(), wide_axes.v()), narrow->lengths(), narrow->scale);
        INFO(name_of(dtype) << ", d_h " << d << ", d_v " << d_v);
        const DecodeOutput output = run_step(device::kEqualRuns, *narrow), padded = run_step(device::kEqualRuns, *wide);
        CHECK(same_bits(output.lse, padded.lse));
        for (std::size_t row = 0; row < output.lse.size(); ++row) {
          const auto first = static_cast<std::ptrdiff_t>(row);
          CHECK(same_bits(std::vector(output.out.begin() + first * d_v, output.out.begin() + (first + 1) * d_v),
                          std::vector(padded.out.begin() + first * 32, padded.out.begin() + first * 32 + d_v)));
        }
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
