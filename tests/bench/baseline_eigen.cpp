// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention as Eigen's two products, compiled for this processor.
#include "tests/bench/baselines.hpp"

#include <Eigen/Core>

#include <stdexcept>
#include <string>

namespace tree_attn::bench {

void eigen_decode(const Step& step, std::int64_t begin, std::int64_t end, float* z) {
  if (step.dtype != DType::F32) throw std::invalid_argument("eigen_decode: F32 only");
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  thread_local Eigen::MatrixXf weights;
  const std::int64_t n = step.n_keys, d = step.head_dim, group = step.heads / step.kv_heads;
  for (std::int64_t h = begin; h < end; ++h) {
    const Eigen::Map<const Rows> k(reinterpret_cast<const float*>(step.k) + h * n * d, n, d);
    const Eigen::Map<const Rows> v(reinterpret_cast<const float*>(step.v) + h * n * d, n, d);
    const Eigen::Map<const Rows> q(step.q + h * group * d, group, d);
    Eigen::Map<Rows> out(z + h * group * d, group, d);

    // All query heads of the group share the two products.
    weights.noalias() = k * q.transpose();
    for (std::int64_t i = 0; i < group; ++i) {
      auto column = weights.col(i);
      column = (step.scale * (column.array() - column.maxCoeff())).exp();
      column /= column.sum();
    }
    out.noalias() = weights.transpose() * v;
  }
}

std::string eigen_version() {
  return std::to_string(EIGEN_WORLD_VERSION) + '.' + std::to_string(EIGEN_MAJOR_VERSION) + '.' +
         std::to_string(EIGEN_MINOR_VERSION);
}

}  // namespace tree_attn::bench
