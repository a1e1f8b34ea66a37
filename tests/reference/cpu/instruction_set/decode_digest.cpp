// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Prints a digest of the bits of some decodes per line.
#include "reference/data/fnv1a.hpp"
#include "reference/decode/decode.hpp"
#include "reference/state/key_range.hpp"
#include "tests/support/tensors.hpp"

#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace tree_attn;
using namespace tree_attn::test;

/// Uniform values in [-unit, unit), with unit a power of two. Every value is exact, so the input is the same in every build.
Tensor draw(std::mt19937& random, Shape shape, DType dtype, float unit) {
  std::vector<float> elements(static_cast<std::size_t>(n_elements(shape)));
  for (float& x : elements) x = (static_cast<float>(random() >> 8) - 0x1p23f) * 0x1p-23f * unit;
  return Tensor(elements, shape, dtype);
}

/// Decodes 200 and 77 keys, five queries per key/value head, in two shards, and prints the digest.
/// @param unit magnitude of the values
void print(const char* name, std::int64_t d_h, std::int64_t d_v, DType dtype, float unit) {
  constexpr std::int64_t kKeys = 200, kSecond = 128;
  std::mt19937 random(1200);
  const Tensor q = draw(random, {2, 10, 1, d_h}, dtype, 4), k = draw(random, {2, 2, kKeys, d_h}, dtype, 4),
               v = draw(random, {2, 2, kKeys, d_v}, dtype, unit);
  const std::vector<std::int64_t> lengths{kKeys, 77};
  constexpr std::int64_t kRows = 20;
  Forest<float> forest(kRows, d_v);
  for (const auto [begin, end] : {KeyRange{0, kSecond}, KeyRange{kSecond, kKeys}}) {
    const Shard shard{k.view().positions(begin, end), v.view().positions(begin, end), begin};
    const Forest<float> part = decode_shard(q, shard, lengths, 0.3);
    forest.append(part.subtrees(), part.states().data());
  }
  const DecodeOutput output = finish_rows(forest.fold(), kRows, d_v);
  const std::uint64_t hash = fnv1a(std::as_bytes(std::span(output.lse)), fnv1a(std::as_bytes(std::span(output.out))));
  std::printf("%s %s d_h %d d_v %d: %016llx\n", name, std::string(name_of(dtype)).c_str(), static_cast<int>(d_h),
              static_cast<int>(d_v), static_cast<unsigned long long>(hash));
}

}  // namespace

int main() {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t d : {8, 64, 100, 128}) print("plain", d, d == 100 ? 17 : d, dtype, 4);
  }
  // Products and sums below the normal range, where a fused multiply-add differs from its two operations.
  print("tiny values", 64, 64, DType::F32, 0x1p-122f);
}
