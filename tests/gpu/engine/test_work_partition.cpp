// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs that a warp finds in a batch, and batches that are refused because they cannot be counted (section 5.3).
#include "gpu/engine/units.hpp"
#include "gpu/ladder/ladder.hpp"
#include "tests/gpu/engine/part_kernels.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace tree_attn::test {
namespace {

namespace device = TREE_ATTN_PLATFORM;

}  // namespace

TEST_CASE("work partition: a warp finds what one thread finds, in batches of any size") {
  for (const Count n : {1, 2, 5, 31, 32, 33, 64, 65, 100}) {
    CAPTURE(n);
    std::vector<Count> counts, expected;
    for (Count i = 0; i < n; ++i) counts.push_back(i % 7 == 3 ? 9 : 1 + i % 3);
    const auto of = [&counts](Count i) { return counts[i]; };
    expected.push_back(SerialScan::sum(n, of));
    FoundEntry before;
    bool same = true;
    for (Count item = 0; item < expected[0]; ++item) {
      const FoundEntry found = SerialScan::find(n, item, of);
      expected.push_back(found.entry), expected.push_back(found.first);
      // The same from an entry before it.
      const FoundEntry again = SerialScan::find(n, item, of, before);
      same = same && again.entry == found.entry && again.first == found.first;
      if (item % 5 == 0) before = found;
    }
    CHECK(same);
    CHECK(device::scan_on_device(counts) == expected);
  }
}

/// A block reads the lengths of all n entries, to know the work, and those up to its first one; then it goes on from
/// entry to entry. A search from the first entry for each of them would be quadratic.
TEST_CASE("work partition: twice the batch is twice the reads of lengths") {
  for (const int n_blocks : {1, 3}) {
    CAPTURE(n_blocks);
    const unsigned n_of_half = device::n_asked_on_device(320, n_blocks), n = device::n_asked_on_device(640, n_blocks);
    CHECK(n_of_half >= 320);
    CHECK(10 * n <= 21 * n_of_half);
  }
}

TEST_CASE("work partition: what 32 bits cannot count is refused by every step") {
  DecodeParams params;
  params.batch = 3, params.kv_heads = 5, params.group = 17;  // 255 rows
  params.d_h = params.d_v = 8;
  for (const device::LadderStep* step : device::all_kernels()) {
    params.end = 1;
    const DType dtype = step->refusal(params, DType::F32) == "" ? DType::F32 : DType::BF16;
    if (step->refusal(params, dtype) == "no tensor maps on compute capability 8") continue;  // rung 7 on such a device
    params.end = (kMostWorkItems / 255 - 1) * kLeafKeys + 1;
    CHECK(step->refusal(params, dtype) == "");
    params.end = kMostWorkItems / 255 * kLeafKeys + 1;
    CHECK(step->refusal(params, dtype) == "255 rows over 16843010 leaves: more than 4294967295 work items");
    DecodeParams far = params;
    far.end = kMostWorkItems * kLeafKeys, far.begin = far.end - kLeafKeys;
    CHECK(step->refusal(far, dtype) == "");
    ++far.end;
    CHECK(step->refusal(far, dtype) == "position 274877906881: more than 2^38 - 64");
  }
}

}  // namespace tree_attn::test
