// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Loads the weights of a model and evaluates its layers.
#include "distributed/language_model/model.hpp"

#include "reference/state/require.hpp"
#include "reference/state/state.hpp"
#include "reference/tensor/convert.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace tree_attn {
namespace {

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

/// The tensors of a file, each read once and checked.
class WeightReader {
 public:
  explicit WeightReader(const SafetensorsFile& file) : file_(file) {}

  std::vector<float> read(const std::string& name, std::vector<std::int64_t> shape) {
    const TensorInfo& tensor = file_.at(name);
    if (tensor.shape != shape) {
      fail("tensor \"" + name + "\" has shape " + readable(shape_text(tensor.shape), 80) + ", but the config makes it " +
           shape_text(shape));
    }
    const auto dtype = std::find_if(kDTypes.begin(), kDTypes.end(), [&](DType d) { return name_of(d) == tensor.dtype; });
    if (dtype == kDTypes.end())
      fail("tensor \"" + name + "\": dtype " + tensor.dtype + " not supported (F64, F32, F16, BF16, F8_E4M3)");
    std::int64_t n = 1;
    for (const std::int64_t axis : shape) n *= axis;
    std::vector<float> weights(static_cast<std::size_t>(n));
    load(file_.data(tensor), *dtype, n, weights.data());
    read_.insert(name);
    return weights;
  }
  /// Refuses a file with further tensors: they would be ignored.
  void finish() const {
    for (const TensorInfo& tensor : file_.tensors()) {
      if (!read_.contains(tensor.name))
        fail("tensor \"" + readable(tensor.name) + "\" is not part of the model of the config");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw InputError(readable(file_.path(), 200) + ": " + what); }

  const SafetensorsFile& file_;
  std::set<std::string> read_;
};

std::vector<float> padded_row(std::vector<float> weight) {
  weight.resize(static_cast<std::size_t>(padded(std::ssize(weight))));
  return weight;
}

}  // namespace

Linear::Linear(const std::vector<float>& w, std::int64_t outputs, std::int64_t inputs, std::int64_t out_groups,
               std::int64_t in_groups) {
  require(outputs >= 0 && inputs >= 0 && out_groups >= 1 && in_groups >= 1 && outputs % out_groups == 0 &&
              inputs % in_groups == 0 && std::ssize(w) == outputs * inputs,
          "Linear: ", w.size(), " weights for ", outputs, " outputs in ", out_groups, " groups and ", inputs, " inputs in ",
          in_groups);
  const std::int64_t of_out = outputs / out_groups, of_in = inputs / in_groups;
  const std::int64_t out_pad = padded(of_out), in_pad = padded(of_in);
  out_ = out_groups * out_pad, in_ = in_groups * in_pad;
  panels_.resize(static_cast<std::size_t>(out_ * in_));
  for (std::int64_t o = 0; o < outputs; ++o) {
    const std::int64_t column = o / of_out * out_pad + o % of_out;
    for (std::int64_t i = 0; i < inputs; ++i) {
      const std::int64_t row = i / of_in * in_pad + i % of_in;
      panels_[static_cast<std::size_t>((column / kPanel * in_ + row) * kPanel + column % kPanel)] =
          w[static_cast<std::size_t>(o * inputs + i)];
    }
  }
}

Rows Linear::operator()(const Rows& x) const {
  require(x.rows() == 0 || x.cols() == in_, "Linear: rows of ", x.cols(), " elements, not ", in_);
  Rows y(x.rows(), out_);
  dense_kernel().product(x.data(), x.rows(), in_, panels_.data(), out_, y.data());
  return y;
}

Rotation::Rotation(const ModelConfig& config, std::int64_t first, std::int64_t n)
    : position(first), cos(n, config.head_dim / 2), sin(n, config.head_dim / 2) {
  for (std::int64_t j = 0; j < cos.cols(); ++j) {
    const double step = std::pow(config.rope_base, -2.0 * static_cast<double>(j) / static_cast<double>(config.head_dim));
    for (std::int64_t i = 0; i < n; ++i) {
      const double angle = static_cast<double>(position + i) * step;
      cos(i, j) = static_cast<float>(std::cos(angle)), sin(i, j) = static_cast<float>(std::sin(angle));
    }
  }
}

void Rotation::turn(Rows& x, std::int64_t n_heads) const {
  const std::int64_t half = cos.cols();
  require(n_heads >= 1 && x.cols() % n_heads == 0 && x.cols() / n_heads >= 2 * half, "Rotation::turn: rows of ", x.cols(),
          " elements, ", n_heads, " heads of at least ", 2 * half);
  require(x.rows() <= cos.rows(), "Rotation::turn: ", x.rows(), " rows, but ", cos.rows(), " positions");
  const std::int64_t d = x.cols() / n_heads;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    const auto c = cos.row(cos.rows() - x.rows() + i).array(), s = sin.row(cos.rows() - x.rows() + i).array();
    for (std::int64_t h = 0; h < n_heads; ++h) {
      auto a = x.row(i).segment(h * d, half).array(), b = x.row(i).segment(h * d + half, half).array();
      const Eigen::ArrayXXf turned = a * c - b * s;
      b = b * c + a * s;
      a = turned;
    }
  }
}

