// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ldmatrix, stmatrix, movmatrix and mma, with the layouts of the PTX ISA, 9.7.14.5.
///
/// The sums of an instruction are those of the device that is emulated, Settings::major: see tensor_sums.hpp.
///
/// A word takes several matrices, because a meeting of 32 fibers takes longer than a product.
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/tensor_sums.hpp"
#include "gpu/emulator/thread.hpp"
#include "gpu/types/bytes16.hpp"

#include <cstring>

namespace tree_attn::emulated::runtime {
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFF;

/// Row g and column t of the two neighbouring elements, at t and t + 1, that a lane has of an 8 x 8 matrix.
struct Element {
  unsigned g, t;
  explicit Element(unsigned lane) : g(lane / 4), t(2 * (lane % 4)) {}
};

/// An 8 x 8 matrix of 16-bit elements.
struct Matrix {
  std::uint16_t at[8][8];

  std::uint32_t pair(Element element, bool transposed) const {
    const auto [g, t] = element;
    const std::uint32_t low = transposed ? at[t][g] : at[g][t], high = transposed ? at[t + 1][g] : at[g][t + 1];
    return low | high << 16;
  }
};

/// The operands of a meeting, one a lane. @param lanes as meet_lanes() has them
template <class Operand>
void take_operands(Thread* lanes, Operand (&of)[32]) {
  for (unsigned lane = 0; lane < 32; ++lane) of[lane] = *static_cast<const Operand*>(lanes[lane].operand);
}

/// Operands of n products with a, each with m matrices b.
struct Operands {
  float (*c)[4];
  const std::uint32_t (*a)[4];
  const std::uint32_t (*b)[2];
};

template <class T, int m>
void multiply_for_all(Thread* lanes, int n) {
  Operands of[32];
  take_operands(lanes, of);

  // Every b in the order of its rows. A lane has pairs of its columns.
  Factors<8> b[m];
  for (int i = 0; i < m; ++i) {
    std::uint16_t columns[8][16];
    for (unsigned lane = 0; lane < 32; ++lane) {
      const auto [g, t] = Element(lane);
      for (unsigned h = 0; h < 2; ++h) std::memcpy(&columns[g][t + 8 * h], &of[lane].b[i][h], 4);
    }
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned g = 0; g < 8; ++g) b[i].value[k][g] = widen(T{columns[g][k]});
    }
    b[i].find_exponents(kSmallestExponent<T>);
  }

  for (int j = 0; j < n; ++j) {
    std::uint16_t rows[16][16];
    Factors<16> a;
    float c[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
      const auto [g, t] = Element(lane);
      for (unsigned h = 0; h < 4; ++h) std::memcpy(&rows[g + 8 * (h % 2)][t + 8 * (h / 2)], &of[lane].a[j][h], 4);
      for (unsigned h = 0; h < 2; ++h) std::memcpy(&c[g + 8 * h][t], &of[lane].c[j][2 * h], 8);
    }
    for (unsigned row = 0; row < 16; ++row) {
      for (unsigned k = 0; k < 16; ++k) a.value[row][k] = widen(T{rows[row][k]});
    }
    a.find_exponents(kSmallestExponent<T>);
    for (int i = 0; i < m; ++i) add_products(c, a, b[i], tensor_cores_of(settings().major));
    for (unsigned lane = 0; lane < 32; ++lane) {
      const auto [g, t] = Element(lane);
      for (unsigned h = 0; h < 2; ++h) std::memcpy(&of[lane].c[j][2 * h], &c[g + 8 * h][t], 8);
    }
  }
}

}  // namespace

void load_matrices(std::uint32_t (*out)[4], const void* const* rows, int n, bool transposed, const char* word,
                   const Line& line) {
  const Unwatched unwatched;
  struct Operand {
    std::uint32_t (*out)[4];
    const void* const* rows;
  } own{out, rows};
  meet_lanes(kAllLanes, {word, line}, &own, [n, transposed](Thread* lanes) {
    Operand of[32];
    take_operands(lanes, of);
    for (int j = 0; j < n; ++j) {
      for (unsigned m = 0; m < 4; ++m) {
        Matrix matrix;
        for (unsigned row = 0; row < 8; ++row) std::memcpy(matrix.at[row], of[8 * m + row].rows[j], 16);
        for (unsigned lane = 0; lane < 32; ++lane) of[lane].out[j][m] = matrix.pair(Element(lane), transposed);
      }
    }
  });
}

void store_matrices(void* row, const std::uint32_t (&in)[4], const Line& line) {
  const Unwatched unwatched;
  struct Operand {
    void* row;
    const std::uint32_t* in;
  } own{row, in};
  meet_lanes(kAllLanes, {"store_matrices_x4_transposed", line}, &own, [](Thread* lanes) {
    Operand of[32];
    take_operands(lanes, of);
    for (unsigned m = 0; m < 4; ++m) {
      Matrix matrix;
      for (unsigned lane = 0; lane < 32; ++lane)
        std::memcpy(&matrix.at[Element(lane).g][Element(lane).t], of[lane].in + m, 4);
      for (unsigned r = 0; r < 8; ++r) {
        auto* const to = static_cast<std::uint16_t*>(of[8 * m + r].row);
        for (unsigned g = 0; g < 8; ++g) to[g] = matrix.at[g][r];
      }
    }
  });
}

void transpose_matrices(std::uint32_t* pairs, int n, const Line& line) {
  const Unwatched unwatched;
  meet_lanes(kAllLanes, {"transpose_matrices", line}, pairs, [n](Thread* lanes) {
    std::uint32_t* of[32];
    for (unsigned lane = 0; lane < 32; ++lane) of[lane] = static_cast<std::uint32_t*>(lanes[lane].operand);
    for (int j = 0; j < n; ++j) {
      Matrix matrix;
      for (unsigned lane = 0; lane < 32; ++lane) std::memcpy(&matrix.at[Element(lane).g][Element(lane).t], of[lane] + j, 4);
      for (unsigned lane = 0; lane < 32; ++lane) of[lane][j] = matrix.pair(Element(lane), true);
    }
  });
}

template <class T, int m>
void multiply_matrices(float (*c)[4], const std::uint32_t (*a)[4], int n, const std::uint32_t (*b)[2], const Line& line) {
  const Unwatched unwatched;
  Operands own{c, a, b};
  meet_lanes(kAllLanes, {"mma_16x8x16", line}, &own, [n](Thread* lanes) { multiply_for_all<T, m>(lanes, n); });
}

#define TREE_ATTN_INSTANTIATE(T, m) \
  template void multiply_matrices<T, m>(float(*)[4], const std::uint32_t(*)[4], int, const std::uint32_t(*)[2], const Line&);
TREE_ATTN_INSTANTIATE(Half, 1)
TREE_ATTN_INSTANTIATE(Half, 2)
TREE_ATTN_INSTANTIATE(BFloat16, 1)
TREE_ATTN_INSTANTIATE(BFloat16, 2)
TREE_ATTN_INSTANTIATE(BFloat16, 3)
#undef TREE_ATTN_INSTANTIATE

}  // namespace tree_attn::emulated::runtime
