// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Comparison of results with an oracle, with a bound per element.
///
/// |got - want| <= bound is false for NaN, and so is |got - want| > bound. A suite that counts the elements with
/// |got - want| > bound therefore accepts a result of all NaN. This comparison checks for NaN and Inf first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace tree_attn::test {

/// The larger of two errors; +inf if the second is NaN, which std::max() would drop.
inline double larger_error(double largest, double error) {
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(largest, error);
}

/// The treatment of NaN and Inf.
enum class NonFinite {
  Reject,  ///< any NaN or Inf, on either side, is a failure
  Match,   ///< NaN must match NaN, Inf the same Inf; finite elements are compared
};

/// The result, for CHECK_MESSAGE(comparison.ok, comparison.message).
struct Comparison {
  bool ok = true;
  std::string message;  ///< the worst element with its index, or the reason of the failure
  double worst = 0;     ///< largest error / bound
};

/// Compares got with want, element by element: |got - want| <= bound. A bound of 0 requires equality.
/// @param[in] got, want, bound [n]
/// @param non_finite treatment of NaN and Inf
template <class Got, class Want>
Comparison compare(const Got& got, const Want& want, const std::vector<double>& bound,
                   NonFinite non_finite = NonFinite::Reject) {
  Comparison result;
  const auto fail = [&result](const auto&... parts) {
    std::ostringstream text;
    text.precision(17);
    (text << ... << parts);
    result.ok = false;
    result.message = text.str();
    return result;
  };

  // Check the sizes, then NaN and Inf, then the values.
  if (got.size() != want.size()) return fail("size ", got.size(), " instead of ", want.size());
  if (bound.size() != static_cast<std::size_t>(want.size()))
    return fail(bound.size(), " bounds for ", want.size(), " elements");
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const auto g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (std::isfinite(g) && std::isfinite(w)) continue;
    const bool same = (std::isnan(g) && std::isnan(w)) || g == w;
    if (non_finite == NonFinite::Reject || !same) return fail("element ", i, " is ", g, " instead of ", w);
  }
  std::size_t worst = 0;
  for (std::size_t i = 0; i < bound.size(); ++i) {
    const auto g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (!std::isfinite(w)) continue;
    if (!(bound[i] >= 0)) return fail("bound ", i, " is ", bound[i]);
    const double error = std::abs(g - w);
    const double ratio = error == 0 ? 0 : error / bound[i];
    if (ratio > result.worst) result.worst = ratio, worst = i;
  }
  if (result.worst > 1)
    return fail("element ", worst, " is ", got[worst], " instead of ", want[worst], ", ", result.worst, " times the bound ",
                bound[worst]);
  result.message = "largest error " + std::to_string(result.worst) + " of the bound, at " + std::to_string(worst);
  return result;
}

/// Compares with one bound for all elements.
template <class Got, class Want>
Comparison compare(const Got& got, const Want& want, double bound, NonFinite non_finite = NonFinite::Reject) {
  return compare(got, want, std::vector<double>(static_cast<std::size_t>(want.size()), bound), non_finite);
}

}  // namespace tree_attn::test
