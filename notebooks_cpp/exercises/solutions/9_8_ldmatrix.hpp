// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.8: fragments of a matrix and of its transpose: ldmatrix.
///
/// Hint: Lane 8 m + r names row r of matrix m: for A the row lane % 16 and the half lane / 16. For the transpose
/// matrices 1 and 2 change places.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// straight[4 lane + i] and transposed[4 lane + i] = register i of lane, of A and of A^T. Registers 0 to 3 are the 8 x 8
/// matrices at (row, column) = (0, 0), (8, 0), (0, 8), (8, 8). Words: Bytes16, load16_global(), store16(), __syncwarp(),
/// load_matrices_x4(registers[n][4], row) and load_matrices_x4_transposed(), where row(i) is the address of 16 bytes in
/// shared memory: lane 8 m + r names row r of matrix m.
inline __global__ void fragments(const BFloat16* a, std::uint32_t* straight, std::uint32_t* transposed) {
  Arena arena;
  const Shared<BFloat16> tile = arena.take<BFloat16>(16 * 24);
  const int lane = static_cast<int>(threadIdx.x);
  // Lane l copies half l % 2 of row l / 2.
  store16(tile + (lane / 2 * 24 + lane % 2 * 8), load16_global(a + lane / 2 * 16 + lane % 2 * 8));
  __syncwarp();
  std::uint32_t registers[1][4];
  load_matrices_x4(registers, [&](int) { return tile + (lane % 16 * 24 + lane / 16 * 8); });
  for (int i = 0; i < 4; ++i) store_fresh(straight + 4 * lane + i, registers[0][i]);
  // Matrix (8, 0) of A^T is matrix (0, 8) of A, transposed: registers 1 and 2 change places.
  load_matrices_x4_transposed(registers, [&](int) { return tile + ((lane / 16 * 8 + lane % 8) * 24 + lane / 8 % 2 * 8); });
  for (int i = 0; i < 4; ++i) store_fresh(transposed + 4 * lane + i, registers[0][i]);
}
