// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Code that hosts and devices share has the same bits on both: a state may be finished on either.
///
/// The emulator compiles the code of the host, so only a device can differ.
#include "reference/state/state.hpp"
#include "tests/gpu/engine/part_kernels.hpp"

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

/// States of one component, [n][3].
using States = std::vector<float>;
void add(States& states, float e, float D, float n_j) { states.insert(states.end(), {e, D, n_j}); }

enum Finished : std::size_t { kLse, kQuotient };

/// Results that differ from those of the host.
int n_other(const States& states, Finished which) {
  const std::vector<float> finished = device::finish_on_device(states);
  REQUIRE(3 * finished.size() == 2 * states.size());
  int n = 0;
  for (std::size_t i = 0; i < states.size() / 3; ++i) {
    const float* const state = states.data() + 3 * i;
    n +=
        bits_of(finished[2 * i + which]) != bits_of(which == kLse ? finish_lse(state) : finish_value(state, state[kValues]));
  }
  return n;
}

/// Counts the lse that differ, for n sums D whose bits are first, first + stride, first + 2 stride, ...
int n_other(float e, std::uint32_t first, std::uint32_t stride, std::uint32_t n) {
  States states;
  for (std::uint32_t i = 0; i < n; ++i) add(states, e, float_of(first + i * stride), 1);
  return n_other(states, kLse);
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("host bits: lse has those of the host, for every D in [1/2, 2] and any other") {
  CHECK(n_other(0, bits_of(0.5f), 1, bits_of(2.0f) - bits_of(0.5f) + 1) == 0);
  CHECK(n_other(-37, bits_of(0.5f), 61, (bits_of(2.0f) - bits_of(0.5f)) / 61 + 1) == 0);
  // The exponents cancel: lse is near 0.
  CHECK(n_other(-20, bits_of(0x1p19f), 17, (bits_of(0x1p21f) - bits_of(0x1p19f)) / 17 + 1) == 0);
  // From 0 over subnormal numbers to Inf and NaN; the last are negative.
  CHECK(n_other(5, 0, 65521, 65536) == 0);
  CHECK(n_other(5, kNaNs - 3, 1, 6) == 0);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float e : {infinity, -infinity, std::nanf(""), 0x1p30f}) CHECK(n_other(e, 0, 1 << 22, 512) == 0);
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("host bits: n / D has those of the host") {
  std::mt19937 random(8400);
  const auto bits = [&random] { return static_cast<std::uint32_t>(random()); };
  States states;
  for (int i = 0; i < 20000; ++i) {
    add(states, 0, float_of(bits()), float_of(bits()));
    // A quotient that is subnormal, or the largest float.
    add(states, 0, float_of(0x3F800000 + bits() % 0x01000000), float_of(bits() % 0x04000000));
    add(states, 0, float_of(0x3F000000 + bits() % 0x01000000), float_of(0x7F000000 + bits() % 0x00800000));
  }
  CHECK(n_other(states, kQuotient) == 0);
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
