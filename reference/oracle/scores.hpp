// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Scores of query rows against stored keys, computed in blocks (eq. (7)), for attention() and error_bound().
///
/// The query heads of a group are adjacent in q. The group_size * l queries of one key/value head are therefore consecutive
/// rows of one matrix, and so are their results.
#pragma once

#include "reference/oracle/attention.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tree_attn {

/// A matrix in row-major order, like the tensors.
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Consecutive query rows of one batch entry that read the same key/value head.
struct QueryRows {
  std::int64_t batch;    ///< batch entry
  std::int64_t kv_head;  ///< the head that they read
  std::int64_t begin;    ///< first row, counted over [b, n_h, l]: row = (batch * n_h + h) * l + i
  std::int64_t count;    ///< number of rows
};

/// Calls body(rows) for blocks of query rows that cover q. The scores of one block take at most 64 MiB, or one row.
template <class Body>
void for_each_query_rows(const TensorView& q, const TensorView& k, Body body) {
  constexpr std::int64_t kScores = std::int64_t{1} << 23;
  const std::int64_t n_rows = k.shape[1] > 0 ? q.shape[1] / k.shape[1] * q.shape[2] : 0;
  if (n_rows == 0) return;  // empty tensors may have more batch entries or heads than a loop can count
  const std::int64_t step = std::max<std::int64_t>(1, kScores / std::max<std::int64_t>(1, k.shape[2]));
  for (std::int64_t b = 0; b < q.shape[0]; ++b) {
    for (std::int64_t g = 0; g < k.shape[1]; ++g) {
      const std::int64_t begin = (b * k.shape[1] + g) * n_rows;
      for (std::int64_t r = 0; r < n_rows; r += step) body(QueryRows{b, g, begin + r, std::min(step, n_rows - r)});
    }
  }
}

/// Calls body(begin, block [n, d]) for consecutive blocks of at most 256 positions that cover [0, count) of one head of k or
/// v, times its scale. @param scales [b, n_kv]; empty: 1
template <class Body>
void for_each_block(const TensorView& x, const std::vector<float>& scales, const QueryRows& rows, std::int64_t count,
                    Body body) {
  constexpr std::int64_t kBlock = 256;
  const double scale = scales.empty() ? 1 : scales[static_cast<std::size_t>(rows.batch * x.shape[1] + rows.kv_head)];
  RowMatrix block;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    block.resize(std::min(kBlock, count - begin), x.shape[3]);
    for (std::int64_t a = 0; a < block.rows(); ++a) load_row(x, rows.batch, rows.kv_head, begin + a, block.row(a).data());
    block *= scale;
    body(begin, block);
  }
}

/// The given rows of q, or of another tensor [b, n_h, l, d], as a matrix [rows, d].
inline RowMatrix load_query_rows(const TensorView& x, const QueryRows& rows) {
  RowMatrix matrix(rows.count, x.shape[3]);
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const std::int64_t head_and_batch = (rows.begin + r) / x.shape[2];
    load_row(x, rows.batch, head_and_batch % x.shape[1], (rows.begin + r) % x.shape[2], matrix.row(r).data());
  }
  return matrix;
}

/// The learned logit of every row; -inf, a key that is not seen, where there is none.
inline Eigen::VectorXd sinks_of(const TensorView& q, const QueryRows& rows, const AttentionOptions& options) {
  Eigen::VectorXd sinks = Eigen::VectorXd::Constant(rows.count, -std::numeric_limits<double>::infinity());
  for (std::int64_t r = 0; r < rows.count && !options.sink.empty(); ++r)
    sinks(r) = options.sink[static_cast<std::size_t>((rows.begin + r) / q.shape[2] % q.shape[1])];
  return sinks;
}

/// s_ra = scale q_r.k_a, capped and masked, for the keys that any of the rows sees; -inf where row r does not see key a.
/// @param[in] q queries [b, n_h, l, d_h]
/// @param[in] k keys [b, n_kv, N, d_h]
/// @param[in] rows the query rows
/// @param[in] options scale, which keys are seen, lengths, mask and soft cap
/// @returns [rows, N]; N is where the last key ends that a row sees, so keys from options.lengths on are not read
inline RowMatrix scores(const TensorView& q, const TensorView& k, const QueryRows& rows, const AttentionOptions& options) {
  const auto seen = [&](std::int64_t r) { return seen_by(q, k, options, rows.batch, (rows.begin + r) % q.shape[2]); };
  std::int64_t n_keys = 0;
  for (std::int64_t r = 0; r < rows.count; ++r) n_keys = std::max(n_keys, seen(r).end);

  // Multiply queries and keys.
  const RowMatrix Q = load_query_rows(q, rows);
  RowMatrix s(rows.count, n_keys);
  for_each_block(k, options.key_scale, rows, n_keys, [&](std::int64_t begin, const RowMatrix& K) {
    s.middleCols(begin, K.rows()).noalias() = Q * K.transpose();
  });
  s *= scale_of(q, options);
  if (const double c = options.softcap; c > 0) s = s.unaryExpr([c](double x) { return c * std::tanh(x / c); });

  // Add the mask, and hide the keys that a row does not see.
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const std::int64_t row = rows.begin + r, l = q.shape[2];
    for (std::int64_t a = 0; a < n_keys; ++a) {
      s(r, a) = options.mask.add(s(r, a), 1.0, rows.batch, row / l % q.shape[1], row % l, a);
      if (!seen(r).contains(a)) s(r, a) = -std::numeric_limits<double>::infinity();
    }
  }
  return s;
}

}  // namespace tree_attn
