// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Finds output that is not finite although it is by the formula, and the cause.
#include "tree_attn/distributed/measure/overflow.hpp"

#include "tree_attn/reference/state/score_scale.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace tree_attn {
namespace {

using Row = std::vector<double>;

bool is_finite(const auto& row) {
  return std::all_of(row.begin(), row.end(), [](auto x) { return std::isfinite(x); });
}
bool exceeds(double x) { return std::abs(x) > std::numeric_limits<float>::max(); }
bool exceeds(const Row& row) {
  return std::any_of(row.begin(), row.end(), [](double x) { return exceeds(x); });
}

/// The rows of a head that a query sees.
struct Rows {
  const TensorView& view;
  std::int64_t i, h;
  Seen seen;
  /// Calls body(row) for one row after the other, until it returns false.
  template <class Body>
  void each(Body body) const {
    Row row(static_cast<std::size_t>(view.shape[3]));
    for (std::int64_t a = 0; a < seen.end; ++a) {
      if (!seen.contains(a)) continue;
      load_row(view, i, h, a, row.data());
      if (!body(row)) return;
    }
  }
};

/// What exceeds F32 on the way to the log-sum-exp of a query: "" if nothing is found; nothing if lse is not finite by the
/// formula.
std::optional<std::string> cause_in_scores(const Row& q, const Rows& keys, double scale) {
  if (!is_finite(q)) return std::nullopt;
  const double factor = kLog2E * scale, largest = std::max<double>(split_scale(scale).query, std::abs(factor));
  std::optional<std::string> cause;
  keys.each([&](const Row& k) {
    double score = 0, terms = 0;
    for (std::size_t c = 0; c < q.size(); ++c) score += q[c] * k[c], terms += std::abs(q[c] * k[c]);
    score *= factor;
    if (!is_finite(k)) {
      // A key with a score of -inf is masked.
      const bool is_masked = score < 0 && std::isinf(score);
      if (!is_masked) cause.reset();
      return is_masked;
    }
    if (!cause || *cause == "")
      cause = exceeds(q)                 ? "an element of q"
              : exceeds(k)               ? "an element of k"
              : exceeds(score)           ? "a score"
              : exceeds(terms * largest) ? "a partial sum of a score"
                                         : "";
    return true;
  });
  return cause;
}

/// Of each component of the values of a key/value head: whether all are finite, and whether one exceeds F32.
struct Components {
  std::vector<bool> finite, exceeding;
  explicit Components(const Rows& values)
      : finite(static_cast<std::size_t>(values.view.shape[3]), true), exceeding(finite.size(), false) {
    values.each([&](const Row& v) {
      for (std::size_t j = 0; j < v.size(); ++j) {
        if (!std::isfinite(v[j])) finite[j] = false;
        if (exceeds(v[j])) exceeding[j] = true;
      }
      return true;
    });
  }
  /// The same for components of an output row whose lse is finite.
  std::optional<std::string> cause(std::span<const float> z) const {
    std::optional<std::string> cause;
    for (std::size_t j = 0; j < z.size(); ++j) {
      if (std::isfinite(z[j]) || !finite[j]) continue;
      if (exceeding[j]) return "an element of v";
      cause = "";
    }
    return cause;
  }
};

/// The components of the values of a head, which neighbouring rows share: read once.
class LastComponents {
 public:
  const Components& of(const Rows& values) {
    if (!components_ || values.i != i_ || values.h != h_ || values.seen != seen_)
      components_.emplace(values), i_ = values.i, h_ = values.h, seen_ = values.seen;
    return *components_;
  }

 private:
  std::int64_t i_ = 0, h_ = 0;
  Seen seen_;
  std::optional<Components> components_;
};

}  // namespace

bool has_overflowed(Workload& workload, const DecodeOutput& output) {
  const WorkloadShape& shape = workload.shape();
  const std::vector<std::int64_t> lengths = workload.lengths(workload.steps() - 1);
  const auto d_v = static_cast<std::size_t>(shape.value_dim);
  LastComponents components;
  std::optional<Shard> all;
  for (std::size_t r = 0; r < output.lse.size(); ++r) {
    const std::span z(output.out.data() + r * d_v, d_v);
    if (!std::isfinite(output.lse[r]) || is_finite(z)) continue;
    const std::int64_t j = static_cast<std::int64_t>(r) % shape.n_queries,
                       row = static_cast<std::int64_t>(r) / shape.n_queries, i = row / shape.heads,
                       kv_head = row % shape.heads / (shape.heads / shape.kv_heads);
    if (!all) all = workload.whole();
    const Seen seen = shape.rule.of(lengths[static_cast<std::size_t>(i)], shape.n_queries, j);
    if (components.of({all->v, i, kv_head, seen}).cause(z)) return true;
  }
  return false;
}

std::string overflow_of(const Step& step, const std::optional<Shard>& all, double scale, const DecodeOutput& output) {
  const TensorView& q = step.q;
  const auto [b, n_h, l, d_h] = q.shape;
  LastComponents components;
  const std::int64_t n_rows = b * n_h * l, d_v = n_rows == 0 ? 0 : std::ssize(output.out) / n_rows;
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t i = r / (n_h * l), h = r / l % n_h, j = r % l;
    const Seen seen = step.seen(i, j);
    const std::span z(output.out.data() + r * d_v, static_cast<std::size_t>(d_v));
    const bool lse_finite = std::isfinite(output.lse[static_cast<std::size_t>(r)]);
    const bool is_masked = !lse_finite && step.mask.data != nullptr;  // maybe on purpose
    if (seen.end == 0 || is_masked || (lse_finite && is_finite(z))) continue;

    // Look for the cause in the input of this row alone.
    Row query(static_cast<std::size_t>(d_h));
    load_row(q, i, h, j, query.data());
    std::optional<std::string> cause;
    if (!all) {
      if (is_finite(query)) cause = "";
    } else {
      const std::int64_t n_kv = all->k.shape[1], kv_head = h / (n_h / n_kv);
      cause = lse_finite ? components.of({all->v, i, kv_head, seen}).cause(z)
                         : cause_in_scores(query, {all->k, i, kv_head, seen}, scale);
    }
    if (!cause) continue;
    return "batch entry " + std::to_string(i) + ", head " + std::to_string(h) + ", query " + std::to_string(j) +
           ": the output is not finite, although it is by the formula" +
           (*cause == "" ? "" : ": " + *cause + " exceeds F32") + "; tree_attn oracle computes in F64";
  }
  return "";
}

}  // namespace tree_attn
