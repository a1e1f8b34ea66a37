// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The line about output that F32 does not hold (section 5).
#include "distributed/program/not_finite.hpp"

#include <doctest/doctest.h>

#include <functional>

namespace tree_attn::test::not_finite_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLeast = std::numeric_limits<float>::lowest();

/// The line about one entry of two heads of two queries over 100 keys.
std::string line_about(
    const DecodeOutput& output, const std::function<void(WorkloadShape&)>& change = [](WorkloadShape&) {}) {
  WorkloadShape shape{{.heads = 2, .kv_heads = 1, .head_dim = 2, .value_dim = 2}, 100, {}};
  shape.n_queries = 2;
  change(shape);
  return not_finite(output, *make_workload(shape, 1, 1));
}

}  // namespace

TEST_CASE("overflow: the first row that is not finite is named") {
  const DecodeOutput finite{{0, 0, 1, 2, 3, 4, 5, 6}, {-3e38f, 1, 2, 3}};
  CHECK(line_about(finite) == "");
  const auto says = [&](std::size_t row, std::size_t component, float x) {
    DecodeOutput output = finite;
    (component < 2 ? output.out[2 * row + component] : output.lse[row]) = x;
    return line_about(output);
  };
  for (const float x : {kNaN, kInf, -kInf}) {
    CAPTURE(x);
    CHECK(says(1, 1, x).starts_with("batch entry 0, head 0, query 1: "));
    CHECK(says(2, 0, x).starts_with("batch entry 0, head 1, query 0: "));
    CHECK(says(3, 2, x).starts_with("batch entry 0, head 1, query 1: "));
  }
}

TEST_CASE("overflow: a row with a lse of -inf is named where it sees a key or has a sink") {
  const DecodeOutput empty{std::vector<float>(8), std::vector<float>(4, -kInf)};
  const std::string named = "batch entry 0, head ";
  CHECK(line_about(empty).starts_with(named + "0, query 0: "));
  CHECK(line_about(empty, [](WorkloadShape& shape) { shape.lengths = {0}; }) == "");
  CHECK(line_about(empty, [](WorkloadShape& shape) {
          shape.lengths = {1}, shape.rule.causal = true;
        }).starts_with(named + "0, query 1: "));
  CHECK(line_about(empty, [](WorkloadShape& shape) { shape.lengths = {0}, shape.sink = {-kInf, -kInf}; }) == "");
  CHECK(line_about(empty, [](WorkloadShape& shape) {
          shape.lengths = {0}, shape.sink = {-kInf, kLeast};
        }).starts_with(named + "1, query 0: "));

  // Masks [1, 2, 2, 100] that hide all keys but one.
  std::vector<float> added(400, -kInf);
  std::vector<std::uint8_t> seen(400, 0);
  const auto with = [&](const void* mask, bool is_boolean, SeenRule rule = {}) {
    return line_about(empty, [&](WorkloadShape& shape) {
      shape.mask = Mask::dense(mask, is_boolean, {1, 2, 2, 100}), shape.rule = rule;
    });
  };
  CHECK(with(added.data(), false) == "");
  CHECK(with(seen.data(), true) == "");
  added[3 * 100 + 99] = kLeast, seen[2 * 100 + 50] = 1;
  CHECK(with(added.data(), false).starts_with(named + "1, query 1: "));
  CHECK(with(seen.data(), true).starts_with(named + "1, query 0: "));
  CHECK(with(seen.data(), true, {.window = 50}).starts_with(named + "1, query 0: "));
  CHECK(with(seen.data(), true, {.window = 49}) == "");
  CHECK(with(seen.data(), true, {.window = 49, .sinks = 50}) == "");
  CHECK(with(seen.data(), true, {.window = 49, .sinks = 51}).starts_with(named + "1, query 0: "));
}

}  // namespace tree_attn::test::not_finite_test
