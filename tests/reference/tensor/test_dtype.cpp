// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Stored elements: every 8- and 16-bit pattern, every rounding, any address.
#include "tree_attn/tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace {

using namespace tree_attn;
using namespace tree_attn::test;

constexpr unsigned kSeed = 16;

/// The fields of a 16-bit format. The tests compute all expected values from them, independently of the library.
struct Format {
  DType dtype;
  int n_mantissa;  ///< stored bits of the mantissa
  int bias;        ///< of the exponent
};
constexpr Format kFormats[] = {{DType::F16, 10, 15}, {DType::BF16, 7, 127}};

/// The value of a bit pattern, by the definition of the format.
double decode(const Format& format, std::uint16_t pattern) {
  const int exponent_mask = (1 << (15 - format.n_mantissa)) - 1;
  const int mantissa = pattern & ((1 << format.n_mantissa) - 1), exponent = (pattern >> format.n_mantissa) & exponent_mask;
  const double sign = pattern >> 15 ? -1 : 1;
  if (exponent == exponent_mask)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias - format.n_mantissa);
  return sign * std::ldexp((1 << format.n_mantissa) + mantissa, exponent - format.bias - format.n_mantissa);
}

/// The value of a pattern of F8_E4M3.
double decode_8(unsigned pattern) {
  const int exponent = static_cast<int>(pattern >> 3 & 15), mantissa = static_cast<int>(pattern & 7);
  const double sign = pattern >> 7 ? -1 : 1;
  if ((pattern & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

/// x rounded to the format, ties to even, by scaling its last place to 1.
double round_to(const Format& format, float x) {
  if (!std::isfinite(x) || x == 0) return x;
  const int last_place = std::max(std::ilogb(x), 1 - format.bias) - format.n_mantissa;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -last_place)), last_place);
  return std::abs(rounded) >= std::ldexp(1.0, format.bias + 1) ? std::copysign(std::numeric_limits<double>::infinity(), x)
                                                               : rounded;
}

template <class Real>
bool same(Real a, Real b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

TEST_CASE_TEMPLATE("storage: every 16-bit pattern is read as the format defines it, at an odd address too", Real, float,
                   double) {
  for (const Format& format : kFormats) {
    // All patterns in one array that starts at an odd address.
    std::vector<std::byte> bytes(2 * 65536 + 1);
    for (unsigned i = 0; i < 65536; ++i) {
      const auto pattern = static_cast<std::uint16_t>(i);
      std::memcpy(bytes.data() + 1 + 2 * i, &pattern, 2);
    }
    std::vector<Real> read(65536);
    load(bytes.data() + 1, format.dtype, 65536, read.data());
    for (unsigned i = 0; i < 65536; ++i) {
      CAPTURE(i);
      REQUIRE(same(static_cast<double>(read[i]), decode(format, static_cast<std::uint16_t>(i))));
    }
  }
}

TEST_CASE("storage: a 16-bit element that is loaded and stored again keeps its bits") {
  for (const Format& format : kFormats) {
    for (unsigned i = 0; i < 65536; ++i) {
      const auto pattern = static_cast<std::uint16_t>(i);
      float x = 0;
      load(reinterpret_cast<const std::byte*>(&pattern), format.dtype, 1, &x);
      std::uint16_t again = 0;
      store(&x, format.dtype, 1, reinterpret_cast<std::byte*>(&again));
      if (std::isnan(x)) {
        REQUIRE((std::isnan(decode(format, again)) && again >> 15 == pattern >> 15));
      } else {
        REQUIRE(again == pattern);
      }
    }
  }
}

TEST_CASE("storage: storing rounds to nearest, ties to even, up to Inf and down to 0") {
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  for (const Format& format : kFormats) {
    const auto check = [&format](float x) {
      CAPTURE(x);
      std::uint16_t pattern = 0;
      store(&x, format.dtype, 1, reinterpret_cast<std::byte*>(&pattern));
      REQUIRE(same(decode(format, pattern), round_to(format, x)));
    };
    // Random floats, and the ties between two adjacent elements with their neighbours.
    for (int i = 0; i < 200000; ++i) check(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    for (unsigned i = 0; i + 1 < 65536; ++i) {
      const double a = decode(format, static_cast<std::uint16_t>(i)), b = decode(format, static_cast<std::uint16_t>(i + 1));
      if (!std::isfinite(a) || !std::isfinite(b)) continue;
      const auto tie = static_cast<float>((a + b) / 2);
      for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e38f)}) check(x);
    }
    for (const float x : {65503.9f, 65519.9f, 65520.0f, 3.39e38f, 3.4e38f}) check(x), check(-x);
  }
}

