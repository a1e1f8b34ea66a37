// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bits of tensor walks: the exponential, with its error, and digests of decodes for every way in which tensor cores
/// add, the same under the emulator, compiled, and on a device as far as the published sums hold (eq. (7), section 5).
#include "reference/data/fnv1a.hpp"
#include "tests/gpu/engine/part_kernels.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/sweep.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

#include <array>

namespace tree_attn::test::tensor_bits_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Largest error of 2^(scale x - shift), in u relative to the result.
double largest_error(const std::vector<float>& x, float scale, float shift) {
  const std::vector<float> power = device::exp2_on_device(x, scale, shift);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(double{scale} * double{x[i]} - double{shift});
    worst = larger_error(worst, std::abs(power[i] - exact) / exact * 0x1p24);
  }
  return worst;
}

/// Elements of both signs with magnitudes over twelve powers of two, drawn without any function of a C library.
Tensor random_tensor(std::mt19937& random, const Shape& shape, DType dtype) {
  std::vector<float> elements(static_cast<std::size_t>(n_elements(shape)));
  for (float& x : elements) {
    const auto bits = static_cast<std::uint32_t>(random());
    x = static_cast<float>(static_cast<int>(bits >> 8 & 0x7FF) - 1024) * 0x1p-9f /
        static_cast<float>(1 << (bits & 0xF) % 12);
  }
  return Tensor(elements, shape, dtype);
}

/// The digest of out and lse of decodes that take all tiles of a type, by the library kernel.
std::uint64_t digest_of(DType dtype) {
  std::mt19937 random(6800);
  std::uint64_t digest = kFnvStart;
  for (const auto& [d_h, d_v] : {std::pair{64, 64}, {40, 24}, {128, 128}, {192, 128}, {256, 256}, {576, 512}}) {
    for (const std::int64_t group : {1, 5}) {
      const Axes axes{.heads = group, .kv_heads = 1, .head_dim = d_h, .value_dim = d_v, .n_keys = 70 + d_h, .dtype = dtype};
      Tensor q = random_tensor(random, axes.q(), dtype), k = random_tensor(random, axes.k(), dtype),
             v = random_tensor(random, axes.v(), dtype);
      const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, 0.5);
      const DecodeOutput output = run_step(device::kEqualRuns, *workload);
      digest = fnv1a(std::as_bytes(std::span(output.out)), digest);
      digest = fnv1a(std::as_bytes(std::span(output.lse)), digest);
    }
  }
  return digest;
}

}  // namespace

/// The fast set has one float of 2^12, between 2^-27 and 1/2: below, a power rounds to 1.
/// @tested{eq_7, eq. (7)}
TEST_CASE("tensor bits: 2^x is a polynomial, within 1.14 u between -1/2 and 1/2") {
  const std::uint32_t first = bits_of(0x1p-27f), last = bits_of(0.5f), step = takes_all_cases() ? 1 << 6 : 1 << 12;
  std::vector<float> x;
  for (std::uint32_t bits = first; bits <= last; bits += step) x.push_back(float_of(bits)), x.push_back(-float_of(bits));
  CHECK(largest_error(x, 1, 0) < 1.14);
  CHECK(device::exp2_on_device({0.0f, -0.0f, 0x1p-30f, -0x1p-30f}, 1, 0) == std::vector<float>(4, 1));
}

/// Exponents are exact ones that no float holds.
/// @tested{eq_7, eq. (7)}
TEST_CASE("tensor bits: 2^(scale x - shift) is within 1.32 u wherever it is not 0, and exact in whole numbers") {
  std::mt19937 random(6801);
  for (const auto& [scale, shift] : {std::pair{0.3f, 7.0f}, {1.7f, -100.0f}, {0x1.8p-10f, 0.0f}, {1.0f, 4000000.0f}}) {
    std::vector<float> x;
    for (int i = 0; i < 4000; ++i) x.push_back((shift - 126 * static_cast<float>(random() % (1 << 20)) * 0x1p-20f) / scale);
    CHECK(largest_error(x, scale, shift) < 1.32);
  }
  const std::vector<float> x{0, -1, -125, -126, -126.75f, -127, -128, -1e9f, -3e38f, -kInf};
  const std::vector<float> want{1, 0.5f, 0x1p-125f, 0x1p-126f, 0, 0, 0, 0, 0, 0};
  const std::vector<float> power = device::exp2_on_device(x, 1, 0);
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(bits_of(power[i]) == bits_of(want[i]));
  CHECK(std::isnan(device::exp2_on_device({std::numeric_limits<float>::quiet_NaN()}, 1, 0)[0]));
}

/// On a GPU this says whether its tensor cores add as published.
/// @tested{eq_7, eq. (7)}
TEST_CASE("tensor bits: digests of compute capability 8, and of 9 and later") {
  struct Known {
    DType dtype;
    std::uint64_t of_8, of_9;
  };
  for (const auto& [dtype, of_8, of_9] : {Known{DType::F16, 0x5f21a0294ac7941b, 0x6d6ab26c07da61f7},
                                          Known{DType::BF16, 0xe895c76688cfed74, 0xb3f4b1566a66a01a}}) {
    CAPTURE(name_of(dtype));
#if !defined(TREE_ATTN_FOR_CUDA)
    for (const int major : {8, 9}) {
      const emulated::SettingsScope scope({.major = major});
      CHECK(digest_of(dtype) == (major == 8 ? of_8 : of_9));
    }
#else
    CHECK(digest_of(dtype) == (device::device().major == 8 ? of_8 : of_9));
#endif
  }
}

}  // namespace tree_attn::test::tensor_bits_test
