// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.9: the scores of 16 keys and 8 queries: mma.
///
/// Hint: Two steps of 16 elements each. Register i of the left operand is the pair at row g + i % 2 * 8 and column 16
/// step + i / 2 * 8 + 2 t; that of the right one is at row g of Q and column 16 step + 8 i + 2 t.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// s[key][query] = k_key . q_query for 16 keys and 8 queries of 32 elements: k is [16][32], q [8][32], s [16][8]. With g =
/// lane / 4 and t = lane % 4, a pair (2 t, 2 t + 1) of columns in a register: left operand, rows g, g + 8, g, g + 8 and
/// columns from 0, 0, 8, 8 on; right operand, which is Q as it lies in memory, row g of Q and columns from 0, 8 on; the
/// product, rows g, g, g + 8, g + 8, columns 2 t, 2 t + 1 twice. Words: load_once(), pack(low, high),
/// mma_16x8x16<BFloat16>(c[1][4], a[1][4], b[1][2]), which adds.
inline __global__ void scores(const BFloat16* k, const BFloat16* q, float* s) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  const auto pair = [](const BFloat16* from) { return pack(load_once(from), load_once(from + 1)); };
  float c[1][4] = {};
  for (int step = 0; step < 2; ++step) {
    std::uint32_t a[1][4], b[1][2];
    for (int i = 0; i < 4; ++i) a[0][i] = pair(k + 32 * (g + i % 2 * 8) + 16 * step + i / 2 * 8 + 2 * t);
    for (int i = 0; i < 2; ++i) b[0][i] = pair(q + 32 * g + 16 * step + 8 * i + 2 * t);
    mma_16x8x16<BFloat16>(c, a, b);
  }
  for (int i = 0; i < 4; ++i) store_fresh(s + 8 * (g + i / 2 * 8) + 2 * t + i % 2, c[0][i]);
}
