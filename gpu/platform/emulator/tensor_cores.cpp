// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ldmatrix and mma, with the layouts of the PTX ISA, 9.7.14.5.
///
/// Products of two 16-bit numbers are exact in float. The sums run over k in ascending order and are rounded at every step:
/// the hardware keeps more bits inside one instruction and promises no order, so results agree closely, not in bits.
#include "gpu/platform/bytes16.hpp"
#include "gpu/platform/emulator/meeting.hpp"
#include "gpu/platform/emulator/sanitizer.hpp"

#include <cstring>
#include <string>

namespace tree_attn::emulated::runtime {
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFF;

template <class T>
void widen_pair(std::uint32_t pair, float& low, float& high) {
  low = widen(T{static_cast<std::uint16_t>(pair & 0xFFFF)});
  high = widen(T{static_cast<std::uint16_t>(pair >> 16)});
}

struct Operands {
  float* c;
  const std::uint32_t* a;
  const std::uint32_t* b;
};

template <class T>
void multiply_for_all(Thread* lanes) {
  float a[16][16], b[16][8], c[16][8];
  const auto of = [&](unsigned lane) { return *static_cast<const Operands*>(lanes[lane].operand); };
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = 2 * (lane % 4);
    const Operands& own = of(lane);
    widen_pair<T>(own.a[0], a[g][t], a[g][t + 1]);
    widen_pair<T>(own.a[1], a[g + 8][t], a[g + 8][t + 1]);
    widen_pair<T>(own.a[2], a[g][t + 8], a[g][t + 9]);
    widen_pair<T>(own.a[3], a[g + 8][t + 8], a[g + 8][t + 9]);
    widen_pair<T>(own.b[0], b[t][g], b[t + 1][g]);
    widen_pair<T>(own.b[1], b[t + 8][g], b[t + 9][g]);
    for (unsigned i = 0; i < 4; ++i) c[g + 8 * (i / 2)][t + i % 2] = own.c[i];
  }
  for (unsigned row = 0; row < 16; ++row) {
    float sum[8];
    std::memcpy(sum, c[row], sizeof sum);
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < 8; ++column) sum[column] += a[row][k] * b[k][column];
    }
    std::memcpy(c[row], sum, sizeof sum);
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) of(lane).c[i] = c[g + 8 * (i / 2)][t + i % 2];
  }
}

}  // namespace

void load_matrix(std::uint32_t (&out)[4], const void* row, bool transposed, const Line& line) {
  const Unwatched unwatched;
  const char* const word = transposed ? "load_matrix_x4_transposed" : "load_matrix_x4";
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    fail(line, std::string(word) + ": the address is not a multiple of 16");
  struct Operand {
    std::uint32_t* out;
    std::uint16_t row[8];
  } own{out, {}};
  std::memcpy(own.row, row, sizeof own.row);
  meet_lanes(kAllLanes, {word, line}, &own, [transposed](Thread* lanes) {
    const auto of = [&](unsigned lane) -> const Operand& { return *static_cast<const Operand*>(lanes[lane].operand); };
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned g = lane / 4, t = 2 * (lane % 4);
      for (unsigned matrix = 0; matrix < 4; ++matrix) {
        const std::uint32_t low = transposed ? of(8 * matrix + t).row[g] : of(8 * matrix + g).row[t];
        const std::uint32_t high = transposed ? of(8 * matrix + t + 1).row[g] : of(8 * matrix + g).row[t + 1];
        of(lane).out[matrix] = low | high << 16;
      }
    }
  });
}

template <class T>
void multiply_matrices(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const Line& line) {
  const Unwatched unwatched;
  Operands own{c, a, b};
  meet_lanes(kAllLanes, {"mma_16x8x16", line}, &own, multiply_for_all<T>);
}

template void multiply_matrices<Half>(float (&)[4], const std::uint32_t (&)[4], const std::uint32_t (&)[2], const Line&);
template void multiply_matrices<BFloat16>(float (&)[4], const std::uint32_t (&)[4], const std::uint32_t (&)[2], const Line&);

}  // namespace tree_attn::emulated::runtime
