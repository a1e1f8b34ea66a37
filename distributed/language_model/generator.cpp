// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads a text into sharded caches and appends to it.
#include "distributed/language_model/generator.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <future>
#include <limits>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace tree_attn {
namespace {

/// Positions that pass through the layers at once: enough for the products, and few enough for the cache of a core.
constexpr std::int64_t kChunk = 64;
/// Positions of an item of work of read(). Each item starts with the halo, so a longer one does less work twice.
constexpr std::int64_t kItem = 2048;

/// Keys and values of consecutive positions of the text.
struct Item {
  KeyRange positions;
  Rows k = {}, v = {};
};

/// The positions of a rank below n as items of at most kItem.
std::vector<Item> items_of(const OwnedLeaves& leaves, std::int64_t n) {
  std::vector<Item> items;
  const std::int64_t n_rows = leaves.n_keys(n);
  for (std::int64_t row = 0, size = 0; row < n_rows; row += size) {
    const std::int64_t begin = leaves.position(row);
    size = std::min(kLeafKeys - begin % kLeafKeys, n_rows - row);
    if (!items.empty() && items.back().positions.end == begin && items.back().positions.size() + size <= kItem)
      items.back().positions.end += size;
    else
      items.push_back({{begin, begin + size}});
  }
  return items;
}

/// The view [1, n_kv, n, d_h] of rows [n, n_kv * d].
TensorView heads_of(const Rows& rows, std::int64_t kv_heads, std::int64_t head_dim) {
  return {reinterpret_cast<const std::byte*>(rows.data()),
          DType::F32,
          {1, kv_heads, rows.rows(), head_dim},
          {rows.size(), rows.cols() / kv_heads, rows.cols()}};
}

/// Converts elements to another type, dense. @param[out] bytes their memory
TensorView rounded(const TensorView& view, DType dtype, std::vector<std::byte>& bytes) {
  const std::int64_t size = view.shape[3] * static_cast<std::int64_t>(bytes_of(dtype));
  bytes.resize(static_cast<std::size_t>(view.shape[1] * view.shape[2] * size));
  std::vector<float> row;
  std::byte* to = bytes.data();
  for (std::int64_t h = 0; h < view.shape[1]; ++h) {
    for (std::int64_t a = 0; a < view.shape[2]; ++a, to += size) store_row(view, 0, h, a, 1, dtype, row, to);
  }
  return TensorView::dense(bytes.data(), dtype, view.shape);
}

}  // namespace

AttentionShape cache_shape(const ModelConfig& config, const GeneratorOptions& options) {
  return {.dtype = options.dtype,
          .value_dtype = options.dtype,
          .batch = 1,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .value_dim = config.head_dim,
          .portable = options.portable};
}

Generator::Generator(const Model& model, const Backend& backend, Transport& transport, std::int64_t n_text,
                     const Algorithm& algorithm, const GeneratorOptions& options)
    : model_(model),
      transport_(transport),
      options_(options),
      scale_(1 / std::sqrt(static_cast<double>(model.config().head_dim))) {
  const ModelConfig& config = model_.config();
  AttentionSetup setup{.algorithm = std::string(algorithm.name),
                       .found_backend = &backend,
                       .compares_lengths = false,  // all ranks append the same characters
                       // Room for a question and its answer, so that the cache need not grow after every text.
                       .capacity = n_text + 16 * kLeafKeys,
                       .scales = options.scales,
                       .plan = options.plan};
  if (options.order == LeafOrder::kContiguous) setup.ranges = growing_ranges(options.order, n_text, transport.size());
  for (std::int64_t layer = 0; layer < std::ssize(config.layers); ++layer) {
    if (config.layers[static_cast<std::size_t>(layer)] != LayerKind::kGlobal) continue;
    setup.most_queries = is_last(layer) ? 1 : kChunk;
    layers_.push_back({layer, std::make_unique<Attention>(transport, cache_shape(config, options), setup)});
  }
}

std::int64_t Generator::move_to(int n_ranks) {
  const std::int64_t sent_before = transport_.traffic().bytes;
  for (GlobalLayer& layer : layers_) layer.attention->reshard(growing_ranges(options_.order, size(), n_ranks));
  return transport_.traffic().bytes - sent_before;
}

void Generator::use(const Algorithm& algorithm) {
  for (GlobalLayer& layer : layers_) layer.attention->use(algorithm.name);
}

void Generator::rewind(const Cursor& cursor) {
  require<std::out_of_range>(cursor.position >= 0 && cursor.position <= size(), "Generator::rewind: position ",
                             cursor.position, " of ", size());
  for (GlobalLayer& layer : layers_) layer.attention->truncate(0, cursor.position);
  cursor_ = cursor;
}

