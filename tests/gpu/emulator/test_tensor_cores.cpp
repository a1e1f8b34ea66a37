// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The matrices that tensor cores load and transpose, with the layouts of the PTX ISA (9.7.14.5.15) written out.
#include "tests/gpu/emulator/emulator_test.hpp"

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
