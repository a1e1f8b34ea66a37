// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums inside tensor cores in floating point: one column by the formula, eight at once where no exponent is extreme.
#include "gpu/emulator/tensor_sums.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace tree_attn::emulated {
namespace {

constexpr int kColumns = 8, kMostProducts = 16;
constexpr std::int16_t kNoTerm = Factors<8>::kNoTerm, kNotFinite = Factors<8>::kNotFinite;
constexpr std::int16_t kAnyTerm = kNoTerm / 2;  ///< less than the exponent of any product that is not 0

/// The exponent of x, which is that of the smallest normal number for subnormal ones.
std::int16_t exponent_of(float x, int smallest) {
  const std::int32_t bits = std::bit_cast<std::int32_t>(x) & 0x7FFFFFFF, exponent = std::max((bits >> 23) - 127, smallest);
  return static_cast<std::int16_t>(bits == 0 ? kNoTerm : bits >= 0x7F800000 ? kNotFinite : exponent);
}

/// The model, for any operands: c and n products with their exponents.
float sum_of_group(const double* products, const int* exponents, int n, float c, const TensorCores& cores) {
  // Nothing overflows before the end: a product of finite numbers is finite here.
  double whole = c;
  for (int i = 0; i < n; ++i) whole += products[i];
  if (std::isnan(whole)) return std::bit_cast<float>(0x7FFFFFFFu);
  if (std::isinf(whole)) return static_cast<float>(whole);

  int top = std::max<int>(cores.lowest_exponent, exponent_of(c, -126));
  for (int i = 0; i < n; ++i) top = std::max(top, exponents[i]);
  const auto aligned = [&](double x) { return std::trunc(std::ldexp(x, cores.fraction_bits - top)); };
  double sum = aligned(c);
  for (int i = 0; i < n; ++i) sum += aligned(products[i]);
  if (sum == 0) return 0;
  sum = std::ldexp(sum, top - cores.fraction_bits);
  const int last = std::max(std::ilogb(sum), -126) - 23;  // the weight of the last bit that a float keeps
  return static_cast<float>(std::ldexp(std::trunc(std::ldexp(sum, -last)), last));
}

// Vectors of this size every processor has: the exponents of a row, and half of its numbers.
typedef std::int16_t Exponents __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef std::int32_t Integers __attribute__((vector_size(16)));
template <class V, class T>
V loaded(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

/// Adds the products from the given one on to a row of c.
void add_group(float (&c)[kColumns], const float* a, const std::int16_t* a_exponent, const Factors<kColumns>& b, int from,
               const TensorCores& cores) {
  const int end = from + cores.n_products;
  std::int16_t of_c[kColumns];
  for (int j = 0; j < kColumns; ++j) of_c[j] = exponent_of(c[j], -126);
  Exponents top = loaded<Exponents>(of_c);
  for (int k = from; k < end; ++k) {
    const Exponents of_product = a_exponent[k] + loaded<Exponents>(b.exponent[k]);
    top = of_product > top ? of_product : top;
  }

  // Where products, their multiples of the last bit kept and the result are normal floats, all columns are added at once. A
  // product that a float does not hold exactly is below that last bit.
  const auto unusual = std::bit_cast<std::array<std::uint64_t, 2>>((top > 120) | ((top < -100) & (top >= kAnyTerm)));
  if ((unusual[0] | unusual[1]) != 0) {
    for (int j = 0; j < kColumns; ++j) {
      double products[kMostProducts];
      int exponents[kMostProducts];
      for (int k = from; k < end; ++k) {
        products[k - from] = double{a[k]} * double{b.value[k][j]};
        exponents[k - from] = a_exponent[k] + b.exponent[k][j];
      }
      c[j] = sum_of_group(products, exponents, cores.n_products, c[j], cores);
    }
    return;
  }

  // Sixteen products of less than 4 with 25 fraction bits fill 31 bits; c is one term too many for them.
  std::int32_t shift[kColumns], sum[kColumns], last[kColumns];
  for (int j = 0; j < kColumns; ++j) shift[j] = cores.fraction_bits - (top[j] < kAnyTerm ? 0 : top[j]);
  for (int j = 0; j < kColumns; j += 4) {
    const Floats to_bits = std::bit_cast<Floats>((127 + loaded<Integers>(shift + j)) << 23);
    Integers products = {};
    for (int k = from; k < end; ++k)
      products += __builtin_convertvector(a[k] * loaded<Floats>(b.value[k] + j) * to_bits, Integers);
    const Integers one_more = __builtin_convertvector(loaded<Floats>(c + j) * to_bits, Integers);
    std::memcpy(sum + j, &products, sizeof products), std::memcpy(last + j, &one_more, sizeof one_more);
  }
  // The sum cut off to the 24 bits of a float.
  for (int j = 0; j < kColumns; ++j) {
    const double whole = static_cast<double>(sum[j]) + static_cast<double>(last[j]);
    const double cut = std::bit_cast<double>(std::bit_cast<std::uint64_t>(whole) & ~std::uint64_t{0x1FFFFFFF});
    c[j] = static_cast<float>(cut * std::bit_cast<double>(static_cast<std::uint64_t>(1023 - shift[j]) << 52));
  }
}

}  // namespace

template <int n>
void Factors<n>::find_exponents(int smallest) {
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < n; ++i) exponent[k][i] = exponent_of(value[k][i], smallest);
  }
}
template void Factors<16>::find_exponents(int);
template void Factors<8>::find_exponents(int);

void add_products(float (&c)[16][8], const Factors<16>& a, const Factors<8>& b, const TensorCores& cores) {
  for (int from = 0; from < 16; from += cores.n_products) {
    for (int row = 0; row < 16; ++row) add_group(c[row], a.value[row], a.exponent[row], b, from, cores);
  }
}

}  // namespace tree_attn::emulated
