// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What hosts and devices share has the same bits on both: a state may be finished on either.
///
/// The emulator compiles the code of the host, so only a device can differ.
#include "tree_attn/reference/state/state.hpp"
#include "tree_attn/tests/gpu/cuda/host_bits.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tree_attn::test {
namespace {

namespace device = TREE_ATTN_PLATFORM;

constexpr std::uint32_t kNaNs = 0x7F800001;  ///< the first pattern of a NaN

/// Patterns of which lse differs from that of the host.
int n_other_lse(float e, std::uint32_t first, std::uint32_t stride, std::uint32_t n) {
  const std::vector<float> lse = device::lse_on_device(e, first, stride, n);
  int n_other = lse.size() == n ? 0 : 1;
  for (std::uint32_t i = 0; i < lse.size(); ++i) {
    const float state[] = {e, float_of(first + i * stride)};
    n_other += bits_of(lse[i]) != bits_of(finish_lse(state));
  }
  return n_other;
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("host bits: lse has those of the host, for every D in [1/2, 2] and any other") {
  CHECK(n_other_lse(0, bits_of(0.5f), 1, bits_of(2.0f) - bits_of(0.5f) + 1) == 0);
  CHECK(n_other_lse(-37, bits_of(0.5f), 61, (bits_of(2.0f) - bits_of(0.5f)) / 61 + 1) == 0);
  // The exponents cancel: lse is near 0.
  CHECK(n_other_lse(-20, bits_of(0x1p19f), 17, (bits_of(0x1p21f) - bits_of(0x1p19f)) / 17 + 1) == 0);
  // From 0 over subnormal numbers to Inf and NaN; the last are negative.
  CHECK(n_other_lse(5, 0, 65521, 65536) == 0);
  CHECK(n_other_lse(5, kNaNs - 3, 1, 6) == 0);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float e : {infinity, -infinity, std::nanf(""), 0x1p30f}) CHECK(n_other_lse(e, 0, 1 << 22, 512) == 0);
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("host bits: n / D has those of the host") {
  std::mt19937 random(8400);
  std::vector<float> n, sum;
  const auto add = [&](float n_j, float D) { n.push_back(n_j), sum.push_back(D); };
  for (int i = 0; i < 20000; ++i) {
    add(float_of(static_cast<std::uint32_t>(random())), float_of(static_cast<std::uint32_t>(random())));
    // A quotient that is subnormal, or the largest float.
    add(float_of(static_cast<std::uint32_t>(random()) % 0x04000000), float_of(0x3F800000 + random() % 0x01000000));
    add(float_of(0x7F000000 + random() % 0x00800000), float_of(0x3F000000 + random() % 0x01000000));
  }
  const std::vector<float> z = device::values_on_device(n, sum);
  REQUIRE(z.size() == n.size());
  int n_other = 0;
  for (std::size_t i = 0; i < n.size(); ++i) {
    const float state[] = {0, sum[i]};
    n_other += bits_of(z[i]) != bits_of(finish_value(state, n[i]));
  }
  CHECK(n_other == 0);
}

TEST_CASE("host bits: every 16-bit element is widened, and every rounding boundary narrowed, as on the host") {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    with_dtype(dtype, [&]<class T>(T) {
      if constexpr (sizeof(T) == 2) {
        CAPTURE(name_of(dtype));
        const std::vector<float> widened = device::widened_on_device(dtype);
        REQUIRE(widened.size() == 65536);
        int n_other = 0;
        std::vector<float> elements;
        for (std::uint32_t i = 0; i < 65536; ++i) {
          const float wide = widen(T{static_cast<std::uint16_t>(i)});
          n_other += std::isnan(wide) ? !std::isnan(widened[i]) : bits_of(widened[i]) != bits_of(wide);
          // The element, the tie between it and the next larger in size, and the floats next to both. The tie above the
          // largest element is that with the power of two that follows.
          if (!std::isfinite(wide)) continue;
          const float next = widen(T{static_cast<std::uint16_t>(i + 1)}),
                      below = widen(T{static_cast<std::uint16_t>(i - 1)});
          const double step = std::isfinite(next) ? double{next} - wide : double{wide} - below;
          const auto tie = static_cast<float>(wide + step / 2);
          for (const float x : {wide, tie}) {
            for (const std::uint32_t near : {0u, 1u, ~0u}) elements.push_back(float_of(bits_of(x) + near));
          }
        }
        CHECK(n_other == 0);
        // And any float: far above, far below, Inf and NaN.
        for (std::uint32_t bits = 0; bits < 0xFFFF0000; bits += 65521) elements.push_back(float_of(bits));
        const std::vector<std::uint16_t> narrowed = device::narrowed_on_device(dtype, elements);
        REQUIRE(narrowed.size() == elements.size());
        n_other = 0;
        for (std::size_t i = 0; i < elements.size(); ++i) {
          n_other +=
              std::isnan(elements[i]) ? !std::isnan(widen(T{narrowed[i]})) : narrowed[i] != narrow<T>(elements[i]).bits;
        }
        CHECK(n_other == 0);
      }
    });
  }
}

}  // namespace tree_attn::test
