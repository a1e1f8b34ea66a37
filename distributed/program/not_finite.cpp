// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Looks for rows that are not finite, and for a key that such a row sees.
#include "distributed/program/not_finite.hpp"

#include "reference/data/input_error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace tree_attn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Tests whether query j of a head sees a key, or the head has a sink, so that its lse should be finite.
bool sees_something(const WorkloadShape& shape, const Mask& mask, std::int64_t length, std::int64_t i, std::int64_t h,
                    std::int64_t j) {
  if (!shape.sink.empty() && shape.sink[static_cast<std::size_t>(h)] > -kInf) return true;
  const Seen seen = shape.rule.of(length, shape.n_queries, j);
  const auto sees = [&](std::int64_t first) {
    for (std::int64_t a = first; seen.contains(a); ++a)
      if (mask.add(0.0f, 1.0f, i, h, j, a) > -kInf) return true;
    return false;
  };
  return sees(0) || sees(seen.begin);
}

}  // namespace

std::string not_finite(const DecodeOutput& output, const Workload& workload) {
  const WorkloadShape& shape = workload.shape();
  const int last = workload.steps() - 1;
  const Mask mask = workload.mask(last);
  const std::vector<std::int64_t> lengths = workload.lengths(last);
  const auto d_v = static_cast<std::size_t>(shape.value_dim);
  for (std::size_t r = 0; r < output.lse.size(); ++r) {
    const std::int64_t j = static_cast<std::int64_t>(r) % shape.n_queries,
                       row = static_cast<std::int64_t>(r) / shape.n_queries, i = row / shape.heads, h = row % shape.heads;
    const float lse = output.lse[r];
    const bool fits =
        lse == -kInf ? !sees_something(shape, mask, lengths[static_cast<std::size_t>(i)], i, h, j) : std::isfinite(lse);
    if (fits && std::ranges::all_of(std::span(output.out).subspan(r * d_v, d_v), [](float z) { return std::isfinite(z); }))
      continue;
    return line_of(
        "batch entry ", i, ", head ", h, ", query ", j,
        ": out or lse is not finite: q, k or v has NaN or Inf, or a number exceeds F32; tree_attn oracle computes in F64");
  }
  return "";
}

}  // namespace tree_attn
