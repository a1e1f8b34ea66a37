// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 8, latent rows by warpgroups: the bits of rung 6 (section 6.3).
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

namespace tree_attn::test::many_rows_test {
namespace {

/// One kv head of latent rows, whose values are the first components of its keys.
struct Latent {
  std::unique_ptr<TensorWorkload> memory;
  TensorWorkload workload;

  Latent(unsigned seed, DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t d_h, std::int64_t d_v,
         std::int64_t n_keys, std::vector<std::int64_t> lengths)
      : Latent(*normal_workload(seed,
                                {.batch = batch,
                                 .heads = heads,
                                 .kv_heads = 1,
                                 .head_dim = d_h,
                                 .value_dim = d_v,
                                 .n_keys = n_keys,
                                 .dtype = dtype},
                                std::move(lengths)),
               [](Tensor&) {}) {}
  template <class Change>
  Latent(TensorWorkload& of, const Change& change)
      : memory(workload_of(copy_of(of.query(0)), changed(of.k(), change), copy_of(of.v()), of.lengths(), of.scale)),
        workload({}, memory->query(0), memory->k(), memory->k().components(of.v().shape[3]), of.lengths(), of.scale) {}
  template <class Change>
  static Tensor changed(const TensorView& of, const Change& change) {
    Tensor copy = copy_of(of);
    change(copy);
    return copy;
  }
};

bool has_warpgroups() { return device::device().major == 9; }

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("many rows: latent rows have the bits of rung 6, for every number of heads, length and split") {
  if (!has_warpgroups()) return;
  unsigned seed = 6900;
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const auto& [d_h, d_v] : {std::pair{576, 512}, {320, 256}, {264, 72}, {296, 290}}) {
      for (const std::int64_t heads : {1, 9, 16, 17, 33, 64}) {
        for (const std::int64_t n_keys : {1, 64, 65, 130, 500}) {
          ++seed;
          if (!takes_all_cases() && (seed % 9 != 0 || (d_h != 576 && heads > 17))) continue;
          Latent latent(seed, dtype, 1, heads, d_h, d_v, n_keys, {n_keys - n_keys / 100});
          INFO(name_of(dtype) << ", d_h " << d_h << ", d_v " << d_v << ", " << heads << " heads, N " << n_keys);
          const DecodeOutput plain = run_step(device::kTensor, latent.workload, {.n_splits = 2});
          for (const int n_splits : {0, 1, 3})
            CHECK(same_output(run_step(device::kLatent, latent.workload, {.n_splits = n_splits}), plain));
        }
      }
    }
  }
}

TEST_CASE("many rows: sequences of different lengths, one of them empty") {
  if (!has_warpgroups()) return;
  for (const DType dtype : {DType::BF16, DType::F16}) {
    Latent latent(6990, dtype, 3, 20, 576, 512, 460, {460, 0, 131});
    CHECK(same_output(run_step(device::kLatent, latent.workload, {.n_splits = 3}),
                      run_step(device::kTensor, latent.workload, {.n_splits = 2})));
  }
}

TEST_CASE("many rows: a key of Inf or NaN, or a value, has the bits of rung 6") {
  if (!has_warpgroups()) return;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::BF16, DType::F16}) {
    for (const auto& [component, number] : {std::pair{5, kInf}, {5, -kInf}, {575, std::nanf("")}, {512, kInf}}) {
      const auto normal = normal_workload(
          6995, {.heads = 11, .kv_heads = 1, .head_dim = 576, .value_dim = 512, .n_keys = 270, .dtype = dtype},
          std::vector<std::int64_t>{259});
      Latent latent(*normal, [&](Tensor& k) { k.set(0, 0, 77, component, number); });
      INFO(name_of(dtype) << ", " << number << " at " << component);
      CHECK(same_output(run_step(device::kLatent, latent.workload, {.n_splits = 2}),
                        run_step(device::kTensor, latent.workload)));
    }
  }
}

}  // namespace tree_attn::test::many_rows_test
