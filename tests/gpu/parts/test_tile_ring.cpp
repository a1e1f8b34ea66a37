// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ring of a warp on tensor cores: items of 16 rows, leaf after leaf, first the keys and then the values.
#include "reference/state/subtree.hpp"
#include "tests/gpu/parts/part_kernels.hpp"
#include "tests/support/device_params.hpp"

namespace tree_attn::test {

TEST_CASE("tile ring: four items of keys and four of values per leaf, zeros where there is no key") {
  constexpr int kDim = device::kTileDim, kRows = device::kTileRows;
  const std::int64_t shard_begin = 70, n = 400;
  for (const auto& [d_h, d_v, aligned] : {std::tuple{64, 64, true}, {8, 56, true}, {33, 7, false}}) {
    // Elements that F16 holds, different in neighbouring rows and columns.
    const auto element = [](std::int64_t position, std::int64_t c, bool is_value) {
      return static_cast<float>((1 + (7 * position + 3 * c) % 2000) * (is_value ? -1 : 1));
    };
    std::vector<std::uint16_t> k, v;
    for (std::int64_t a = 0; a < n; ++a) {
      for (int c = 0; c < d_h; ++c) k.push_back(narrow<Half>(element(shard_begin + a, c, false)).bits);
      for (int c = 0; c < d_v; ++c) v.push_back(narrow<Half>(element(shard_begin + a, c, true)).bits);
    }
    for (const KeyRange range : {KeyRange{70, 470}, KeyRange{128, 320}, KeyRange{130, 131}, KeyRange{100, 190}}) {
      for (const std::int64_t length : {470, 300, 129}) {
        // What is expected: the subtrees of cut leaves one by one, whole leaves at once.
        std::vector<float> expected;
        for (std::int64_t next = range.begin; next < range.end;) {
          const std::int64_t leaf = next / kLeafKeys * kLeafKeys;
          const std::int64_t end = first_subtree(next, std::min(leaf + kLeafKeys, range.end)).end();
          for (const bool is_value : {false, true}) {
            for (std::int64_t a = leaf; a < leaf + kLeafKeys; ++a) {
              const bool has_key = a >= next && a < std::min(end, length);
              for (int c = 0; c < kDim; ++c)
                expected.push_back(has_key && c < (is_value ? d_v : d_h) ? element(a, c, is_value) : 0.0f);
            }
          }
          next = end;
        }
        const int n_items = static_cast<int>(expected.size()) / (kRows * kDim);
        CAPTURE(range.begin);
        CAPTURE(length);
        CAPTURE(d_h);
        CHECK((device::tile_ring_on_device(k, v, d_h, d_v, shard_begin, length, range, n_items, aligned) == expected));
      }
    }
  }
}

}  // namespace tree_attn::test
