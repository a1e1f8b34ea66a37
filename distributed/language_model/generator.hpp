// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A language model over sharded keys and values: one rank of it (section 6.4, Alg. 3 in a whole model).
///
/// Every rank holds all weights and computes every layer of a new character; they differ only in the keys and values of the
/// global layers, of which a rank holds its shard: an Attention for each such layer, with which the ranks decode. With an
/// algorithm that keeps its bits, logits and text are the same for every number of ranks.
#pragma once

#include "distributed/interface/attention.hpp"
#include "distributed/language_model/model.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Options of how keys and values are stored and combined; the same on every rank.
struct GeneratorOptions {
  LeafOrder order = LeafOrder::kContiguous;
  DType dtype = DType::F32;  ///< of keys and values
  KvScales scales = {};      ///< of F8_E4M3, in every layer [n_kv]
  PlanOptions plan = {};
  bool portable = false;  ///< AttentionShape::portable
  int n_threads = 1;      ///< that read a text; no bit depends on it
};

/// The shape of the cache of every global layer.
AttentionShape cache_shape(const ModelConfig& config, const GeneratorOptions& options);

/// The key with the largest weight in the last global layer.
struct LargestWeight {
  double weight = 0;          ///< of that key, in the head where it is largest; 0 without keys
  std::int64_t position = 0;  ///< of the character
  std::int64_t head = 0;
  std::int64_t rank = 0;  ///< that holds the key
};

/// One rank of a model that reads a text and continues it.
class Generator {
 public:
  /// @param model, backend, transport outlive the generator
  /// @param n_text characters that read() will read, by which the contiguous order cuts the shards
  /// @param algorithm combines the shards, until use() sets another
  Generator(const Model& model, const Backend& backend, Transport& transport, std::int64_t n_text,
            const Algorithm& algorithm, const GeneratorOptions& options);

  /// Reads a text into the empty caches: the keys and values of all its characters.
  ///
  /// If the only global layer is the last one, each rank computes the keys and values of its own characters, from these and
  /// the halo before them, and sends nothing. Otherwise a layer needs the attention of the one below it, and the characters
  /// pass through tree decoding, 64 of them in a step with a causal edge.
  /// @param text of n_text characters, the same on every rank @throws std::logic_error if the caches are not empty
  /// @param progress called with the part that this rank has done, from 0 to 1; may be empty
  void read(std::string_view text, const std::function<void(double)>& progress = {});
  /// Appends characters, each to the cache of the rank that holds its position, and decodes. Collective.
  /// @param text the same on every rank
  /// @returns the logits [vocab] of the next character, on every rank
  /// @throws std::invalid_argument if the text is empty; TransportError if a rank does not answer
  std::vector<float> append(std::string_view text);

  /// Characters read and appended.
  std::int64_t size() const { return cursor_.position; }
  /// The current cursor, to which rewind() returns.
  const Cursor& cursor() const { return cursor_; }
  /// Forgets all characters after a cursor, on every rank; the caches keep their memory.
  /// @param cursor that cursor() returned earlier @throws std::out_of_range if it is not among those read and appended
  void rewind(const Cursor& cursor);
  /// Moves the keys and values to the caches of n ranks: the others hold nothing from then on, and exchange with them.
  /// Collective. @returns bytes that this rank has sent @throws as Attention::reshard()
  std::int64_t move_to(int n_ranks);
  /// Combines shards by another algorithm from now on.
  void use(const Algorithm& algorithm);

  /// The key with the largest weight exp(score - lse) in the last step of the last global layer: over all heads and ranks.
  /// Every rank reads the keys of its shard once. Collective. @throws std::logic_error before the first step
  LargestWeight largest_weight(const Ranks& ranks) const;
  /// Characters whose keys and values this rank holds.
  std::int64_t rows() const { return leaves().n_keys(size()); }
  /// Bytes of the keys and values that this rank has room for, of all layers.
  std::int64_t cache_bytes() const {
    std::int64_t n = 0;
    for (const GlobalLayer& layer : layers_) n += layer.attention->cache().bytes();
    return n;
  }

 private:
  /// A global layer, and its attention. A layer below another one attends with every character of a chunk: its steps have
  /// up to 64 queries.
  struct GlobalLayer {
    std::int64_t index;
    std::unique_ptr<Attention> attention;
  };
  Rows attend(GlobalLayer& layer, const Rows& h, const Rotation& rotation);
  void decode(GlobalLayer& layer, const Rows& q, float* z);
  bool is_last(std::int64_t layer) const;
  void hold(GlobalLayer& layer, const Rows& k, const Rows& v);
  void read_shard(std::string_view text, const std::function<void(double)>& progress);
  const OwnedLeaves& leaves() const { return layers_.front().attention->cache().leaves(); }

  const Model& model_;
  Transport& transport_;
  GeneratorOptions options_;
  double scale_;  ///< 1 / sqrt(d_h)
  std::vector<GlobalLayer> layers_;
  Cursor cursor_;

  // The last decode step.
  std::vector<float> q_;  ///< [heads][d_h], with the factor ln(n) / ln(scale_base)
  DecodeOutput output_;   ///< [heads][d_h] and [heads]
};

}  // namespace tree_attn
