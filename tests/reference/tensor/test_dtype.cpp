// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Stored elements: every 8- and 16-bit pattern, every rounding, any address.
#include "tests/support/message.hpp"
#include "tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace {

using namespace tree_attn;
using namespace tree_attn::test;

constexpr unsigned kSeed = 16;

/// The fields of a format of 16 bits or 8. The tests compute all expected values from them, independently of the library.
struct Format {
  DType dtype;
  int n_bits;      ///< of an element
  int n_mantissa;  ///< stored bits of the mantissa
  int bias;        ///< of the exponent
};
constexpr Format kFormats[] = {{DType::F16, 16, 10, 15}, {DType::BF16, 16, 7, 127}, {DType::F8_E4M3, 8, 3, 7}};
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

/// The value of a bit pattern, by the definition of the format. F8_E4M3 has no Inf, and NaN is all ones.
double decode(const Format& format, unsigned pattern) {
  const int ones = (1 << (format.n_bits - 1 - format.n_mantissa)) - 1, hidden = 1 << format.n_mantissa;
  const int mantissa = static_cast<int>(pattern) & (hidden - 1),
            exponent = static_cast<int>(pattern) >> format.n_mantissa & ones;
  const double sign = pattern >> (format.n_bits - 1) ? -1 : 1;
  if (exponent == ones && (format.n_bits == 16 || mantissa == hidden - 1)) return mantissa ? kNaN : sign * kInf;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias - format.n_mantissa);
  return sign * std::ldexp(hidden + mantissa, exponent - format.bias - format.n_mantissa);
}

/// x rounded to the format, ties to even, by scaling its last place to 1. F8_E4M3 has 448 where others have Inf, and NaN of
/// Inf.
double round_to(const Format& format, float x) {
  if (std::isinf(x) && format.n_bits == 8) return kNaN;
  if (!std::isfinite(x) || x == 0) return x;
  const int last_place = std::max(std::ilogb(x), 1 - format.bias) - format.n_mantissa;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -last_place)), last_place);
  if (format.n_bits == 8) return std::copysign(std::min(std::abs(rounded), 448.0), x);
  return std::abs(rounded) >= std::ldexp(1.0, format.bias + 1) ? std::copysign(kInf, x) : rounded;
}

/// Loads an element, and stores one.
float widened(const Format& format, unsigned pattern) {
  float x = 0;
  load(reinterpret_cast<const std::byte*>(&pattern), format.dtype, 1, &x);
  return x;
}
unsigned narrowed(DType dtype, float x) {
  unsigned pattern = 0;
  store(&x, dtype, 1, reinterpret_cast<std::byte*>(&pattern));
  return pattern;
}

template <class Real>
bool same(Real a, Real b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

TEST_CASE_TEMPLATE("storage: every 16- and 8-bit pattern is read as the format defines it, at an odd address too", Real,
                   float, double) {
  for (const Format& format : kFormats) {
    // All patterns in one array that starts at an odd address.
    const unsigned n = 1u << format.n_bits, size = static_cast<unsigned>(bytes_of(format.dtype));
    std::vector<std::byte> bytes(size * n + 1);
    for (unsigned i = 0; i < n; ++i) std::memcpy(bytes.data() + 1 + size * i, &i, size);
    std::vector<Real> read(n);
    load(bytes.data() + 1, format.dtype, n, read.data());
    for (unsigned i = 0; i < n; ++i) {
      CAPTURE(i);
      REQUIRE(same(static_cast<double>(read[i]), decode(format, i)));
    }
  }
}

TEST_CASE("storage: a 16- or 8-bit element that is loaded and stored again keeps its bits") {
  for (const Format& format : kFormats) {
    for (unsigned i = 0; i < 1u << format.n_bits; ++i) {
      const float x = widened(format, i);
      const unsigned again = narrowed(format.dtype, x), sign = format.n_bits - 1u;
      REQUIRE((again == i || (std::isnan(x) && std::isnan(decode(format, again)) && again >> sign == i >> sign)));
      // Every element of F8_E4M3 is one of BF16.
      if (format.n_bits == 8) REQUIRE(same(widened(kFormats[1], narrowed(DType::BF16, x)), x));
    }
  }
}

TEST_CASE("storage: storing rounds to nearest, ties to even, up to Inf or the largest element and down to 0") {
  std::mt19937 random(kSeed);
  for (const Format& format : kFormats) {
    const auto check = [&format](float x) {
      CAPTURE(x);
      REQUIRE(same(decode(format, narrowed(format.dtype, x)), round_to(format, x)));
    };
    // Random floats, and the ties between two adjacent elements with their neighbours.
    for (int i = 0; i < 200000; ++i) check(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    for (unsigned i = 0; i + 1 < 1u << format.n_bits; ++i) {
      const double a = decode(format, i), b = decode(format, i + 1);
      if (!std::isfinite(a) || !std::isfinite(b)) continue;
      const auto tie = static_cast<float>((a + b) / 2);
      for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e38f)}) check(x);
    }
    for (const float x : {0.0f, 0x1p-149f, 65503.9f, 65519.9f, 65520.0f, 3.39e38f, 3.4e38f, 448.1f, 463.9f, 464.0f, 480.0f,
                          512.0f, static_cast<float>(kInf), static_cast<float>(kNaN), float_of(0x7F800001)})
      check(x), check(-x);
  }
}