TEST_CASE("storage: every pattern of F8_E4M3 is read as the format defines it, and is an element of BF16") {
  // 1 sign, 4 bits of the exponent with a bias of 7, 3 of the mantissa; all ones are NaN, and there is no Inf.
  for (unsigned pattern = 0; pattern < 256; ++pattern) {
    CAPTURE(pattern);
    const float x = widen(Float8{static_cast<std::uint8_t>(pattern)});
    REQUIRE(same(static_cast<double>(x), decode_8(pattern)));
    REQUIRE(std::signbit(x) == (pattern >= 128));
    REQUIRE(same(widen(narrow<BFloat16>(x)), x));
    const std::uint8_t again = narrow<Float8>(x).bits;
    REQUIRE(again == pattern);
  }
  CHECK(decode_8(0x7E) == 448);
  CHECK(decode_8(0x01) == 0x1p-9);
}

TEST_CASE("storage: F8_E4M3 is rounded to the nearest element, ties to even, 448 from there on, and NaN of Inf and NaN") {
  // By search among all elements, the even pattern first.
  const auto nearest = [](float x) {
    unsigned best = 0;
    for (unsigned pattern = 0; pattern < 0x7F; ++pattern) {
      const double error = std::abs(decode_8(pattern) - std::abs(static_cast<double>(x))),
                   least = std::abs(decode_8(best) - std::abs(static_cast<double>(x)));
      if (error < least || (error == least && pattern % 2 == 0)) best = pattern;
    }
    return best + (std::signbit(x) ? 128 : 0);
  };
  const auto check = [&](float x) {
    CAPTURE(x);
    REQUIRE(narrow<Float8>(x).bits == nearest(x));
  };
  for (unsigned pattern = 0; pattern + 1 < 0x7F; ++pattern) {
    const auto tie = static_cast<float>((decode_8(pattern) + decode_8(pattern + 1)) / 2);
    for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e38f)}) check(x), check(-x);
  }
  for (const float x : {0.0f, 0x1p-149f, 0x1p-11f, 448.1f, 463.9f, 464.0f, 464.1f, 479.0f, 480.0f, 512.0f, 1e30f, 3.4e38f})
    check(x), check(-x);
  CAPTURE(kSeed);
  std::mt19937 random(kSeed + 2);
  std::uniform_real_distribution<float> exponent(-13, 10);
  for (int i = 0; i < 20000; ++i) check(std::exp2(exponent(random)) * (i % 2 == 0 ? 1.0f : -1.0f));
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  CHECK(narrow<Float8>(kInf).bits == 0x7F);
  CHECK(narrow<Float8>(-kInf).bits == 0xFF);
  CHECK(narrow<Float8>(kNaN).bits == 0x7F);
  CHECK(narrow<Float8>(-kNaN).bits == 0xFF);
  CHECK(narrow<Float8>(float_of(0x7F800001)).bits == 0x7F);
}

TEST_CASE("storage: F32 and F64 keep every bit, F64 to float rounds") {
  CAPTURE(kSeed);
  std::mt19937 random(kSeed + 1);
  std::vector<float> elements = normal_elements(random, 1300);
  elements[0] = -0.0f, elements[1] = std::numeric_limits<float>::denorm_min(),
  elements[2] = -std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::F32, DType::F64}) {
    // More elements than one internal buffer holds, from an odd address.
    std::vector<std::byte> bytes(elements.size() * bytes_of(dtype) + 1);
    store(elements.data(), dtype, 1300, bytes.data() + 1);
    std::vector<float> floats(1300);
    std::vector<double> doubles(1300);
    load(bytes.data() + 1, dtype, 1300, floats.data());
    load(bytes.data() + 1, dtype, 1300, doubles.data());
    for (std::size_t i = 0; i < elements.size(); ++i) {
      REQUIRE(same(floats[i], elements[i]));
      REQUIRE(same(doubles[i], static_cast<double>(elements[i])));
    }
  }
  const double third = 1.0 / 3;
  float rounded = 0;
  load(reinterpret_cast<const std::byte*>(&third), DType::F64, 1, &rounded);
  CHECK(rounded == 1.0f / 3);
  load<float>(nullptr, DType::F32, 0, nullptr);
  load<double>(nullptr, DType::BF16, 0, nullptr);
}

