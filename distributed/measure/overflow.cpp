// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Finds finite input whose output is not finite, and the cause.
#include "distributed/measure/overflow.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace tree_attn {
namespace {

/// Whether the stored elements of rows [begin, end) of one head are all finite.
bool is_finite(const TensorView& view, std::int64_t i, std::int64_t h, std::int64_t begin, std::int64_t end) {
  std::vector<double> row(static_cast<std::size_t>(view.shape[3]));
  for (std::int64_t a = begin; a < end; ++a) {
    load_row(view, i, h, a, row.data());
    if (!std::all_of(row.begin(), row.end(), [](double x) { return std::isfinite(x); })) return false;
  }
  return true;
}

}  // namespace

std::string overflow_of(const TensorView& q, const std::optional<Shard>& all, std::span<const std::int64_t> lengths,
                        const DecodeOutput& output) {
  const auto [b, n_h, l, d_h] = q.shape;
  std::int64_t known_head = -1;  // adjacent rows share keys and values, which are read once
  bool head_finite = true;
  const std::int64_t n_rows = b * n_h * l, d_v = n_rows == 0 ? 0 : std::ssize(output.out) / n_rows;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t i = r / (n_h * l), h = r / l % n_h, j = r % l, length = lengths[static_cast<std::size_t>(i)];
    const auto z = output.out.begin() + r * d_v;
    const bool z_finite = std::all_of(z, z + d_v, [](float z_j) { return std::isfinite(z_j); });
    const bool lse_finite = std::isfinite(output.lse[static_cast<std::size_t>(r)]);
    if (length == 0 || (z_finite && lse_finite)) continue;

    // Check the input of this row alone.
    if (!is_finite(q, i, h, j, j + 1)) continue;
    if (all) {
      const std::int64_t n_kv = all->k.shape[1], kv_head = h / (n_h / n_kv);
      if (i * n_kv + kv_head != known_head) {
        known_head = i * n_kv + kv_head;
        head_finite = is_finite(all->k, i, kv_head, 0, length) && is_finite(all->v, i, kv_head, 0, length);
      }
      if (!head_finite) continue;
    }
    return "batch entry " + std::to_string(i) + ", head " + std::to_string(h) + ", query " + std::to_string(j) +
           ": the output is not finite, although the input is: " +
           (lse_finite ? "an element of v" : "a score, or an element of q or k,") +
           " exceeds F32; tree_attn oracle computes in F64";
  }
  return "";
}

}  // namespace tree_attn