void Generator::read(std::string_view text, const std::function<void(double)>& progress) {
  require<std::logic_error>(size() == 0, "Generator::read: the caches hold ", size(), " characters");
  const ModelConfig& config = model_.config();
  const std::int64_t n = std::ssize(text);
  if (!config.shards_alone()) {
    for (std::int64_t begin = 0; begin < n; begin += kChunk) {
      append(text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(kChunk)));
      if (progress) progress(static_cast<double>(size()) / static_cast<double>(n));
    }
    return;
  }
  read_shard(text, progress);

  // Every rank continues after the text, so every rank fills the windows with its last characters.
  cursor_.position = std::max<std::int64_t>(0, n - config.halo());
  model_.run(text.substr(static_cast<std::size_t>(cursor_.position)), cursor_,
             [](std::int64_t, const Rows& h, const Rotation&) { return Rows(0, h.cols()); });
}

void Generator::read_shard(std::string_view text, const std::function<void(double)>& progress) {
  // The keys and values of an item: from its halo on, chunk by chunk.
  const auto compute = [&](Item& item) {
    const std::int64_t n = item.positions.size();
    Cursor cursor{std::max<std::int64_t>(0, item.positions.begin - model_.config().halo())};
    while (cursor.position < item.positions.end) {
      const std::int64_t size = std::min(kChunk, item.positions.end - cursor.position);
      model_.run(text.substr(static_cast<std::size_t>(cursor.position), static_cast<std::size_t>(size)), cursor,
                 [&](std::int64_t layer, const Rows& h, const Rotation& rotation) {
                   const Rows k = model_.keys(layer, h, rotation), v = model_.values(layer, h);
                   if (item.k.rows() == 0) item.k.resize(n, k.cols()), item.v.resize(n, v.cols());
                   const std::int64_t at = rotation.position - item.positions.begin, skip = std::max<std::int64_t>(0, -at);
                   const std::int64_t rows = std::max<std::int64_t>(0, size - skip);
                   item.k.middleRows(std::max<std::int64_t>(0, at), rows) = k.bottomRows(rows);
                   item.v.middleRows(std::max<std::int64_t>(0, at), rows) = v.bottomRows(rows);
                   return Rows(0, h.cols());
                 });
    }
  };

  // Compute as many items at a time as there are threads, and append them in order. Between them are positions that other
  // ranks hold, which need no data here.
  Attention& attention = *layers_.back().attention;
  const auto skip_to = [&](std::int64_t position) {
    const ModelConfig& config = model_.config();
    const std::int64_t n = position - attention.lengths()[0];
    const auto none = TensorView::dense(nullptr, options_.dtype, {1, config.kv_heads, n, config.head_dim});
    attention.append(0, none, none);
  };
  std::vector<Item> items = items_of(leaves(), std::ssize(text));
  require(options_.n_threads >= 1, "Generator::read: ", options_.n_threads, " threads, at least 1 is needed");
  std::deque<std::future<void>> computed;
  for (std::size_t i = 0, next = 0; i < items.size(); ++i) {
    try {
      for (; next < items.size() && std::ssize(computed) < options_.n_threads; ++next)
        computed.push_back(std::async(std::launch::async, compute, std::ref(items[next])));
    } catch (const std::system_error& error) {
      throw std::runtime_error(line_of("Generator::read: the system started ", computed.size(), " of ", options_.n_threads,
                                       " threads: ", error.what()));
    }
    computed.front().get();
    computed.pop_front();
    skip_to(items[i].positions.begin);
    hold(layers_.back(), items[i].k, items[i].v);
    items[i] = {};
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(items.size()));
  }
  skip_to(std::ssize(text));
}

std::vector<float> Generator::append(std::string_view text) {
  require(!text.empty(), "Generator::append: no characters");
  const Rows x = model_.run(text, cursor_, [&](std::int64_t layer, const Rows& h, const Rotation& rotation) {
    const auto global = std::ranges::find(layers_, layer, &GlobalLayer::index);
    return attend(*global, h, rotation);
  });
  return model_.logits(x.bottomRows(1));
}

Rows Generator::attend(GlobalLayer& layer, const Rows& h, const Rotation& rotation) {
  const Rows q = model_.queries(layer.index, h, rotation), k = model_.keys(layer.index, h, rotation),
             v = model_.values(layer.index, h);
  // Of the last layer, only the last position is needed.
  const std::int64_t n = h.rows(), first = is_last(layer.index) ? n - 1 : 0;
  Rows z = Rows::Zero(n - first, q.cols());
  for (std::int64_t i = first, held = 0; i < n; i = held) {
    // The ranks that hold the positions keep the keys and values; then all decode.
    const std::int64_t end = std::min(n, i + kChunk);
    hold(layer, k.middleRows(held, end - held), v.middleRows(held, end - held));
    decode(layer, q.middleRows(i, end - i), z.row(i - first).data());
    held = end;
  }
  return z;
}

