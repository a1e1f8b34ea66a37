// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief All ways to copy read every byte of keys and values once, whatever number of blocks shares them.
#include "tree_attn/tests/gpu/time_ladder/copy_kernels.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tree_attn::test {

namespace device = TREE_ATTN_PLATFORM;
using device::CopyWay;

namespace {

/// What all ways must sum up: the first word of every kCopyBytes.
unsigned sum_of_firsts(const std::vector<unsigned char>& bytes) {
  unsigned sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += device::kCopyBytes) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    sum += word;
  }
  return sum;
}

}  // namespace

/// Runs of different lengths, stages that are filled again, and blocks that have nothing to copy.
TEST_CASE("copies: every way reads the same words") {
  std::mt19937 random(8700);
  for (const std::int64_t n_tiles : {1, 3, 40}) {
    std::vector<unsigned char> keys(static_cast<std::size_t>(n_tiles * device::kCopyTileBytes)), values(keys.size());
    for (auto* bytes : {&keys, &values}) {
      for (unsigned char& byte : *bytes) byte = static_cast<unsigned char>(random());
    }
    device::DeviceBuffer<unsigned char> k(n_tiles * device::kCopyTileBytes, MemoryUse::Input),
        v(n_tiles * device::kCopyTileBytes, MemoryUse::Input);
    k.upload(keys), v.upload(values);
    const unsigned want = sum_of_firsts(keys) + sum_of_firsts(values);
    for (const CopyWay way : {CopyWay::Loads, CopyWay::CpAsync, CopyWay::Bulk, CopyWay::TensorMaps}) {
      for (const int kib : {64, 96, 128, 160, 192}) {
        if (!device::has_copies(way, kib)) continue;
        for (const int n_blocks : {1, 3}) {
          device::DeviceBuffer<unsigned> sum(1);
          sum.fill(0);
          device::launch_copies({way, kib, n_blocks}, {k.data(), v.data(), k.size()}, sum.data(), device::Stream{});
          CAPTURE(n_tiles);
          CAPTURE(name_of(way));
          CAPTURE(kib);
          CAPTURE(n_blocks);
          CHECK(sum.download()[0] == want);
        }
      }
    }
  }
}

TEST_CASE("copies: no way has more in flight than a block has room for, and none that the device lacks has any") {
  const auto most = [](CopyWay way) {
    int largest = 0;
    for (const int kib : {64, 96, 128, 160, 192}) largest = device::has_copies(way, kib) ? kib : largest;
    return largest;
  };
  const std::size_t shared_kib = device::device().shared_bytes / 1024;
  CHECK(most(CopyWay::Loads) == 128);
  CHECK(most(CopyWay::CpAsync) == (shared_kib >= 224 ? 192 : shared_kib >= 160 ? 128 : 64));
  if (device::device().major < 9) {
    CHECK(most(CopyWay::Bulk) == 0);
    CHECK(most(CopyWay::TensorMaps) == 0);
  } else if (shared_kib >= 224) {
    CHECK(most(CopyWay::Bulk) == 192);
    CHECK(most(CopyWay::TensorMaps) == 192);
  }
}

TEST_CASE("copies: a shape that no kernel has is refused") {
  device::DeviceBuffer<unsigned char> bytes(device::kCopyTileBytes, MemoryUse::Input);
  device::DeviceBuffer<unsigned> sum(1);
  const device::CopyStreams streams{bytes.data(), bytes.data(), bytes.size()};
  CHECK_THROWS_AS(device::launch_copies({CopyWay::Loads, 192, 1}, streams, sum.data(), device::Stream{}), DeviceError);
  CHECK_THROWS_AS(device::launch_copies({CopyWay::CpAsync, 32, 1}, streams, sum.data(), device::Stream{}), DeviceError);
}

}  // namespace tree_attn::test
