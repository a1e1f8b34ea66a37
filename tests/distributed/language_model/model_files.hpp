// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Model files for tests: the trained one, and small ones with random weights.
#pragma once

#include "distributed/language_model/config.hpp"
#include "tests/support/tensor_files.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::test {

inline const std::string kRecall = TREE_ATTN_TEST_DATA "/recall/model.safetensors";

/// The tensors of a file in the making: name and shape.
using TensorShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// All tensors of a model, as Model expects them.
inline TensorShapes shapes_of(const ModelConfig& c) {
  TensorShapes shapes{
      {"model.embed_tokens.weight", {c.vocab, c.dim}}, {"model.norm.weight", {c.dim}}, {"lm_head.weight", {c.vocab, c.dim}}};
  for (std::size_t i = 0; i < c.layers.size(); ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    shapes.insert(shapes.end(), {{prefix + "input_layernorm.weight", {c.dim}},
                                 {prefix + "post_attention_layernorm.weight", {c.dim}},
                                 {prefix + "self_attn.q_proj.weight", {c.heads * c.head_dim, c.dim}},
                                 {prefix + "self_attn.k_proj.weight", {c.kv_heads * c.head_dim, c.dim}},
                                 {prefix + "self_attn.v_proj.weight", {c.kv_heads * c.head_dim, c.dim}},
                                 {prefix + "self_attn.o_proj.weight", {c.dim, c.heads * c.head_dim}},
                                 {prefix + "mlp.gate_proj.weight", {c.ff, c.dim}},
                                 {prefix + "mlp.up_proj.weight", {c.ff, c.dim}},
                                 {prefix + "mlp.down_proj.weight", {c.dim, c.ff}}});
  }
  return shapes;
}

/// The bytes of a model file: random weights of deviation 1 / sqrt(inputs), norms near 1.
/// @param config the JSON of the metadata, in which quotes are written as apostrophes
inline std::string model_bytes(const TensorShapes& shapes, std::string config, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::ranges::replace(config, '\'', '"');
  nlohmann::ordered_json header{{"__metadata__", {{"config", config}}}};
  std::string data;
  for (const auto& [name, shape] : shapes) {
    const std::size_t begin = data.size();
    std::normal_distribution<float> normal(shape.size() == 1 ? 1.0f : 0.0f,
                                           shape.size() == 1 ? 0.1f : 1 / std::sqrt(static_cast<float>(shape.back())));
    std::int64_t n = 1;
    for (const std::int64_t axis : shape) n *= axis;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = normal(random);
      data.append(reinterpret_cast<const char*>(&x), sizeof x);
    }
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  return with_length(header.dump(), data);
}

/// A plain Llama: every layer is global, with rotary positions and grouped heads. No size is a multiple of the padding.
inline const std::string kLlamaConfig =
    "{'vocab':130,'dim':36,'heads':6,'kv_heads':2,'head_dim':10,'ff':50,'layers':['global','global','global'],"
    "'global_rotary':true,'rope_base':500.0,'eps':1e-6}";
/// Layers of both kinds, in no particular order.
inline const std::string kMixedConfig =
    "{'vocab':128,'dim':32,'heads':4,'kv_heads':2,'head_dim':16,'ff':40,'layers':['window','global','window','global'],"
    "'window':7,'scale_base':16.0}";
/// Windowed layers before a global one, as in the trained model.
inline const std::string kWindowConfig =
    "{'vocab':128,'dim':32,'heads':4,'kv_heads':2,'head_dim':16,'ff':40,'layers':['window','window','global'],"
    "'window':7,'scale_base':16.0}";

/// The bytes of a random model with these sizes.
inline std::string random_model(const Scratch& scratch, const std::string& config, unsigned seed = 1) {
  const auto file = SafetensorsFile::open(scratch.write("config.safetensors", model_bytes({}, config)));
  return scratch.write("model" + std::to_string(seed) + ".safetensors",
                       model_bytes(shapes_of(read_config(file)), config, seed));
}

/// Text of random letters.
inline std::string random_text(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < n) text += static_cast<char>(random() % 5 == 0 ? ' ' : 'a' + random() % 26);
  return text;
}

}  // namespace tree_attn::test
