// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The model by its definition, in double precision: every matrix whole, no cache, no blocks, and with each value a
/// bound of the rounding error that an evaluation in F32 may have.
///
/// The bounds are first-order: e(f(x)) = |f'(x)| e(x) + the roundings of f itself, with u = 2^-24. A sum of n products has a
/// rounding error of at most (n + 1) u times the sum of their magnitudes, in any order.
#pragma once

#include "tree_attn/distributed/model/model.hpp"
#include "tree_attn/reference/tensor/convert.hpp"

#include <Eigen/Core>

#include <cmath>
#include <string>
#include <vector>

namespace tree_attn::test {

using Matrix = Eigen::MatrixXd;

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

/// Values with bounds of their errors.
struct Bounded {
  Matrix value, error;
};

/// What the model computes from one text, row by row of its characters.
struct PlainResult {
  std::vector<Bounded> hidden;  ///< what enters each layer, and what leaves the last one [T, dim]
  std::vector<Bounded> k, v;    ///< of each layer [T, kv_heads * head_dim], with rotary positions where it has them
  Bounded logits;               ///< [T, vocab]
};

/// The model of a file.
class PlainModel {
 public:
  explicit PlainModel(const SafetensorsFile& file) : file_(file), config_(read_config(file)) {}
  const ModelConfig& config() const { return config_; }

  PlainResult run(const std::string& text) const {
    PlainResult result;
    const Matrix table = tensor("model.embed_tokens.weight");
    Bounded x{Matrix(std::ssize(text), config_.dim), Matrix::Zero(std::ssize(text), config_.dim)};
    for (std::size_t i = 0; i < text.size(); ++i) x.value.row(static_cast<Eigen::Index>(i)) = table.row(token_of(text[i]));
    for (std::size_t i = 0; i < config_.layers.size(); ++i) {
      result.hidden.push_back(x);
      x = layer(static_cast<int>(i), x, result);
    }
    result.hidden.push_back(x);
    result.logits = linear(norm(x, "model.norm"), "lm_head");
    return result;
  }
  /// One layer. @param x what enters it @param[out] result its k and v are appended
  Bounded layer(int i, Bounded x, PlainResult& result) const {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const bool global = config_.layers[static_cast<std::size_t>(i)] == LayerKind::kGlobal;
    const Bounded h = norm(x, prefix + "input_layernorm");
    Bounded q = linear(h, prefix + "self_attn.q_proj"), k = linear(h, prefix + "self_attn.k_proj");
    const Bounded v = linear(h, prefix + "self_attn.v_proj");
    if (!global || config_.global_rotary) q = rotated(q), k = rotated(k);
    result.k.push_back(k), result.v.push_back(v);
    x = sum(x, linear(attention(q, k, v, global), prefix + "self_attn.o_proj"));
    const Bounded g = norm(x, prefix + "post_attention_layernorm");
    return sum(
        x, linear(gated(linear(g, prefix + "mlp.gate_proj"), linear(g, prefix + "mlp.up_proj")), prefix + "mlp.down_proj"));
  }
  Matrix tensor(const std::string& name) const {
    const TensorInfo& info = file_.at(name);
    const Eigen::Index rows = info.shape.size() == 2 ? info.shape[0] : 1, columns = info.shape.back();
    std::vector<float> elements(static_cast<std::size_t>(rows * columns));
    load(file_.data(info), DType::F32, rows * columns, elements.data());
    return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(elements.data(), rows,
                                                                                                   columns)
        .cast<double>();
  }