Rows Window::attend(const ModelConfig& config, const Rows& q, const Rows& k, const Rows& v) {
  // The keys and values at hand: those of earlier positions, then the new ones.
  const std::int64_t held = k_.rows(), n = q.rows(), width = k.cols();
  Rows keys(held + n, width), values(held + n, width);
  if (held > 0) keys.topRows(held) = k_, values.topRows(held) = v_;
  keys.bottomRows(n) = k, values.bottomRows(n) = v;

  // Attend, position by position.
  std::vector<float> weights(static_cast<std::size_t>(padded(config.window)));
  const double scale = kLog2E / std::sqrt(static_cast<double>(config.head_dim));
  Rows z(n, q.cols());
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t first = std::max<std::int64_t>(0, held + i - (config.window - 1));
    dense_kernel().window({.q = q.row(i).data(),
                           .k = keys.row(first).data(),
                           .v = values.row(first).data(),
                           .n_keys = held + i + 1 - first,
                           .heads = config.heads,
                           .kv_heads = config.kv_heads,
                           .d = width / config.kv_heads,
                           .score_scale = static_cast<float>(scale),
                           .weights = weights.data()},
                          z.row(i).data());
  }
  const std::int64_t kept = std::min(held + n, config.window - 1);
  k_ = keys.bottomRows(kept), v_ = values.bottomRows(kept);
  return z;
}

Model::Model(const SafetensorsFile& file) : config_(read_config(file)) {
  WeightReader reader(file);
  const auto& [vocab, dim, heads, kv_heads, head_dim, ff, kinds, window, rope_base, eps, global_rotary, scale_base] =
      config_;
  const std::vector<float> embed = reader.read("model.embed_tokens.weight", {vocab, dim});
  embed_tokens_ = Rows::Zero(vocab, padded(dim));
  embed_tokens_.leftCols(dim) = Eigen::Map<const Rows>(embed.data(), vocab, dim);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const auto matrix = [&](const char* name, std::int64_t outputs, std::int64_t inputs, std::int64_t out_groups = 1,
                            std::int64_t in_groups = 1) {
      return Linear(reader.read(prefix + name + ".weight", {outputs, inputs}), outputs, inputs, out_groups, in_groups);
    };
    Layer& layer = layers_.emplace_back();
    layer.input_layernorm = padded_row(reader.read(prefix + "input_layernorm.weight", {dim}));
    layer.q_proj = matrix("self_attn.q_proj", heads * head_dim, dim, heads);
    layer.k_proj = matrix("self_attn.k_proj", kv_heads * head_dim, dim, kv_heads);
    layer.v_proj = matrix("self_attn.v_proj", kv_heads * head_dim, dim, kv_heads);
    layer.o_proj = matrix("self_attn.o_proj", dim, heads * head_dim, 1, heads);
    layer.post_attention_layernorm = padded_row(reader.read(prefix + "post_attention_layernorm.weight", {dim}));
    layer.gate_proj = matrix("mlp.gate_proj", ff, dim);
    layer.up_proj = matrix("mlp.up_proj", ff, dim);
    layer.down_proj = matrix("mlp.down_proj", dim, ff);
  }
  norm_ = padded_row(reader.read("model.norm.weight", {dim}));
  lm_head_ = Linear(reader.read("lm_head.weight", {vocab, dim}), vocab, dim);
  reader.finish();
}

