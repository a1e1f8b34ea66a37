// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A Llama-shaped language model: everything but the attention of its global layers, which is tree decoding
/// (section 6.4).
///
///     x = embed_tokens[token]
///     for each layer:  x += o_proj(attention(q_proj h, k_proj h, v_proj h)),   h = RMSNorm(x) * input_layernorm
///                      x += down_proj(silu(gate_proj h) * up_proj h),          h = RMSNorm(x) * post_attention_layernorm
///     logits = lm_head(RMSNorm(x) * norm)
///
/// with RMSNorm(x) = x / sqrt(mean(x^2) + eps) (Zhang, Sennrich 2019), a gated MLP (Shazeer 2020) and rotary positions (Su
/// and others 2021). The sizes come from the file (config.hpp). Nothing here knows about ranks: generator.hpp does.
#pragma once

#include "distributed/language_model/config.hpp"
#include "distributed/language_model/dense_kernel.hpp"
#include "reference/data/safetensors.hpp"

#include <Eigen/Core>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace tree_attn {

/// One row per position, padded with zeros to a multiple of 32 elements.
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A matrix of a checkpoint, [outputs, inputs], packed for DenseKernel::product().
class Linear {
 public:
  Linear() = default;
  /// @param w [outputs][inputs]
  /// @param out_groups, in_groups outputs and inputs consist of so many vectors, such as heads, each of which is padded
  /// @throws std::invalid_argument if w has another size, or groups do not divide outputs and inputs
  Linear(const std::vector<float>& w, std::int64_t outputs, std::int64_t inputs, std::int64_t out_groups = 1,
         std::int64_t in_groups = 1);
  /// x W^T. @param x [n, inputs] @returns [n, outputs], both padded @throws std::invalid_argument for other columns
  Rows operator()(const Rows& x) const;

 private:
  std::int64_t in_ = 0, out_ = 0;  // padded
  std::vector<float> panels_;
};

/// The weights of one layer, named as in the checkpoint.
struct Layer {
  std::vector<float> input_layernorm, post_attention_layernorm;
  Linear q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj;
};

/// The keys and values that a windowed layer still needs: those of the last window - 1 positions.
class Window {
 public:
  /// Attention of the next n positions, each to the window that ends with it; at the start of a text the window is shorter.
  /// @param q [n, heads * d], with d = padded(head_dim) @param k, v [n, kv_heads * d] of the same positions
  /// @returns [n, heads * d]
  Rows attend(const ModelConfig& config, const Rows& q, const Rows& k, const Rows& v);

 private:
  Rows k_, v_;
};

/// Cosines and sines of the rotary positions of some consecutive positions.
///
/// Pair j of a head, its elements j and j + d_h / 2, turns by the angle p rope_base^(-2 j / d_h) at position p. The angle is
/// computed in double: at a position near 10^6 neighbouring numbers of F32 are 1/16 apart, too far for an angle.
struct Rotation {
  /// @param n positions from `position` on
  Rotation(const ModelConfig& config, std::int64_t position, std::int64_t n);
  /// Turns every head of the last x.rows() positions. @param[in,out] x [n, n_heads * d] with d padded
  /// @throws std::invalid_argument if there are fewer positions, or x has another width
  void turn(Rows& x, std::int64_t n_heads) const;

  std::int64_t position;
  Rows cos, sin;  ///< [n, d_h / 2]
};

/// A cursor in a text: the next position, and the windows of all windowed layers before it.
struct Cursor {
  std::int64_t position = 0;
  std::vector<Window> windows = {};  ///< by layer; those of global layers stay empty
};

/// Attention of a global layer.
/// @param layer number of the layer
/// @param h [n, dim], the input after its RMSNorm, of the last n positions of this run
/// @param rotation of all positions of the run
/// @returns [m, heads * d], the output of every head before o_proj, with d = padded(head_dim): of the last m <= n positions
/// if the layers above need no others; m = 0 ends the run at this layer
using GlobalAttention = std::function<Rows(std::int64_t layer, const Rows& h, const Rotation& rotation)>;

/// A model whose weights are in memory. Several threads may use it at once.
class Model {
 public:
  /// Loads all weights; those of another type (F16, BF16, F64) are converted to F32.
  /// @throws InputError in one line that names the file and the tensor: a tensor is missing, has another shape or another
  /// type, or is not part of the model
  explicit Model(const SafetensorsFile& file);

  const ModelConfig& config() const { return config_; }

  /// Runs the next characters of a text through the layers, and moves `cursor` past them.
  /// @returns [m, dim], the output of the last layer for the m rows that `attend` returned last; no row for an empty text
  Rows run(std::string_view text, Cursor& cursor, const GlobalAttention& attend) const;
  /// The first step of run(): the rows of the embedding. @returns [n, dim]
  Rows embed(std::string_view text) const;
  /// The further steps of run(): one layer.
  /// @param i number of the layer @param x what enters it [n, dim]
  /// @param rotation of all positions of the run
  /// @returns what leaves it, [m, dim]: as many rows as `attend` returned, the last ones
  /// @throws std::out_of_range if there is no such layer, as the functions below do; std::invalid_argument if `attend`
  /// returns
  ///   more rows than it is given
  Rows layer(std::int64_t i, const Rows& x, Cursor& cursor, const Rotation& rotation, const GlobalAttention& attend) const;
  /// Queries, keys and values of a layer; with rotary positions if the layer has them.
  /// @param h [n, dim], the input after its RMSNorm, of the last n positions of the rotation
  /// @returns [n, heads * d] and [n, kv_heads * d] with d = padded(head_dim)
  Rows queries(std::int64_t layer, const Rows& h, const Rotation& rotation) const;
  Rows keys(std::int64_t layer, const Rows& h, const Rotation& rotation) const;
  Rows values(std::int64_t layer, const Rows& h) const;
  /// The logits, which are the scores of all tokens that may come next.
  /// @param x [1, dim], one row of the output of run() @returns [vocab] @throws std::invalid_argument for other rows
  std::vector<float> logits(const Rows& x) const;

 private:
  const Layer& layer_at(std::int64_t i) const;
  bool has_rotary(std::int64_t layer) const;
  Rows norm(const Rows& x, const std::vector<float>& weight) const;

  ModelConfig config_;
  Rows embed_tokens_;
  std::vector<Layer> layers_;
  std::vector<float> norm_;
  Linear lm_head_;
};

}  // namespace tree_attn
