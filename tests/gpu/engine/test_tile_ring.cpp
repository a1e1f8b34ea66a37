// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ring of a warp on tensor cores: leaf after leaf, first the keys and then the values, the same however copied.
#include "tree_attn/tests/gpu/engine/part_kernels.hpp"
#include "tree_attn/tests/support/device_params.hpp"

namespace tree_attn::test::tile_ring_test {
namespace {

constexpr int kDim = device::kTileDim;

/// Elements that F16 holds, different in neighbouring rows and columns.
float element(std::int64_t position, std::int64_t c, bool is_value) {
  return static_cast<float>((1 + (7 * position + 3 * c) % 2000) * (is_value ? -1 : 1));
}

/// Rows of d elements for the positions [begin, begin + n).
std::vector<std::uint16_t> rows(std::int64_t begin, std::int64_t n, int d, bool is_value) {
  std::vector<std::uint16_t> bits;
  for (std::int64_t a = begin; a < begin + n; ++a) {
    for (int c = 0; c < d; ++c) bits.push_back(narrow<Half>(element(a, c, is_value)).bits);
  }
  return bits;
}

/// First positions of the leaves of ranges, one after the other.
std::vector<std::int64_t> leaves_of(const std::vector<KeyRange>& ranges) {
  std::vector<std::int64_t> leaves;
  for (const KeyRange& range : ranges)
    for (std::int64_t leaf = range.begin; leaf < range.end; leaf += kLeafKeys) leaves.push_back(leaf);
  return leaves;
}

/// Before compute capability 9 there are none, and nvcc compiles no ring that copies through them.
bool has_tensor_maps() { return device::device().major >= 9; }

const device::TileRingOptions kWays[] = {{.by_tensor_maps = true},
                                         {.by_tensor_maps = true, .n_stages = 2},
                                         {.by_tensor_maps = false},
                                         {.by_tensor_maps = true, .aligned = false},
                                         {.by_tensor_maps = false, .aligned = false},
                                         {.by_tensor_maps = true, .only_finite = true},
                                         {.by_tensor_maps = false, .only_finite = true}};

}  // namespace

TEST_CASE("tile ring: keys and values of every leaf, zeros where there is no key, copied in every way") {
  const std::int64_t shard_begin = 70, n = 400;
  for (const auto& [d_h, d_v] : {std::pair{128, 128}, {8, 120}, {33, 7}}) {
    const std::vector<std::uint16_t> k = rows(shard_begin, n, d_h, false), v = rows(shard_begin, n, d_v, true);
    // The last of them uses every stage again, in two ranges.
    for (const std::vector<KeyRange>& ranges :
         {std::vector<KeyRange>{{64, 512}}, {{128, 320}}, {{64, 128}}, {{448, 512}}, {{128, 192}, {192, 512}, {64, 128}}}) {
      const std::vector<std::int64_t> leaves = leaves_of(ranges);
      for (const std::int64_t length : {470, 300, 129}) {
        for (const device::TileRingOptions& way : kWays) {
          if (way.by_tensor_maps && !has_tensor_maps()) continue;
          if (way.aligned && (d_h % 8 != 0 || d_v % 8 != 0)) continue;
          const std::vector<float> tiles =
              device::tile_ring_on_device(k, v, d_h, d_v, shard_begin, length, ranges, static_cast<int>(leaves.size()), way);
          // Rows of keys without a key may hold anything: their scores are not used.
          bool same = true;
          for (std::size_t i = 0; i < leaves.size(); ++i) {
            for (const bool is_value : {false, true}) {
              for (std::int64_t row = 0; row < kLeafKeys; ++row) {
                const std::int64_t a = leaves[i] + row;
                const bool has_key = a >= shard_begin && a < length;
                if (!has_key && !is_value) continue;
                for (int c = 0; c < kDim; ++c) {
                  const float expected = has_key && c < (is_value ? d_v : d_h) ? element(a, c, is_value) : 0.0f;
                  const auto index = ((2 * i + (is_value ? 1 : 0)) * kLeafKeys + static_cast<std::size_t>(row)) * kDim;
                  same = same && tiles[index + static_cast<std::size_t>(c)] == expected;
                }
              }
            }
          }
          INFO("first position " << ranges[0].begin << ", length " << length << ", d_h " << d_h << ", tensor maps "
                                 << way.by_tensor_maps << ", aligned " << way.aligned << ", only finite " << way.only_finite
                                 << ", stages " << way.n_stages);
          CHECK(same);
        }
      }
    }
  }
}

TEST_CASE("tile ring: zeros in place of values that are not finite, where they are asked for") {
  const std::uint16_t inf = 0x7C00, nan = 0x7E00;
  std::vector<std::uint16_t> k = rows(0, 64, kDim, false), v = rows(0, 64, kDim, true);
  k[5 * kDim + 3] = nan, v[7 * kDim + 100] = inf, v[7 * kDim + 101] = nan;
  for (const bool by_tensor_maps : {false, true}) {
    if (by_tensor_maps && !has_tensor_maps()) continue;
    for (const bool only_finite : {false, true}) {
      const std::vector<float> tiles =
          device::tile_ring_on_device(k, v, kDim, kDim, 0, 64, {{0, 64}}, 1,
                                      {.by_tensor_maps = by_tensor_maps, .aligned = true, .only_finite = only_finite});
      const float* const values = tiles.data() + 64 * kDim;
      CHECK(std::isnan(tiles[5 * kDim + 3]));
      CHECK((only_finite ? values[7 * kDim + 100] == 0 : std::isinf(values[7 * kDim + 100])));
      CHECK((only_finite ? values[7 * kDim + 101] == 0 : std::isnan(values[7 * kDim + 101])));
      CHECK(values[7 * kDim + 99] == element(7, 99, true));
    }
  }
}

}  // namespace tree_attn::test::tile_ring_test