Rows Model::run(std::string_view text, Cursor& cursor, const GlobalAttention& attend) const {
  const Rotation rotation(config_, cursor.position, std::ssize(text));
  cursor.position += std::ssize(text);
  Rows x = embed(text);
  for (std::int64_t i = 0; i < std::ssize(layers_) && x.rows() > 0; ++i) x = layer(i, x, cursor, rotation, attend);
  return x;
}

Rows Model::embed(std::string_view text) const {
  Rows x(std::ssize(text), embed_tokens_.cols());
  for (std::size_t i = 0; i < text.size(); ++i) x.row(static_cast<Eigen::Index>(i)) = embed_tokens_.row(token_of(text[i]));
  return x;
}

Rows Model::layer(std::int64_t i, const Rows& x, Cursor& cursor, const Rotation& rotation,
                  const GlobalAttention& attend) const {
  // Attention. A global layer may return fewer rows, the last ones: the others are not needed any more.
  const Layer& layer = layer_at(i);
  const Rows h = norm(x, layer.input_layernorm);
  cursor.windows.resize(layers_.size());
  const Rows z = config_.layers[static_cast<std::size_t>(i)] == LayerKind::kGlobal
                     ? attend(i, h, rotation)
                     : cursor.windows[static_cast<std::size_t>(i)].attend(config_, queries(i, h, rotation),
                                                                          keys(i, h, rotation), values(i, h));
  require(z.rows() <= x.rows(), "Model::layer: attention of ", z.rows(), " positions, of ", x.rows());
  Rows y = x.bottomRows(z.rows()) + layer.o_proj(z);

  // The gated MLP.
  const Rows g = norm(y, layer.post_attention_layernorm);
  Rows gate = layer.gate_proj(g);
  dense_kernel().gate(gate.data(), layer.up_proj(g).data(), gate.size());
  y += layer.down_proj(gate);
  return y;
}

Rows Model::queries(std::int64_t layer, const Rows& h, const Rotation& rotation) const {
  Rows q = layer_at(layer).q_proj(h);
  if (has_rotary(layer)) rotation.turn(q, config_.heads);
  return q;
}

Rows Model::keys(std::int64_t layer, const Rows& h, const Rotation& rotation) const {
  Rows k = layer_at(layer).k_proj(h);
  if (has_rotary(layer)) rotation.turn(k, config_.kv_heads);
  return k;
}

Rows Model::values(std::int64_t layer, const Rows& h) const { return layer_at(layer).v_proj(h); }

const Layer& Model::layer_at(std::int64_t i) const {
  require<std::out_of_range>(i >= 0 && i < std::ssize(layers_), "Model: layer ", i, " of ", layers_.size());
  return layers_[static_cast<std::size_t>(i)];
}

std::vector<float> Model::logits(const Rows& x) const {
  require(x.rows() == 1, "Model::logits: ", x.rows(), " rows, not 1");
  const Rows scores = lm_head_(norm(x, norm_));
  return {scores.data(), scores.data() + config_.vocab};
}

bool Model::has_rotary(std::int64_t layer) const {
  return config_.layers[static_cast<std::size_t>(layer)] == LayerKind::kWindow || config_.global_rotary;
}

Rows Model::norm(const Rows& x, const std::vector<float>& weight) const {
  require(x.cols() == std::ssize(weight), "Model: rows of ", x.cols(), " elements, not ", weight.size());
  Rows y(x.rows(), x.cols());
  dense_kernel().rms_norm(x.data(), x.rows(), x.cols(), config_.dim, weight.data(), static_cast<float>(config_.eps),
                          y.data());
  return y;
}

}  // namespace tree_attn
