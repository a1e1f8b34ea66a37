// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The bound of the rounding errors of a decoder.
#include "reference/oracle/error_bound.hpp"

#include "reference/energy/log_sum_exp.hpp"
#include "reference/oracle/scores.hpp"
#include "reference/state/subtree.hpp"

#include <cmath>

namespace tree_attn {

ErrorModel tree_decode_model(std::int64_t n_keys, double roundoff) {
  return {.roundoff = roundoff, .n_additions = n_tree_additions(n_keys)};
}

ErrorBound error_bound(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options,
                       const ErrorModel& model) {
  check_shapes(q, k, v);
  check_options(q, k, v, options);
  const double u = model.roundoff, n_a = model.n_additions, R = model.n_rescalings, c_e = model.exp_error,
               c_w = model.weight_error, u_out = model.output_roundoff;
  const std::int64_t d_h = q.shape[3], d_v = v.shape[3];
  const auto n_rows = static_cast<std::size_t>(q.shape[0] * q.shape[1] * q.shape[2]);
  ErrorBound bound{std::vector<double>(n_rows * static_cast<std::size_t>(d_v)), std::vector<double>(n_rows)};

  for_each_query_rows(q, k, [&](const QueryRows& rows) {
    const RowMatrix s = scores(q, k, rows, options);
    const Eigen::VectorXd sinks = sinks_of(q, rows, options);
    const std::int64_t N = s.cols();

    // Bound the error of every score: (c_s d_h + 1) u scale sum_k |q_k k_ak|.
    const RowMatrix Q = load_query_rows(q, rows);
    RowMatrix delta(rows.count, N);
    for_each_block(k, options.key_scale, rows, N, [&](std::int64_t begin, const RowMatrix& K) {
      delta.middleCols(begin, K.rows()).noalias() = Q.cwiseAbs() * K.cwiseAbs().transpose();
    });
    delta *= (model.score_error * static_cast<double>(d_h) + 1) * u * std::abs(scale_of(q, options));
    // A cap changes no difference between scores to a larger one. It and the mask have roundings of their own.
    for (std::int64_t r = 0; r < rows.count && (options.softcap > 0 || options.mask.data != nullptr); ++r) {
      const std::int64_t row = rows.begin + r, l = q.shape[2];
      for (std::int64_t a = 0; a < N; ++a) {
        if (s(r, a) == -std::numeric_limits<double>::infinity()) continue;
        const double of_mask = options.mask.add(0.0, 1.0, rows.batch, row / l % q.shape[1], row % l, a);
        delta(r, a) += 16 * u * (std::abs(s(r, a)) + std::abs(of_mask));
      }
    }

    // Take the maxima over the near keys. A key is far if its score is far below the largest with any errors of the two.
    const double of_sums = (2 * n_a + 2 * (c_e + 2) * (R + 1) + 3) * u + u_out;
    Eigen::VectorXd lse(rows.count), least_near(rows.count), factor(rows.count);
    const auto is_near = [&](std::int64_t r, std::int64_t a) { return s(r, a) + delta(r, a) > least_near(r); };
    double* const lse_bound = bound.lse.data() + rows.begin;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      // A learned sink is one more key, of value 0, with the score of one rounding.
      Eigen::VectorXd all(N + 1);
      all << s.row(r).transpose(), sinks(r);
      const double m = max_keeping_nan(all), of_sink = std::abs(sinks(r)) * u;
      const bool has_sink = sinks(r) != -std::numeric_limits<double>::infinity();
      lse(r) = log_sum_exp(all);
      double largest = has_sink ? sinks(r) - of_sink : sinks(r), Delta = has_sink ? of_sink : 0,
             W = has_sink ? m - sinks(r) : 0;
      for (std::int64_t a = 0; a < N; ++a) largest = std::max(largest, s(r, a) - delta(r, a));
      least_near(r) = largest - std::log(static_cast<double>(N + 1) / u);
      if (has_sink && sinks(r) + of_sink <= least_near(r)) Delta = W = 0;
      for (std::int64_t a = 0; a < N; ++a) {
        if (!is_near(r, a)) continue;
        Delta = std::max(Delta, delta(r, a));
        W = std::max(W, m - s(r, a));
      }
      // Beyond e^700 the hull is the bound; 0 times an infinite factor would be NaN.
      factor(r) = std::expm1(std::min(2 * (Delta + (W + c_w) * u), 700.0)) + of_sums;
      const bool empty = m == -std::numeric_limits<double>::infinity();
      lse_bound[r] = empty ? 0 : 8 * u * std::max(1.0, std::abs(lse(r))) + Delta + (n_a + c_w) * u;
    }

    // Sum the magnitudes: near keys with the factor of the row, far keys with 1. Find the hull of the values.
    Eigen::Map<RowMatrix> out(bound.out.data() + rows.begin * d_v, rows.count, d_v);
    Eigen::RowVectorXd low = Eigen::RowVectorXd::Constant(d_v, std::numeric_limits<double>::infinity()), high = -low;
    if (!options.sink.empty()) low.setZero(), high.setZero();
    for_each_block(v, options.value_scale, rows, N, [&](std::int64_t begin, const RowMatrix& V) {
      for (std::int64_t a = 0; a < V.rows(); ++a) low = low.cwiseMin(V.row(a)), high = high.cwiseMax(V.row(a));
      for (std::int64_t r = 0; r < rows.count; ++r) {
        for (std::int64_t a = 0; a < V.rows(); ++a) {
          const double s_a = s(r, begin + a);
          if (s_a == -std::numeric_limits<double>::infinity()) continue;
          const double weight = std::exp(s_a - lse(r)) * (is_near(r, begin + a) ? factor(r) : 1.0);
          out.row(r) += weight * V.row(a).cwiseAbs();
        }
      }
    });

    // z and the output are in the hull, the output up to the errors of its sums. A bound that is NaN stays NaN.
    const Eigen::RowVectorXd of_hull = high - low + of_sums * high.cwiseAbs().cwiseMax(low.cwiseAbs());
    for (std::int64_t r = 0; r < rows.count; ++r) {
      for (std::int64_t j = 0; j < d_v; ++j) {
        if (of_hull(j) < out(r, j)) out(r, j) = of_hull(j);
      }
    }
    const auto done = static_cast<double>(rows.begin + rows.count);
    if (options.progress) options.progress(done / static_cast<double>(n_rows));
  });
  return bound;
}

}  // namespace tree_attn
