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
               u_out = model.output_roundoff;
  const std::int64_t d_h = q.shape[3], d_v = v.shape[3];
  const auto n_rows = static_cast<std::size_t>(q.shape[0] * q.shape[1] * q.shape[2]);
  ErrorBound bound{std::vector<double>(n_rows * static_cast<std::size_t>(d_v)), std::vector<double>(n_rows)};

  for_each_query_rows(q, k, [&](const QueryRows& rows) {
    const RowMatrix s = scores(q, k, rows, options);
    const std::int64_t N = s.cols();

    // Bound the error of every score: (d_h + 1) u scale sum_k |q_k k_ak|.
    const RowMatrix Q = load_query_rows(q, rows);
    RowMatrix delta(rows.count, N);
    for_each_block(k, rows, N, [&](std::int64_t begin, const RowMatrix& K) {
      delta.middleCols(begin, K.rows()).noalias() = Q.cwiseAbs() * K.cwiseAbs().transpose();
    });
    delta *= static_cast<double>(d_h + 1) * u * std::abs(scale_of(q, options));

    // Take the maxima over the near keys.
    const double far = std::log(static_cast<double>(N) / u);
    Eigen::VectorXd m(rows.count), lse(rows.count), factor(rows.count);
    double* const lse_bound = bound.lse.data() + rows.begin;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      m(r) = max_keeping_nan(s.row(r).transpose());
      lse(r) = log_sum_exp(s.row(r).transpose());
      double Delta = 0, W = 0;
      for (std::int64_t a = 0; a < N; ++a) {
        if (!(m(r) - s(r, a) < far)) continue;
        Delta = std::max(Delta, delta(r, a));
        W = std::max(W, m(r) - s(r, a));
      }
      factor(r) = 2 * Delta + 2 * W * u + (2 * n_a + 2 * (c_e + 2) * (R + 1) + 3) * u + u_out;
      const bool empty = m(r) == -std::numeric_limits<double>::infinity();
      lse_bound[r] = empty ? 0 : 8 * u * std::max(1.0, std::abs(lse(r))) + Delta + n_a * u;
    }

    // Sum the magnitudes: near keys with the factor of the row, far keys with 1.
    Eigen::Map<RowMatrix> out(bound.out.data() + rows.begin * d_v, rows.count, d_v);
    for_each_block(v, rows, N, [&](std::int64_t begin, const RowMatrix& V) {
      for (std::int64_t r = 0; r < rows.count; ++r) {
        for (std::int64_t a = 0; a < V.rows(); ++a) {
          const double s_a = s(r, begin + a);
          if (s_a == -std::numeric_limits<double>::infinity()) continue;
          const double weight = std::exp(s_a - lse(r)) * (m(r) - s_a < far ? factor(r) : 1.0);
          out.row(r) += weight * V.row(a).cwiseAbs();
        }
      }
    });
  });
  return bound;
}

}  // namespace tree_attn
