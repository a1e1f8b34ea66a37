// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The sizes of a Llama-shaped model, read from the metadata of its file (section 6.4).
#pragma once

#include "reference/data/safetensors.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn {

/// Kind of a layer: the positions that its attention sees.
enum class LayerKind {
  kWindow,  ///< a position and the window - 1 positions before it, with rotary positions
  kGlobal   ///< all positions up to its own; its keys and values are sharded over the ranks
};

/// Sizes of a model. Every layer has n_h query heads over n_kv key/value heads, and a gated MLP.
struct ModelConfig {
  std::int64_t vocab = 0;         ///< tokens; a token is a byte, see token_of()
  std::int64_t dim = 0;           ///< elements of the residual stream
  std::int64_t heads = 0;         ///< n_h
  std::int64_t kv_heads = 0;      ///< n_kv, a divisor of n_h
  std::int64_t head_dim = 0;      ///< d_h = d_v, even
  std::int64_t ff = 0;            ///< elements inside the MLP
  std::vector<LayerKind> layers;  ///< from the first
  std::int64_t window = 0;        ///< positions that a windowed layer sees, its own included
  double rope_base = 10000;       ///< pair j of a head turns by position * rope_base^(-2 j / d_h)
  double eps = 1e-5;              ///< of RMSNorm
  bool global_rotary = false;     ///< whether global layers have rotary positions too, as those of Llama
  double scale_base = 0;          ///< if positive, scores of global layers times ln(n) / ln(scale_base), n keys

  /// Windowed layers before the first global one.
  std::int64_t leading_windows() const;
  /// Number of positions before a position on which the input of the first global layer depends: every windowed layer below
  /// it looks back by window - 1.
  std::int64_t halo() const { return leading_windows() * (window - 1); }
  /// Tests whether the keys and values of a text follow from the text and a halo, without any attention to the whole of it:
  /// the only global layer is the last one. Every rank then computes its own shard alone.
  bool shards_alone() const { return leading_windows() + 1 == static_cast<std::int64_t>(layers.size()); }
};

/// The config of a file: a JSON object in the entry "config" of its metadata.
///
/// It has the numbers vocab, dim, heads, kv_heads, head_dim, ff, and a list layers of "window" and "global". Optional are
/// window (required if a layer has one), rope_base, eps, scale_base and global_rotary. The entries about, author, date,
/// description, name, source and their like, and all that begin with an underscore, are for people. Others are refused: they
/// would be ignored.
/// @throws InputError in one line that names the file, the entry and its value
ModelConfig read_config(const SafetensorsFile& file);

/// The token of a byte: ASCII is its own code, and any other byte counts as '?'.
constexpr std::int64_t token_of(char byte) { return static_cast<unsigned char>(byte) < 128 ? byte : '?'; }

}  // namespace tree_attn