void Generator::decode(GlobalLayer& layer, const Rows& q, float* z) {
  // Query j of l is the character of position n_keys - l + j.
  const ModelConfig& config = model_.config();
  const std::int64_t l = q.rows(), heads = config.heads, d_h = config.head_dim, d = padded(d_h),
                     n_keys = layer.attention->lengths()[0];
  std::vector<float> queries(static_cast<std::size_t>(heads * l * d_h));
  for (std::int64_t r = 0; r < heads * l; ++r) {
    const std::int64_t head = r / l, j = r % l;
    const auto keys = static_cast<double>(n_keys - l + j + 1);
    const auto factor = static_cast<float>(config.scale_base > 0 ? std::log(keys) / std::log(config.scale_base) : 1);
    for (std::int64_t c = 0; c < d_h; ++c) queries[static_cast<std::size_t>(r * d_h + c)] = q(j, head * d + c) * factor;
  }
  const TensorView view = TensorView::dense(queries.data(), DType::F32, {1, heads, l, d_h});
  const DecodeOutput all = layer.attention->step(view, {.causal = true}).copy();

  // Keep the last query and its output.
  q_.clear(), output_ = {};
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t j = 0; j < l; ++j) std::copy_n(all.out.data() + (head * l + j) * d_h, d_h, z + (j * heads + head) * d);
    const std::int64_t last = head * l + l - 1;
    q_.insert(q_.end(), queries.data() + last * d_h, queries.data() + (last + 1) * d_h);
    output_.out.insert(output_.out.end(), all.out.data() + last * d_h, all.out.data() + (last + 1) * d_h);
    output_.lse.push_back(all.lse[static_cast<std::size_t>(last)]);
  }
}

bool Generator::is_last(std::int64_t layer) const { return layer + 1 == std::ssize(model_.config().layers); }

void Generator::hold(GlobalLayer& layer, const Rows& k, const Rows& v) {
  const ModelConfig& config = model_.config();
  TensorView keys = heads_of(k, config.kv_heads, config.head_dim), values = heads_of(v, config.kv_heads, config.head_dim);
  std::vector<std::byte> k_bytes, v_bytes;
  if (options_.dtype != DType::F32 && options_.dtype != DType::F8_E4M3)  // which the cache itself rounds
    keys = rounded(keys, options_.dtype, k_bytes), values = rounded(values, options_.dtype, v_bytes);
  layer.attention->append(0, keys, values);
}

LargestWeight Generator::largest_weight(const Ranks& ranks) const {
  require<std::logic_error>(!output_.lse.empty(), "Generator::largest_weight: no step has been made");
  const ModelConfig& config = model_.config();
  const KvCache& cache = layers_.back().attention->cache();
  std::vector<std::byte> memory;
  const Shard shard = cache.shard(cache.longest(), [&](std::size_t n) {
    memory.resize(n);
    return memory.data();
  });

  // The largest weight exp(score - lse) among the keys of this rank.
  LargestWeight mine{.rank = ranks.rank()};
  const std::int64_t group = config.heads / config.kv_heads;
  std::vector<double> largest(static_cast<std::size_t>(config.heads), -std::numeric_limits<double>::infinity());
  std::vector<std::int64_t> row_of_largest(static_cast<std::size_t>(config.heads));
  Eigen::VectorXf key(config.head_dim);
  const Eigen::Map<const Rows> q(q_.data(), config.heads, config.head_dim);
  for (std::int64_t kv = 0; kv < config.kv_heads; ++kv) {
    for (std::int64_t row = 0; row < cache.longest(); ++row) {
      load_row(shard.k, 0, kv, row, key.data());
      key *= KvScales::at(cache.scales().k, kv);
      for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        const double score = q.row(head).dot(key);
        if (score > largest[static_cast<std::size_t>(head)])
          largest[static_cast<std::size_t>(head)] = score, row_of_largest[static_cast<std::size_t>(head)] = row;
      }
    }
  }
  for (std::int64_t head = 0; head < config.heads; ++head) {
    const std::size_t h = static_cast<std::size_t>(head);
    const double weight = std::exp(scale_ * largest[h] - static_cast<double>(output_.lse[h]));
    if (!(weight > mine.weight)) continue;
    mine.weight = weight, mine.head = head, mine.position = leaves().position(row_of_largest[h]);
  }

  const std::vector<LargestWeight> all = ranks.all_gather(mine, "the largest weight of all ranks");
  return *std::max_element(all.begin(), all.end(),
                           [](const LargestWeight& a, const LargestWeight& b) { return a.weight < b.weight; });
}

}  // namespace tree_attn
