// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The model by its definition: every matrix whole, no cache, no blocks. In double it is the truth; in F32 it is
/// the plain implementation: our error may be at most twice its error.
#pragma once

#include "distributed/language_model/model.hpp"
#include "reference/tensor/convert.hpp"

#include <Eigen/Core>

#include <cmath>
#include <string>
#include <vector>

namespace tree_attn::test {

/// Rows of heads without their padding. @param x [n, n_heads * padded(d)] @returns [n, n_heads * d]
inline Rows without_padding(const Rows& x, std::int64_t n_heads, std::int64_t d) {
  Rows y(x.rows(), n_heads * d);
  for (std::int64_t h = 0; h < n_heads; ++h) y.middleCols(h * d, d) = x.middleCols(h * padded(d), d);
  return y;
}
/// The inverse.
inline Rows with_padding(const Rows& x, std::int64_t n_heads, std::int64_t d) {
  Rows y = Rows::Zero(x.rows(), n_heads * padded(d));
  for (std::int64_t h = 0; h < n_heads; ++h) y.middleCols(h * padded(d), d) = x.middleCols(h * d, d);
  return y;
}

/// The model of a file.
template <class Scalar>
class PlainModel {
 public:
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  /// Results of the model for one text, row by row of its characters.
  struct Result {
    std::vector<Matrix> hidden;  ///< what enters each layer, and what leaves the last one [T, dim]
    std::vector<Matrix> k, v;    ///< of each layer [T, kv_heads * head_dim], with rotary positions where it has them
    Matrix logits;               ///< [T, vocab]
  };

  explicit PlainModel(const SafetensorsFile& file) : file_(file), config_(read_config(file)) {}

  Result run(const std::string& text) const {
    Result result;
    const Matrix table = tensor("model.embed_tokens.weight");
    Matrix x(std::ssize(text), config_.dim);
    for (std::size_t i = 0; i < text.size(); ++i) x.row(static_cast<Eigen::Index>(i)) = table.row(token_of(text[i]));
    for (std::size_t i = 0; i < config_.layers.size(); ++i) {
      result.hidden.push_back(x);
      x = layer(i, x, result);
    }
    result.hidden.push_back(x);
    result.logits = linear(norm(x, "model.norm"), "lm_head");
    return result;
  }
  /// One layer. @param x what enters it @param[out] result its k and v are appended
  Matrix layer(std::size_t i, const Matrix& x, Result& result) const {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const bool global = config_.layers[i] == LayerKind::kGlobal;
    const Matrix h = norm(x, prefix + "input_layernorm");
    Matrix q = linear(h, prefix + "self_attn.q_proj"), k = linear(h, prefix + "self_attn.k_proj");
    const Matrix v = linear(h, prefix + "self_attn.v_proj");
    if (!global || config_.global_rotary) q = rotated(q), k = rotated(k);
    result.k.push_back(k), result.v.push_back(v);
    const Matrix y = x + linear(attention(q, k, v, global), prefix + "self_attn.o_proj");
    const Matrix g = norm(y, prefix + "post_attention_layernorm"), gate = linear(g, prefix + "mlp.gate_proj");
    const Matrix silu = gate.array() / (1 + (-gate.array()).exp());
    return y + linear(silu.cwiseProduct(linear(g, prefix + "mlp.up_proj")), prefix + "mlp.down_proj");
  }
  /// z = sum_j w_j v_j of every head.
  Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, bool global) const {
    const Eigen::Index d = config_.head_dim, group = config_.heads / config_.kv_heads;
    Matrix z(q.rows(), q.cols());
    for (Eigen::Index i = 0; i < q.rows(); ++i) {
      const Eigen::Index first = global ? 0 : std::max<Eigen::Index>(0, i - (config_.window - 1)), n = i + 1 - first;
      const double factor = global && config_.scale_base > 0 ? std::log(i + 1.0) / std::log(config_.scale_base) : 1;
      const auto scale = static_cast<Scalar>(factor / std::sqrt(static_cast<double>(d)));
      for (Eigen::Index h = 0; h < config_.heads; ++h) {
        const Matrix s = scale * (k.block(first, h / group * d, n, d) * q.row(i).segment(h * d, d).transpose());
        const Matrix w = (s.array() - s.maxCoeff()).exp();
        z.row(i).segment(h * d, d) = w.transpose() * v.block(first, h / group * d, n, d) / w.sum();
      }
    }
    return z;
  }

 private:
  Matrix tensor(const std::string& name) const {
    const TensorInfo& info = file_.at(name);
    Rows elements(info.shape.size() == 2 ? info.shape[0] : 1, info.shape.back());
    load(file_.data(info), DType::F32, elements.size(), elements.data());
    return elements.cast<Scalar>();
  }
  Matrix linear(const Matrix& x, const std::string& name) const { return x * tensor(name + ".weight").transpose(); }
  /// y = x / r * w with r^2 = mean(x^2) + eps.
  Matrix norm(const Matrix& x, const std::string& name) const {
    const Matrix w = tensor(name + ".weight");
    Matrix y = x;
    for (Eigen::Index i = 0; i < x.rows(); ++i) {
      const Scalar mean = x.row(i).squaredNorm() / static_cast<Scalar>(x.cols());
      y.row(i) = (x.row(i) / std::sqrt(mean + static_cast<Scalar>(config_.eps))).cwiseProduct(w);
    }
    return y;
  }
  Matrix rotated(const Matrix& x) const {
    const Eigen::Index d = config_.head_dim, half = d / 2;
    Matrix y = x;
    for (Eigen::Index i = 0; i < x.rows(); ++i) {
      for (Eigen::Index at = 0; at < x.cols(); ++at) {
        const Eigen::Index j = at % d;
        if (j >= half) continue;
        const double angle =
            static_cast<double>(i) * std::pow(config_.rope_base, -2.0 * static_cast<double>(j) / static_cast<double>(d));
        const auto c = static_cast<Scalar>(std::cos(angle)), s = static_cast<Scalar>(std::sin(angle));
        y(i, at) = x(i, at) * c - x(i, at + half) * s, y(i, at + half) = x(i, at + half) * c + x(i, at) * s;
      }
    }
    return y;
  }

  const SafetensorsFile& file_;
  ModelConfig config_;
};

}  // namespace tree_attn::test
