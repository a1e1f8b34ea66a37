// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The warning for output that is not finite in F32: where it is given, and the cause that it names (section 5).
#include "tree_attn/distributed/measure/overflow.hpp"
#include "tree_attn/tests/support/tensors.hpp"

#include <doctest/doctest.h>

#include <limits>

namespace tree_attn::test::overflow_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

/// Two heads of one query each over one key/value head, three keys, in F64. The output is what a test says.
struct Input {
  std::vector<double> q = {1, 2, 3, 4}, k = {1, 2, 3, 4, 5, 6}, v = {1, 2, 3, 4, 5, 6};
  double scale = 1;
  DecodeOutput output{{1, 1, 1, 1}, {1, 1}};
  bool knows_keys = true;

  std::string warning() const {
    const auto view = [](const std::vector<double>& x, std::int64_t heads, std::int64_t rows) {
      return TensorView::dense(reinterpret_cast<const std::byte*>(x.data()), DType::F64, {1, heads, rows, 2});
    };
    const std::int64_t lengths[] = {3};
    const auto all = knows_keys ? std::optional(Shard{view(k, 1, 3), view(v, 1, 3), 0}) : std::nullopt;
    return overflow_of({view(q, 2, 1), lengths}, all, scale, output);
  }
  /// Head h has an output of NaN, with an lse of NaN too or not.
  Input nan(int h, bool and_lse = true) const {
    Input input = *this;
    input.output.out[static_cast<std::size_t>(2 * h)] = input.output.out[static_cast<std::size_t>(2 * h + 1)] = kNaN;
    if (and_lse) input.output.lse[static_cast<std::size_t>(h)] = kNaN;
    return input;
  }
};

std::string of_head(int h, const std::string& cause) {
  return "batch entry 0, head " + std::to_string(h) + ", query 0: the output is not finite, although it is by the formula" +
         (cause.empty() ? "" : ": " + cause + " exceeds F32") + "; tree_attn oracle computes in F64";
}

}  // namespace

TEST_CASE("overflow: a cause is named if it is in the row, and no other") {
  Input input;
  CHECK(input.warning() == "");
  CHECK(input.nan(1).warning() == of_head(1, ""));
  CHECK(input.nan(1, false).warning() == of_head(1, ""));

  Input q = input, k = input, v = input, score = input, sum = input;
  q.q[3] = -1e39, q.scale = 0, k.k[5] = 1e39, k.scale = 0, v.v[5] = 1e39;
  CHECK(q.nan(1).warning() == of_head(1, "an element of q"));
  CHECK(q.nan(0).warning() == of_head(0, ""));
  CHECK(k.nan(0).warning() == of_head(0, "an element of k"));
  CHECK(v.nan(1, false).warning() == of_head(1, "an element of v"));
  CHECK(v.nan(1).warning() == of_head(1, ""));
  // The element is in component 1, and component 0 is what has no value.
  v = v.nan(1, false), v.output.out[3] = 1;
  CHECK(v.warning() == of_head(1, ""));

  // log2(e) 11 scale is beyond 2^128, or just below.
  score.k[4] = 0, score.k[5] = 0, score.k[2] = 0, score.k[3] = 0, score.scale = -0x1.1p124;
  CHECK(score.nan(1).warning() == of_head(1, "a score"));
  score.scale = -0x1.0p124;
  CHECK(score.nan(1).warning() == of_head(1, ""));

  // The score is 0, one of its terms is not.
  sum.q[2] = 1e20, sum.q[3] = -1e20, sum.k[2] = sum.k[3] = 1e19, sum.scale = 0;
  CHECK(sum.nan(1).warning() == of_head(1, "a partial sum of a score"));
  sum.scale = 1e-3;
  CHECK(sum.nan(1).warning() == of_head(1, ""));
}

TEST_CASE("overflow: NaN and Inf of the input are no reason for a warning, and hide none") {
  for (const float x : {kNaN, kInf, -kInf}) {
    CAPTURE(x);
    Input q, k, v;
    // The other head, the other component.
    q.q[1] = x, v.v[3] = x;
    CHECK(q.nan(0).warning() == "");
    CHECK(q.nan(0).nan(1).warning() == of_head(1, ""));
    CHECK(v.nan(0).warning() == of_head(0, ""));
    CHECK(v.nan(0, false).warning() == of_head(0, ""));
    v.output.out = {1, x, 1, x};
    CHECK(v.warning() == "");

    // A key that is masked hides nothing; one with a score of NaN or +inf is the reason.
    k.k[2] = x;
    CHECK(k.nan(0).warning() == (x == -kInf ? of_head(0, "") : ""));
    k.k[0] = k.k[4] = x;
    CHECK(k.nan(0).warning() == "");
  }
}

TEST_CASE("overflow: without keys and values no cause is named") {
  Input input;
  input.knows_keys = false;
  CHECK(input.nan(1).warning() == of_head(1, ""));
  CHECK(input.nan(1, false).warning() == of_head(1, ""));
  input.q[2] = kNaN;
  CHECK(input.nan(1).warning() == "");
}

}  // namespace tree_attn::test::overflow_test
