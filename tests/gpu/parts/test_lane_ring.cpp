// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ring of copies that every lane makes for itself: rows that may be read, and zeros for all else.
#include "tests/gpu/parts/part_kernels.hpp"
#include "tests/support/device_params.hpp"

#include <random>

namespace tree_attn::test {

TEST_CASE("lane ring: a stage holds the rows that are valid, and zeros past their ends and for the others") {
  constexpr int kRows = device::kRingRows, kDim = device::kRingDim;
  std::mt19937 random(8600);
  for (const unsigned valid : {0xFFu, 0x00u, 0x5Au, 0x01u, 0xF0u}) {
    for (const auto& [d_h, d_v, aligned] : {std::tuple{32, 32, true}, {20, 4, true}, {31, 17, false}, {1, 32, false}}) {
      const int stride = aligned ? 36 : 33;
      const std::vector<float> keys = normal_elements(random, 2 * kRows * stride),
                               values = normal_elements(random, 2 * kRows * stride);
      const std::vector<float> held = device::lane_ring_on_device(keys, values, stride, d_h, d_v, valid, aligned);
      CAPTURE(valid);
      CAPTURE(d_h);
      bool right = true;
      std::size_t i = 0;
      for (int stage = 0; stage < 2; ++stage) {
        for (const std::vector<float>* rows : {&keys, &values}) {
          for (int row = 0; row < kRows; ++row) {
            for (int c = 0; c < kDim; ++c) {
              const bool is_there = (valid >> row & 1) != 0 && c < (rows == &keys ? d_h : d_v);
              const auto at = static_cast<std::size_t>((stage * kRows + row) * stride + c);
              right = right && held[i++] == (is_there ? (*rows)[at] : 0.0f);
            }
          }
        }
      }
      CHECK(right);
    }
  }
}

}  // namespace tree_attn::test
