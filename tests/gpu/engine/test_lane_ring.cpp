// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ring of copies that every lane makes for itself: rows that may be read, and zeros for all else.
#include "tree_attn/tests/gpu/engine/part_kernels.hpp"
#include "tree_attn/tests/support/device_params.hpp"

#include <random>

namespace tree_attn::test {

/// More steps than stages.
TEST_CASE("lane ring: every step has the rows that have a key, and zeros past their ends and for the others") {
  constexpr int kRows = device::kRingRows, kDim = device::kRingDim;
  std::mt19937 random(8600);
  for (const auto& [begin, n, length] :
       {std::tuple{0, 128, 128}, {0, 128, 77}, {64, 70, 130}, {37, 91, 128}, {37, 91, 38}}) {
    for (const auto& [d_h, d_v, aligned] : {std::tuple{32, 32, true}, {20, 4, true}, {31, 17, false}, {1, 32, false}}) {
      const int stride = aligned ? 36 : 33;
      const std::vector<float> keys = normal_elements(random, n * stride), values = normal_elements(random, n * stride);
      const KeyRange range{begin / kLeafKeys * kLeafKeys, 128 + (begin == 64 ? 64 : 0)};
      const std::vector<float> held =
          device::lane_ring_on_device(keys, values, stride, d_h, d_v, begin, length, range, aligned);
      CAPTURE(begin);
      CAPTURE(length);
      CAPTURE(d_h);
      bool right = true;
      std::size_t i = 0;
      for (std::int64_t first = range.begin; first < length; first += kRows) {
        for (const std::vector<float>* rows : {&keys, &values}) {
          for (std::int64_t position = first; position < first + kRows; ++position) {
            for (int c = 0; c < kDim; ++c) {
              const bool is_there = position >= begin && position < length && c < (rows == &keys ? d_h : d_v);
              const auto at = static_cast<std::size_t>((position - begin) * stride + c);
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
