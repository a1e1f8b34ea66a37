// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Enlarges the values, and reads covariance and entropy from the output.
#include "tree_attn/reference/data/moment_workload.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

namespace tree_attn {
MomentLayout moment_layout(const AttentionShape& shape) { return {shape.value_dim, Products::Squares, shape.head_dim}; }

std::unique_ptr<Workload> with_moments(Workload& inner) {
  const MomentLayout layout = moment_layout(inner.shape());
  return with_values(inner, layout.size(),
                     [layout](const TensorView& k, const TensorView& v) { return enlarge_values(layout, k, v); });
}

Moments take_moments(const MomentLayout& layout, DecodeOutput& output, const TensorView& q, double scale) {
  const std::int64_t n_rows = std::ssize(output.lse), size = layout.size(), d_h = q.shape[3];
  require_view("take_moments", q, "q");
  require(n_rows == q.shape[0] * q.shape[1] * q.shape[2] && std::ssize(output.out) == n_rows * size,
          "take_moments: ", output.out.size(), " means and ", n_rows, " lse for queries [", q.shape[0], ", ", q.shape[1],
          ", ", q.shape[2], "] and values of ", size);
  Moments moments;
  std::vector<float> z;
  std::vector<double> state(static_cast<std::size_t>(state_size(size))), w(static_cast<std::size_t>(d_h));
  for (std::int64_t r = 0; r < n_rows; ++r) {
    // The mean is a state whose weights sum to 1. Any shift is correct; use lse.
    const float lse = output.lse[static_cast<std::size_t>(r)];
    const float* means = output.out.data() + r * size;
    state[kShift] = kLog2E * lse;
    state[kSum] = lse == -std::numeric_limits<float>::infinity() ? 0 : 1;
    std::copy_n(means, size, state.begin() + kValues);

    // Read the state; the score is scale q.k.
    load_row(q, r / (q.shape[1] * q.shape[2]), r / q.shape[2] % q.shape[1], r % q.shape[2], w.data());
    for (double& factor : w) factor *= scale;
    const Eigen::MatrixXd variance = read_covariance<double>(layout, state.data());
    moments.variance.insert(moments.variance.end(), variance.data(), variance.data() + variance.size());
    moments.entropy.push_back(static_cast<float>(read_entropy(layout, state.data(), w)));
    z.insert(z.end(), means, means + layout.d_v);
  }
  output.out = std::move(z);
  return moments;
}

}  // namespace tree_attn
