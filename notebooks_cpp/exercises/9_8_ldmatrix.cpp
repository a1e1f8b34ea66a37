// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.8: fragments of a matrix and of its transpose: ldmatrix.
///
/// Expected: A warp copies a matrix of 16 x 16 BF16 into shared memory, in rows of 24 so that eight rows begin in different
/// banks, and loads it as the left operand of a 16 x 8 x 16 product; and its transpose, by the transposed load alone.
///
/// Run: ./run exercise 9.8
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_8_ldmatrix.hpp"
#else

// Change from here ...
/// straight[4 lane + i] and transposed[4 lane + i] = register i of lane, of A and of A^T. Registers 0 to 3 are the 8 x 8
/// matrices at (row, column) = (0, 0), (8, 0), (0, 8), (8, 8). Words: Bytes16, load16_global(), store16(), __syncwarp(),
/// load_matrices_x4(registers[n][4], row) and load_matrices_x4_transposed(), where row(i) is the address of 16 bytes in
/// shared memory: lane 8 m + r names row r of matrix m.
inline __global__ void fragments(const BFloat16* a, std::uint32_t* straight, std::uint32_t* transposed) {
  // Zeros.
  (void)a;
  for (unsigned i = 0; i < 4; ++i)
    store_fresh(straight + 4 * threadIdx.x + i, 0u), store_fresh(transposed + 4 * threadIdx.x + i, 0u);
}
// ... to here.

#endif

int main() {
  std::vector<BFloat16> a;
  for (int i = 0; i < 256; ++i) a.push_back(BFloat16{static_cast<std::uint16_t>(0x3C00 + i)});
  const auto pair = [&](int row, int column, int next_row, int next_column) {
    return std::uint32_t{a[std::size_t(16 * row + column)].bits} |
           std::uint32_t{a[std::size_t(16 * next_row + next_column)].bits} << 16;
  };
  under_seeds(4, [&] {
    DeviceBuffer<BFloat16> in(256);
    in.upload(a);
    DeviceBuffer<std::uint32_t> straight(128), transposed(128);
    launch(fragments, {.block = {32}, .shared_bytes = 16 * 24 * 2}, Stream{}, in.data(), straight.data(), transposed.data());
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        // The PTX ISA: a lane has two neighbours of row lane / 4 of every matrix.
        const int row = lane / 4 + i % 2 * 8, column = lane % 4 * 2 + i / 2 * 8;
        const std::string what = "register " + std::to_string(i) + " of lane " + std::to_string(lane);
        expect_equal(straight.download()[std::size_t(4 * lane + i)], pair(row, column, row, column + 1), what + " of A");
        expect_equal(transposed.download()[std::size_t(4 * lane + i)], pair(column, row, column + 1, row), what + " of A^T");
      }
    }
  });
  return result();
}
