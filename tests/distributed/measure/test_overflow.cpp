// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The line about output that is not finite: which row it names, and when there is none (section 5).
#include "tree_attn/distributed/measure/overflow.hpp"

#include <doctest/doctest.h>

#include <limits>

namespace tree_attn::test {

TEST_CASE("overflow: the first row that is not finite is named, and none that sees no key") {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  // One entry, two heads of two queries; the first row sees no key.
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .n_queries = 2, .head_dim = 2, .value_dim = 2};
  const DecodeOutput finite{{0, 0, 1, 2, 3, 4, 5, 6}, {-kInf, 1, 2, 3}};
  CHECK(not_finite(finite, shape) == "");
  const auto says = [&](std::size_t row, std::size_t component, float x) {
    DecodeOutput output = finite;
    (component < 2 ? output.out[2 * row + component] : output.lse[row]) = x;
    return not_finite(output, shape);
  };
  for (const float x : {kNaN, kInf, -kInf}) {
    CAPTURE(x);
    CHECK(says(1, 1, x).starts_with("batch entry 0, head 0, query 1: "));
    CHECK(says(2, 0, x).starts_with("batch entry 0, head 1, query 0: "));
    CHECK(says(3, 2, x).starts_with(x == -kInf ? "" : "batch entry 0, head 1, query 1: "));
    CHECK(says(3, 2, x).empty() == (x == -kInf));
  }
}

}  // namespace tree_attn::test
