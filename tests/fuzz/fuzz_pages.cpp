// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fuzzes caches in pages: after any appends, cuts and shared prefixes, the pages are those of the model, and the
/// bits those of a dense cache.
///
/// Input: the choices, two bytes each; after the last one every choice is 0.
#include "tree_attn/tests/fuzz/check.hpp"
#include "tree_attn/tests/support/paged_pair.hpp"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tree_attn;
  const std::uint8_t* const end = bytes + size;
  const auto draw = [&](std::int64_t n) {
    const std::int64_t choice = end - bytes < 2 ? 0 : bytes[0] | bytes[1] << 8;
    bytes = end - bytes < 2 ? end : bytes + 2;
    return n <= 0 ? 0 : choice % (n + 1);
  };
  constexpr std::array kTypes{DType::F32, DType::BF16, DType::F8_E4M3};
  const DType dtype = kTypes[static_cast<std::size_t>(draw(2))];
  const AttentionShape shape{dtype, dtype, 1 + draw(3), 2, 1, 1 + draw(2), 4, 3};
  const PageRule rule{draw(30), draw(200), draw(140)};
  const int p = 1 + static_cast<int>(draw(4)), rank = static_cast<int>(draw(p - 1));
  const OwnedLeaves leaves = draw(1) == 0 ? OwnedLeaves(KeyRange{draw(200), kOpenEnd})
                                          : OwnedLeaves(dealt_ranges(p)[static_cast<std::size_t>(rank)], LeafOrder::kDealt);
  const SeenRule seen{draw(1) == 0, rule.window, rule.sinks};
  test::PagedPair pair(cpu_backend(1 + static_cast<int>(draw(1))), shape, leaves, rule);
  try {
    test::operate(pair, static_cast<int>(std::min<std::size_t>(size / 4, 60)), 1000, seen, draw);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    FUZZ_CHECK(!"an operation that the model does not expect");
  }
  return 0;
}