TEST_CASE("storage: all types, in order") {
  CHECK(std::vector<DType>(kDTypes.begin(), kDTypes.end()) ==
        std::vector<DType>{DType::F64, DType::F32, DType::F16, DType::BF16, DType::F8_E4M3});
  CHECK_FALSE(try_dtype(static_cast<DType>(kDTypes.size()), [](auto) {}));
  CHECK_THROWS_AS(bytes_of(static_cast<DType>(kDTypes.size())), std::invalid_argument);
  for (const DType dtype : kDTypes) {
    CAPTURE(name_of(dtype));
    // The largest element is finite. Half a step above it rounds to Inf, or saturates where there is none.
    const auto largest = static_cast<float>(largest_of(dtype));
    if (dtype == DType::F64 || dtype == DType::F32) {
      CHECK(largest_of(dtype) ==
            (dtype == DType::F64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max()));
      continue;
    }
    with_dtype(dtype, [largest]<class T>(T) {
      CHECK(static_cast<double>(widen(narrow<T>(largest))) == DTypeTraits<T>::kLargest);
      const float above = widen(narrow<T>(static_cast<float>(largest * (1 + DTypeTraits<T>::kUnitRoundoff))));
      CHECK((DTypeTraits<T>::kDType == DType::F8_E4M3 ? above == largest : std::isinf(above)));
    });
  }
}

TEST_CASE("storage: names, sizes, roundoffs") {
  CHECK(bytes_of(DType::F64) == 8);
  CHECK(bytes_of(DType::F32) == 4);
  CHECK(bytes_of(DType::F16) == 2);
  CHECK(bytes_of(DType::BF16) == 2);
  CHECK(bytes_of(DType::F8_E4M3) == 1);
  CHECK(name_of(DType::F64) == "F64");
  CHECK(name_of(DType::F32) == "F32");
  CHECK(name_of(DType::F16) == "F16");
  CHECK(name_of(DType::BF16) == "BF16");
  CHECK(name_of(DType::F8_E4M3) == "F8_E4M3");
  CHECK(lower_name_of(DType::F64) == "f64");
  CHECK(lower_name_of(DType::F8_E4M3) == "f8_e4m3");
  CHECK(unit_roundoff(DType::F8_E4M3) == std::ldexp(1.0, -4));
  CHECK(lower_name_of(DType::BF16) == "bf16");
  for (const Format& format : kFormats) CHECK(unit_roundoff(format.dtype) == std::ldexp(1.0, -1 - format.n_mantissa));
  CHECK(unit_roundoff(DType::F64) == std::numeric_limits<double>::epsilon() / 2);
  CHECK(unit_roundoff(DType::F32) == std::numeric_limits<float>::epsilon() / 2);
}

TEST_CASE("tensor view: positions are rows of the same memory") {
  std::vector<float> elements(2 * 3 * 5 * 4);
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  for (const DType dtype : {DType::F64, DType::F32, DType::F16, DType::BF16}) {
    const Tensor tensor(elements, {2, 3, 5, 4}, dtype);
    const TensorView part = tensor.view().positions(2, 4);
    CHECK(part.shape == Shape{2, 3, 2, 4});
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        for (std::int64_t n = 0; n < 2; ++n) {
          CHECK(part.row(i, j, n) == tensor.view().row(i, j, n + 2));
          CHECK(row_of(part, i, j, n) == row_of(tensor, i, j, n + 2));
        }
      }
    }
    CHECK(row_of(tensor, 1, 2, 3)[1] == ((1 * 3 + 2) * 5 + 3) * 4 + 1);
    CHECK(tensor.view().positions(5, 5).shape[2] == 0);
    CHECK(tensor.view().positions(1, 5).positions(1, 2).row(1, 1, 0) == tensor.view().row(1, 1, 2));
    CHECK_THROWS_AS(tensor.view().positions(-1, 2), std::out_of_range);
    CHECK_THROWS_AS(tensor.view().positions(3, 2), std::out_of_range);
    CHECK_THROWS_WITH_AS(tensor.view().positions(0, 6), "TensorView::positions: [0, 6) of 5", std::out_of_range);
  }
}