  /// z = sum_j w_j v_j; an error ds_j of a score moves z by w_j ds_j (v_j - z).
  Bounded attention(const Bounded& q, const Bounded& k, const Bounded& v, bool global) const {
    const Eigen::Index T = q.value.rows(), d = config_.head_dim, group = config_.heads / config_.kv_heads;
    Bounded z{Matrix(T, q.value.cols()), Matrix(T, q.value.cols())};
    for (Eigen::Index i = 0; i < T; ++i) {
      const Eigen::Index first = global ? 0 : std::max<Eigen::Index>(0, i - (config_.window - 1)), n = i + 1 - first;
      const double factor = global && config_.scale_base > 0 ? std::log(i + 1.0) / std::log(config_.scale_base) : 1;
      const double scale = factor / std::sqrt(static_cast<double>(d));
      for (Eigen::Index h = 0; h < config_.heads; ++h) {
        const Eigen::Index kv = h / group * d;
        const auto K = k.value.block(first, kv, n, d), V = v.value.block(first, kv, n, d);
        const auto q_i = q.value.row(i).segment(h * d, d);
        const Eigen::VectorXd s = scale * (K * q_i.transpose());
        const Eigen::VectorXd e_s = scale * (K.cwiseAbs() * q.error.row(i).segment(h * d, d).transpose() +
                                             k.error.block(first, kv, n, d) * q_i.cwiseAbs().transpose() +
                                             (static_cast<double>(d) + 4) * u * (K.cwiseAbs() * q_i.cwiseAbs().transpose()));
        Eigen::VectorXd w = (s.array() - s.maxCoeff()).exp();
        w /= w.sum();
        const Eigen::RowVectorXd out = w.transpose() * V;
        z.value.row(i).segment(h * d, d) = out;
        // The argument of exp2 is rounded, and exp2 itself.
        const Eigen::VectorXd e_w = e_s.array() + u * (2 * s.array().abs() + 2 * std::abs(s.maxCoeff()) + 4);
        z.error.row(i).segment(h * d, d) =
            w.transpose() * v.error.block(first, kv, n, d) +
            w.cwiseProduct(e_w).transpose() * (V.rowwise() - out).cwiseAbs() +
            (static_cast<double>(std::min<Eigen::Index>(n, 64)) + 16) * u * (w.transpose() * V.cwiseAbs());
      }
    }
    return z;
  }

 private:
  static constexpr double u = 0x1p-24;

  Bounded linear(const Bounded& x, const std::string& name) const {
    const Matrix w = tensor(name + ".weight").transpose(), size = w.cwiseAbs();
    const double n = static_cast<double>(w.rows());
    return {x.value * w, x.error * size + (n + 1) * u * (x.value.cwiseAbs() * size)};
  }
  static Bounded sum(const Bounded& x, const Bounded& y) {
    const Matrix value = x.value + y.value;
    return {value, x.error + y.error + u * value.cwiseAbs()};
  }
  /// y = x / r * w with r^2 = mean(x^2) + eps.
  Bounded norm(const Bounded& x, const std::string& name) const {
    const Matrix w = tensor(name + ".weight");
    Bounded y = x;
    const double n = static_cast<double>(x.value.cols());
    for (Eigen::Index i = 0; i < x.value.rows(); ++i) {
      const double r = std::sqrt(x.value.row(i).squaredNorm() / n + config_.eps);
      const double moved = x.value.row(i).cwiseAbs().dot(x.error.row(i)) / (n * r * r);  // relative error of r
      y.value.row(i) = (x.value.row(i) / r).cwiseProduct(w);
      y.error.row(i) =
          (x.error.row(i) / r).cwiseProduct(w.cwiseAbs()) + (moved + (n + 12) * u / 2) * y.value.row(i).cwiseAbs();
    }
    return y;
  }
  Bounded rotated(const Bounded& x) const {
    const Eigen::Index d = config_.head_dim, half = d / 2;
    Bounded y = x;
    for (Eigen::Index i = 0; i < x.value.rows(); ++i) {
      for (Eigen::Index at = 0; at < x.value.cols(); at += d) {
        for (Eigen::Index j = at; j < at + half; ++j) {
          const double angle = static_cast<double>(i) *
                               std::pow(config_.rope_base, -2.0 * static_cast<double>(j - at) / static_cast<double>(d));
          const double c = std::cos(angle), s = std::sin(angle), a = x.value(i, j), b = x.value(i, j + half);
          const double e_a = x.error(i, j), e_b = x.error(i, j + half);
          y.value(i, j) = a * c - b * s, y.value(i, j + half) = b * c + a * s;
          y.error(i, j) = e_a * std::abs(c) + e_b * std::abs(s) + 3 * u * (std::abs(a * c) + std::abs(b * s));
          y.error(i, j + half) = e_b * std::abs(c) + e_a * std::abs(s) + 3 * u * (std::abs(b * c) + std::abs(a * s));
        }
      }
    }
    return y;
  }
  /// silu(g) up; |silu'| < 1.1, and exp(-|g|) has a relative error of (2 |g| + 4) u.
  static Bounded gated(const Bounded& g, const Bounded& up) {
    const auto silu = (g.value.array() / (1 + (-g.value.array()).exp())).eval();
    const auto e_silu = (1.1 * g.error.array() + (g.value.array().abs() + 8) * u * silu.abs()).eval();
    const Matrix value = silu * up.value.array();
    return {value, (e_silu * up.value.array().abs() + silu.abs() * up.error.array()).matrix() + u * value.cwiseAbs()};
  }

  const SafetensorsFile& file_;
  ModelConfig config_;
};

}  // namespace tree_attn::test
