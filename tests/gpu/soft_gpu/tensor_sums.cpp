// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums inside tensor cores in integers.
#include "tests/gpu/soft_gpu/tensor_sums.hpp"

#include <algorithm>
#include <bit>

namespace tree_attn::soft_gpu {
namespace {

constexpr std::uint32_t kNaN = 0x7FFFFFFF, kInfinity = 0x7F800000, kSign = 0x80000000;

/// Significands have 23 fraction bits, as those of a float, and some more while they are aligned.
struct Device {
  int n_terms;         ///< products that are added at once
  int n_extra;         ///< alignment bits after the 23
  int least_exponent;  ///< to which terms are aligned
};
Device device(int major) {
  if (major < 9) return {.n_terms = 8, .n_extra = 1, .least_exponent = -132};
  return {.n_terms = 16, .n_extra = 2, .least_exponent = -133};
}

/// A term of the sum that is not 0.
struct Term {
  bool is_negative;
  int exponent;
  std::uint64_t significand;  ///< less than 2^24 of c, less than 2^25 of a product
};

/// The float of sum 2^(exponent - n), cut off.
std::uint32_t packed(std::int64_t sum, int exponent, int n) {
  if (sum == 0) return 0;
  const std::uint32_t sign = sum < 0 ? kSign : 0;
  std::uint64_t magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  // The leading bit to place 23, which loses what comes after; of subnormal numbers it stays below.
  const int leading = static_cast<int>(std::bit_width(magnitude)) - 1;
  exponent += leading - n;
  if (exponent > 127) return sign | kInfinity;
  const int shift = leading - 23 + std::max(0, -126 - exponent);
  magnitude = shift > 63 ? 0 : shift >= 0 ? magnitude >> shift : magnitude << -shift;
  const std::uint32_t field = exponent < -126 ? 0 : static_cast<std::uint32_t>(exponent + 127);
  return sign | field << 23 | (static_cast<std::uint32_t>(magnitude) & 0x7FFFFF);
}

}  // namespace

Number decoded(std::uint16_t bits, int n_fraction) {
  const int n_exponent = 15 - n_fraction, all = (1 << n_exponent) - 1, bias = all >> 1;
  const int field = bits >> n_fraction & all;
  const std::uint32_t fraction = bits & ((1u << n_fraction) - 1);
  Number x{};
  x.is_negative = bits >> 15 != 0;
  x.is_nan = field == all && fraction != 0, x.is_infinite = field == all && fraction == 0;
  x.exponent = std::max(field, 1) - bias;
  x.significand = fraction | static_cast<std::uint32_t>(field != 0) << n_fraction;
  return x;
}

std::uint32_t sum_of_products(const Number (&a)[16], const Number (&b)[16], std::uint32_t c, int n_fraction, int major) {
  const auto [n_terms, n_extra, least_exponent] = device(major);
  for (int from = 0; from < 16; from += n_terms) {
    Term terms[17];
    int n = 0;
    bool is_nan = (c & ~kSign) > kInfinity, has_infinity[2] = {c == kInfinity, c == (kSign | kInfinity)};
    for (int k = from; k < from + n_terms; ++k) {
      const bool is_negative = a[k].is_negative != b[k].is_negative,
                 is_zero = a[k].significand == 0 || b[k].significand == 0;
      const bool is_infinite = a[k].is_infinite || b[k].is_infinite;
      is_nan |= a[k].is_nan || b[k].is_nan || (is_infinite && is_zero);
      has_infinity[is_negative] |= is_infinite;
      if (is_zero) continue;
      terms[n++] = {is_negative, a[k].exponent + b[k].exponent,
                    std::uint64_t{a[k].significand} * b[k].significand << (23 - 2 * n_fraction)};
    }
    if (is_nan || (has_infinity[0] && has_infinity[1])) return kNaN;  // in a later group it stays one
    if (has_infinity[0] || has_infinity[1]) {
      c = has_infinity[1] ? kSign | kInfinity : kInfinity;
      continue;
    }
    if (const std::uint32_t field = c >> 23 & 0xFF, fraction = c & 0x7FFFFF; (field | fraction) != 0)
      terms[n++] = {c >> 31 != 0, static_cast<int>(std::max(field, 1u)) - 127, fraction | (field != 0 ? 1u << 23 : 0u)};

    int largest = least_exponent;
    for (int i = 0; i < n; ++i) largest = std::max(largest, terms[i].exponent);
    std::int64_t sum = 0;
    for (int i = 0; i < n; ++i) {
      const std::uint64_t aligned = terms[i].significand << n_extra >> std::min(largest - terms[i].exponent, 63);
      sum += terms[i].is_negative ? -static_cast<std::int64_t>(aligned) : static_cast<std::int64_t>(aligned);
    }
    c = packed(sum, largest, 23 + n_extra);
  }
  return c;
}

}  // namespace tree_attn::soft_gpu
