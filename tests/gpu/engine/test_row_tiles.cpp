// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Several tiles of rows that read one ring: what is not finite stays in its row, and keys and values are copied once
/// for all of them (section 6.3). Their bits are in test_many_rows.cpp and ladder/test_plain.cpp.
#include "tests/support/device_params.hpp"

#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/stream.hpp"
#endif

namespace tree_attn::test {
namespace {

/// One kv head with so many rows.
Axes rows_of(std::int64_t n_rows, DType dtype, std::int64_t d, std::int64_t n_keys) {
  return {.heads = 1, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_queries = n_rows, .n_keys = n_keys, .dtype = dtype};
}

/// Rows of a step that have other bits than the same rows alone.
int n_different(TensorWorkload& workload, const DecodeOutput& all) {
  int n = 0;
  const std::int64_t d = workload.v().shape[3];
  for (std::int64_t r = 0; r < workload.query(0).shape[2]; ++r) {
    const auto row = workload_of(copy_of(workload.query(0).positions(r, r + 1)), copy_of(workload.k()),
                                 copy_of(workload.v()), workload.lengths(), workload.scale);
    n += !same_output(
        {{all.out.begin() + r * d, all.out.begin() + (r + 1) * d}, {all.lse.begin() + r, all.lse.begin() + r + 1}},
        run_step(device::kEqualRuns, *row, {.n_splits = 1}));
  }
  return n;
}

}  // namespace

/// A query of NaN, or a value of Inf, makes sums not finite, which the launch that combines replaces.
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
      CHECK(n_different(*workload, all) == 0);
      CHECK(std::isnan(all.out[static_cast<std::size_t>((n_rows - 1) * 64)]) == !in_value);
      CHECK(std::isfinite(all.out[5]) == !in_value);
    }
  }
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// Copies through tensor maps bring rows and nothing else, and every byte of a cache of whole leaves once for all rows that
/// read one ring: up to four tiles, or two where the shared memory of a device holds two warps; of long rows 16. Of keys
/// that hold the values those of the keys alone. Where there are warpgroups, for 64 rows of up to 128 elements, and for 32
/// of keys that hold the values.
TEST_CASE("row tiles: keys and values are copied once for the rows of a ring, and values in the keys with them") {
  struct Case {
    DType dtype;
    std::int64_t d_h, d_v, n_rows, n_rows_of_two;
  };
  for (const auto& [dtype, d_h, d_v, n_large, n_small] : {Case{DType::BF16, 64, 64, 32, 16},
                                                          {DType::BF16, 128, 128, 32, 16},
                                                          {DType::BF16, 256, 256, 32, 16},
                                                          {DType::F16, 64, 64, 32, 16},
                                                          {DType::F16, 128, 128, 32, 16},
                                                          {DType::F16, 256, 256, 32, 16},
                                                          {DType::BF16, 576, 512, 16, 16},
                                                          {DType::F16, 576, 512, 16, 16},
                                                          {DType::F8_E4M3, 576, 512, 16, 16},
                                                          {DType::BF16, 320, 256, 16, 16},
                                                          {DType::BF16, 512, 512, 16, 16}}) {
    for (const std::size_t shared_bytes : {std::size_t{227 * 1024}, std::size_t{99 * 1024}}) {
      const bool is_large = shared_bytes == 227 * 1024, is_latent = d_h > 256;
      for (const std::int64_t n_rows : is_latent ? std::vector<std::int64_t>{1, 8, 9, 16, 17, 33, 65, 128}
                                                 : std::vector<std::int64_t>{1, 8, 9, 16, 17, 32, 33, 64, 65}) {
        emulated::Settings settings{.n_multiprocessors = 16, .shared_bytes = shared_bytes};
        if (!is_large) settings.major = 12;
        const emulated::SettingsScope scope(settings);
        Axes axes = rows_of(n_rows, dtype, d_h, 5 * kLeafKeys);
        axes.value_dim = d_v;
        const auto normal = normal_workload(4800, axes);
        TensorWorkload in_keys({}, normal->query(0), normal->k(), normal->k().components(d_v), normal->lengths(),
                               normal->scale);
        const auto apart = workload_of(copy_of(in_keys.query(0)), copy_of(in_keys.k()), copy_of(in_keys.v()));
        const DecodeOutput want = run_step(device::kEqualRuns, *apart, {.n_splits = 1});
        std::vector<TensorWorkload*> workloads{&*apart};
        if (is_latent) workloads.push_back(&in_keys);
        for (TensorWorkload* workload : workloads) {
          INFO(name_of(dtype) << ", d " << d_h << ", " << n_rows << " rows, " << shared_bytes << " bytes"
                              << ", values in the keys: " << (workload == &in_keys));
          const bool is_of_warpgroups = is_large && (d_h <= 128 || workload == &in_keys) && n_rows > 16;
          const std::int64_t before = emulated::traffic().bytes_bulk,
                             n_at_once = is_of_warpgroups ? (is_latent && n_rows <= 32 ? 32 : 64)
                                         : is_large       ? n_large
                                                          : n_small,
                             n_elements = d_h + (workload == &in_keys ? 0 : d_v);
          CHECK(same_output(run_step(device::kEqualRuns, *workload, {.n_splits = 2}), want));
          CHECK(emulated::traffic().bytes_bulk - before ==
                (n_rows + n_at_once - 1) / n_at_once * 5 * kLeafKeys * std::int64_t{bytes_of(dtype)} * n_elements);
        }
      }
    }
  }
}
#endif

}  // namespace tree_attn::test
