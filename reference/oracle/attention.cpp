// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The oracle on stored tensors (sections 3, 4 and eq. (7)), and the shape checks that all decoders share.
#include "reference/oracle/attention.hpp"

#include "reference/energy/log_sum_exp.hpp"
#include "reference/oracle/scores.hpp"
#include "reference/state/require_seen.hpp"
#include "reference/tensor/shape.hpp"

#include <array>
#include <cmath>
#include <iterator>
#include <limits>

namespace tree_attn {
namespace {

constexpr const char* kHere = "attention";  // in errors
constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// For those whose positions stand before the heads.
constexpr const char* kAxes = " (q, k, v are [b, heads, positions, d])";

/// Energies log sum_a exp(s_ra) and means sum_a softmax(s_r)_a v_a of rows of scores.
/// @param[in] s scores [rows, N]
/// @param[in] sinks the learned logit of every row
/// @param[in] scales factors of the values
/// @param[out] mean [rows, d_v]
/// @param[out] lse [rows]
void reduce(const RowMatrix& s, const Eigen::VectorXd& sinks, const TensorView& v, const std::vector<float>& scales,
            const QueryRows& rows, double* mean, double* lse) {
  // Find the largest score of every row, or NaN if the row has one. The sum begins with the sink, which has the value 0.
  Eigen::VectorXd m(s.rows()), D(s.rows());
  for (std::int64_t r = 0; r < s.rows(); ++r) {
    m(r) = max_keeping_nan(Eigen::Vector2d(max_keeping_nan(s.row(r).transpose()), sinks(r)));
    D(r) = safe_weight(sinks(r), m(r));
  }

  // Sum weights and weighted values. A masked key is skipped, because 0 times its value could be NaN.
  Eigen::Map<RowMatrix> n(mean, s.rows(), v.shape[3]);
  n.setZero();
  for_each_block(v, scales, rows, s.cols(), [&](std::int64_t begin, const RowMatrix& V) {
    for (std::int64_t r = 0; r < s.rows(); ++r) {
      for (std::int64_t a = 0; a < V.rows(); ++a) {
        if (s(r, begin + a) == -kInfinity) continue;
        const double w = safe_weight(s(r, begin + a), m(r));
        D(r) += w;
        n.row(r) += w * V.row(a);
      }
    }
  });

  // Divide once. If all keys are masked, n = 0 and D = 0.
  for (std::int64_t r = 0; r < s.rows(); ++r) {
    if (D(r) != 0) n.row(r) /= D(r);
    lse[r] = D(r) != 0 ? m(r) + std::log(D(r)) : -kInfinity;
  }
}

/// Adds zeta_r.v_a to the scores of the keys that are not masked.
void add_source(const RowMatrix& zeta, const TensorView& v, const std::vector<float>& scales, const QueryRows& rows,
                RowMatrix& s) {
  for_each_block(v, scales, rows, s.cols(), [&](std::int64_t begin, const RowMatrix& V) {
    const RowMatrix zeta_v = zeta * V.transpose();
    auto s_block = s.middleCols(begin, V.rows());
    s_block = (s_block.array() == -kInfinity).select(s_block, s_block + zeta_v);
  });
}

}  // namespace

AttentionResult attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  check_shapes(q, k, v);
  check_options(q, k, v, options);

  // Allocate one row of results per query row.
  const std::int64_t d_v = v.shape[3];
  const auto n_rows = static_cast<std::size_t>(q.shape[0] * q.shape[1] * q.shape[2]);
  AttentionResult result;
  result.out.resize(n_rows * static_cast<std::size_t>(d_v));
  result.lse.resize(n_rows);
  if (options.zeta) {
    result.gradient.resize(result.out.size());
    result.energy.resize(n_rows);
  }

  // Reduce each block of query rows at zeta = 0, then with the source.
  for_each_query_rows(q, k, [&](const QueryRows& rows) {
    RowMatrix s = scores(q, k, rows, options);
    const Eigen::VectorXd sinks = sinks_of(q, rows, options);
    reduce(s, sinks, v, options.value_scale, rows, result.out.data() + rows.begin * d_v, result.lse.data() + rows.begin);
    const auto done = static_cast<double>(rows.begin + rows.count);
    if (options.progress) options.progress(done / static_cast<double>(n_rows));
    if (!options.zeta) return;
    add_source(load_query_rows(*options.zeta, rows), v, options.value_scale, rows, s);
    reduce(s, sinks, v, options.value_scale, rows, result.gradient.data() + rows.begin * d_v,
           result.energy.data() + rows.begin);
  });
  return result;
}

void check_shapes(const TensorView& q, const TensorView& k, const TensorView& v) {
  require_view(kHere, q, "q");
  require_view(kHere, k, "k");
  require_view(kHere, v, "v");
  require(q.shape[3] == k.shape[3], kHere, ": head_dim of q (", q.shape[3], ") and k (", k.shape[3], ") differ");
  require(q.shape[0] == k.shape[0], kHere, ": batch of q (", q.shape[0], ") and k (", k.shape[0], ") differ");
  require(k.shape[0] == v.shape[0], kHere, ": batch of k (", k.shape[0], ") and v (", v.shape[0], ") differ");
  require(k.shape[1] == v.shape[1], kHere, ": k has ", k.shape[1], " KV heads, v has ", v.shape[1], kAxes);
  require(k.shape[2] == v.shape[2], kHere, ": k has ", k.shape[2], " keys, v has ", v.shape[2]);
  require_shape(kHere, shape_of(q, k, v));
}

void check_options(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  const std::int64_t b = q.shape[0], n_keys = k.shape[2];
  require(std::isfinite(scale_of(q, options)), kHere, ": a scale of ", scale_of(q, options), "; a finite number is needed");
  require_seen(kHere, options.rule, options.sink.size(), options.mask, options.softcap, {b, q.shape[1], q.shape[2]}, n_keys);
  for (const std::vector<float>* scales : {&options.key_scale, &options.value_scale})
    require(scales->empty() || std::ssize(*scales) == b * k.shape[1], kHere, ": ", scales->size(), " scales for ", b,
            " entries of ", k.shape[1], " KV heads");
  const std::int64_t n_lengths = std::ssize(options.lengths);
  require(n_lengths == 0 || n_lengths == b, kHere, ": ", n_lengths, " lengths for a batch of ", b);
  for (std::size_t i = 0; i < options.lengths.size(); ++i) {
    const std::int64_t length = options.lengths[i];
    require(length >= 0 && length <= n_keys, kHere, ": length ", length, " of batch entry ", i, " is not in [0, ", n_keys,
            "]");
  }
  if (!options.zeta) return;
  require_view(kHere, *options.zeta, "zeta");
  const std::array<std::int64_t, 4> wanted{b, q.shape[1], q.shape[2], v.shape[3]};
  for (std::size_t axis = 0; axis < 4; ++axis) {
    const std::int64_t n = options.zeta->shape[axis];
    require(n == wanted[axis], kHere, ": axis ", axis, " of zeta has length ", n, " instead of ", wanted[axis]);
  }
}

double scale_of(const TensorView& q, const AttentionOptions& options) {
  return options.scale.value_or(1 / std::sqrt(static_cast<double>(q.shape[3])));
}

Seen seen_by(const TensorView& q, const TensorView& k, const AttentionOptions& options, std::int64_t b, std::int64_t i) {
  const std::int64_t n = options.lengths.empty() ? k.shape[2] : options.lengths[static_cast<std::size_t>(b)];
  return options.rule.of(n, q.shape[2], i);
}

}  // namespace tree_attn
