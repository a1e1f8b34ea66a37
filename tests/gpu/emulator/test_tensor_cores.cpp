// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Tensor cores against plain loops, with the layouts of the PTX ISA (9.7.14.5.8 and 9.7.14.5.15) written out.
#include "tests/gpu/emulator/emulator_test.hpp"

#include <cmath>

namespace tree_attn::emulated {
namespace {

/// a, row by row and transposed, through shared memory; every lane keeps what it got.
void load_matrices(const std::uint16_t* in, std::uint32_t* straight, std::uint32_t* transposed) {
  Arena arena;
  const Shared<Half> tile = arena.take<Half>(256);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) tile[i] = Half{load_once(in + i)};
  __syncwarp();
  // The second four are the first in another order.
  const auto row = [&](int i) { return tile + 8 * (lane ^ i); };
  std::uint32_t four[2][4];
  load_matrices_x4(four, row);
  for (int i = 0; i < 8; ++i) straight[4 * lane + i % 4 + i / 4 * 128] = four[i / 4][i % 4];
  load_matrices_x4_transposed(four, row);
  for (int i = 0; i < 8; ++i) transposed[4 * lane + i % 4 + i / 4 * 128] = four[i / 4][i % 4];
}

TEST_CASE("emulator: ldmatrix hands out 8 x 8 matrices, and transposed ones") {
  std::vector<std::uint16_t> elements(256);
  for (int i = 0; i < 256; ++i) elements[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(0x3C00 + i);
  DeviceBuffer<std::uint16_t> in(256);
  in.upload(elements);
  DeviceBuffer<std::uint32_t> a(256), b(256);
  launch(load_matrices, {.block = {32}, .shared_bytes = 512}, {}, in.data(), a.data(), b.data());
  const auto straight = a.download(), transposed = b.download();
  // Matrix m is rows 8 m .. 8 m + 7 of eight numbers.
  const auto at = [&](int m, int row, int column) { return elements[static_cast<std::size_t>(64 * m + 8 * row + column)]; };
  for (int lane = 0; lane < 32; ++lane) {
    const int r = lane / 4, c = lane % 4 * 2;
    for (int m = 0; m < 4; ++m) {
      for (int flip = 0; flip < 2; ++flip) {
        const auto i = static_cast<std::size_t>(4 * lane + m + 128 * flip);
        CHECK(straight[i] == (std::uint32_t{at(m, r ^ flip, c)} | std::uint32_t{at(m, r ^ flip, c + 1)} << 16));
        CHECK(transposed[i] == (std::uint32_t{at(m, c ^ flip, r)} | std::uint32_t{at(m, (c + 1) ^ flip, r)} << 16));
      }
    }
  }
}

void transpose(const std::uint32_t* pairs, std::uint32_t* out) {
  std::uint32_t own[2] = {pairs[threadIdx.x], pairs[31 - threadIdx.x]};
  transpose_matrices<2>(own);
  out[threadIdx.x] = own[0], out[32 + threadIdx.x] = own[1];
}

TEST_CASE("emulator: movmatrix gives every lane its part of the transposed matrix") {
  const auto pair_of = [](int row, int column, int next_row, int next_column) {
    return static_cast<std::uint32_t>(8 * row + column) | static_cast<std::uint32_t>(8 * next_row + next_column) << 16;
  };
  std::vector<std::uint32_t> pairs(32);
  for (int lane = 0; lane < 32; ++lane) {
    const int r = lane / 4, c = lane % 4 * 2;
    pairs[static_cast<std::size_t>(lane)] = pair_of(r, c, r, c + 1);
  }
  DeviceBuffer<std::uint32_t> in(32), out(64);
  in.upload(pairs);
  launch(transpose, {.block = {32}}, {}, in.data(), out.data());
  const auto transposed = out.download();
  for (int lane = 0; lane < 32; ++lane) {
    const int r = lane / 4, c = lane % 4 * 2;
    CHECK(transposed[static_cast<std::size_t>(lane)] == pair_of(c, r, c + 1, r));
    // Lane i brings what lane 31 - i has: the rows from the last to the first, and in each the pairs.
    const auto from = [](int row, int column) { return std::pair(7 - row, (6 - column / 2 * 2) + column % 2); };
    const auto [row, column] = from(c, r);
    const auto [next_row, next_column] = from(c + 1, r);
    CHECK(transposed[static_cast<std::size_t>(32 + lane)] == pair_of(row, column, next_row, next_column));
  }
}

/// c + a b, and with 2 a in place of a; with two matrices b, of which the second is -b with its rows in turn exchanged.
template <class T, int m>
void multiply_add(const float* a, const float* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, in_group = lane % 4;
  const auto pair = [](float low, float high) { return pack(narrow<T>(low), narrow<T>(high)); };
  std::uint32_t a_own[2][4], b_own[2][2];
  float c_own[2][4];
  // PTX ISA: a_i, i = 0 .. 7, at row group (+ 8 for i = 2, 3, 6, 7), column 2 in_group + (i & 1) (+ 8 for i >= 4).
  for (int i = 0; i < 8; i += 2) {
    const int row = group + (i & 2 ? 8 : 0), column = in_group * 2 + (i >= 4 ? 8 : 0);
    for (int j = 0; j < 2; ++j)
      a_own[j][i / 2] =
          pair(static_cast<float>(1 + j) * a[16 * row + column], static_cast<float>(1 + j) * a[16 * row + column + 1]);
  }
  // b_i, i = 0 .. 3, at row 2 in_group + (i & 1) (+ 8 for i >= 2), column group.
  for (int i = 0; i < 4; i += 2) {
    const int row = in_group * 2 + (i >= 2 ? 8 : 0);
    b_own[0][i / 2] = pair(b[8 * row + group], b[8 * (row + 1) + group]);
    b_own[1][i / 2] = pair(-b[8 * (row + 1) + group], -b[8 * row + group]);
  }
  // c_i, i = 0 .. 3, at row group (+ 8 for i >= 2), column 2 in_group + (i & 1).
  const auto at = [&](int i) { return 8 * (group + (i % 4 >= 2 ? 8 : 0)) + in_group * 2 + (i & 1) + i / 4 * 128; };
  for (int i = 0; i < 8; ++i) c_own[i / 4][i % 4] = c[at(i)];
  mma_16x8x16<T, m>(c_own, a_own, b_own);
  for (int i = 0; i < 8; ++i) c[at(i)] = c_own[i / 4][i % 4];
}

TEST_CASE("emulator: mma adds as the device that is emulated, with one bit more on 9.0") {
  // Row 0 and column 0: of three terms far below c the last two have half a last bit of an accumulator of 8.0 each.
  for (const int major : {8, 9}) {
    Settings other = settings();
    other.major = major;
    const SettingsScope scope(other);
    std::vector<float> a(256), b(128), c(256);
    a[0] = std::ldexp(1.0f, -24), a[1] = a[2] = std::ldexp(1.0f, -25);
    b[0] = b[8] = b[16] = 1, c[0] = 1;
    DeviceBuffer<float> a_in(256), b_in(128), sums(256);
    a_in.upload(a), b_in.upload(b), sums.upload(c);
    launch(multiply_add<BFloat16, 1>, {.block = {32}}, {}, a_in.data(), b_in.data(), sums.data());
    CHECK(sums.download()[0] == (major == 8 ? 1 : 1 + std::ldexp(1.0f, -23)));
  }
}

TEST_CASE("emulator: mma is a matrix product, in small whole numbers without any rounding") {
  std::vector<float> a(256), b(128), c(256);
  for (int i = 0; i < 256; ++i) a[static_cast<std::size_t>(i)] = static_cast<float>(i * 7 % 11 - 5);
  for (int i = 0; i < 128; ++i) b[static_cast<std::size_t>(i)] = static_cast<float>(i * 5 % 13 - 6);
  for (int i = 0; i < 256; ++i) c[static_cast<std::size_t>(i)] = static_cast<float>(i);
  DeviceBuffer<float> a_there(256), b_there(128), c_there(256);
  a_there.upload(a), b_there.upload(b);
  for (const auto& [kernel, m] : {std::pair(&multiply_add<Half, 1>, 1), std::pair(&multiply_add<BFloat16, 1>, 1),
                                  std::pair(&multiply_add<Half, 2>, 2), std::pair(&multiply_add<BFloat16, 2>, 2)}) {
    c_there.upload(c);
    launch(kernel, {.block = {32}}, {}, a_there.data(), b_there.data(), c_there.data());
    const auto got = c_there.download();
    for (std::size_t i = 0; i < 256; ++i) {
      const std::size_t row = i / 8 % 16, column = i % 8;
      float sum = c[i];
      for (std::size_t k = 0; k < 16; ++k) {
        const float x = (i < 128 ? 1.0f : 2.0f) * a[16 * row + k];
        sum += x * b[8 * k + column];
        if (m == 2) sum -= x * b[8 * (k ^ 1) + column];
      }
      CHECK(got[i] == sum);
    }
  }
}

void rounded(float a, float b, float c, float* out) {
  out[0] = multiply(a, b) + c;
  out[1] = fused_multiply_add(a, b, c);
}

TEST_CASE("emulator: products are rounded as written") {
  const float a = 1.0f + 0x1p-12f, c = -(1.0f + 0x1p-11f);
  DeviceBuffer<float> out(2);
  launch(rounded, {}, {}, a, a, c, out.data());
  CHECK(out.download()[0] == 0.0f);
  CHECK(out.download()[1] == 0x1p-24f);
}

}  // namespace
}  // namespace tree_attn::emulated