TEST_CASE("storage: F32 and F64 keep every bit, F64 to float rounds") {
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

TEST_CASE("storage: names, sizes, roundoffs and largest elements of all types, in order") {
  std::string all;
  for (const DType dtype : kDTypes) all += line_of(name_of(dtype), " ", lower_name_of(dtype), " ", bytes_of(dtype), ", ");
  CHECK(all == "F64 f64 8, F32 f32 4, F16 f16 2, BF16 bf16 2, F8_E4M3 f8_e4m3 1, ");
  for (const Format& format : kFormats) {
    CHECK(unit_roundoff(format.dtype) == std::ldexp(1.0, -1 - format.n_mantissa));
    double largest = 0;
    for (unsigned i = 0; i < 1u << (format.n_bits - 1); ++i)
      if (const double x = decode(format, i); std::isfinite(x)) largest = std::max(largest, x);
    CHECK(largest_of(format.dtype) == largest);
  }
  CHECK((unit_roundoff(DType::F32) == 0x1p-24 && largest_of(DType::F32) == std::numeric_limits<float>::max()));
  CHECK((unit_roundoff(DType::F64) == 0x1p-53 && largest_of(DType::F64) == std::numeric_limits<double>::max()));
  CHECK_FALSE(try_dtype(static_cast<DType>(kDTypes.size()), [](auto) {}));
  CHECK_THROWS_AS(bytes_of(static_cast<DType>(kDTypes.size())), std::invalid_argument);
}

TEST_CASE("tensor view: positions are rows of the same memory") {
  std::vector<float> elements(2 * 3 * 5 * 4);
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  for (const DType dtype : {DType::F64, DType::F32, DType::F16, DType::BF16}) {
    const Tensor tensor(elements, {2, 3, 5, 4}, dtype);
    const TensorView part = tensor.view().positions(2, 4);
    CHECK(part.shape == Shape{2, 3, 2, 4});
    for_each_row(part.shape, [&](std::int64_t i, std::int64_t j, std::int64_t n) {
      CHECK(part.row(i, j, n) == tensor.view().row(i, j, n + 2));
      CHECK(row_of(part, i, j, n) == row_of(tensor, i, j, n + 2));
    });
    CHECK(row_of(tensor, 1, 2, 3)[1] == ((1 * 3 + 2) * 5 + 3) * 4 + 1);
    CHECK(tensor.view().positions(5, 5).shape[2] == 0);
    CHECK(tensor.view().positions(1, 5).positions(1, 2).row(1, 1, 0) == tensor.view().row(1, 1, 2));
    CHECK_THROWS_AS(tensor.view().positions(-1, 2), std::out_of_range);
    CHECK_THROWS_AS(tensor.view().positions(3, 2), std::out_of_range);
    CHECK_OUT_OF_RANGE(tensor.view().positions(0, 6), "TensorView::positions: [0, 6) of 5");
  }
}
