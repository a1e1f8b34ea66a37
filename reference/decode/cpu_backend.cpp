// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CPU backend: chunks of leaves, shared by threads, and the forest of their states (eq. (7), section 5).
#include "reference/decode/backend.hpp"
#include "reference/decode/cpu_cache.hpp"
#include "reference/decode/thread_pool.hpp"
#include "reference/state/score_scale.hpp"
#include "reference/tensor/convert.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>

namespace tree_attn {
namespace {

/// Most keys of a chunk: enough that alternating between rows of k and rows of v costs nothing, few enough that threads end
/// at the same time.
constexpr std::int64_t kChunkKeys = 1024;
/// Most scores of a chunk, keys times queries, so that they stay in the first level of the cache.
constexpr std::int64_t kChunkScores = 8192;
/// Chunks per thread, if there are enough leaves.
constexpr std::int64_t kChunksPerThread = 8;
/// Bytes of keys and values of the smallest step that is shared: a shorter one ends before another thread has woken.
constexpr double kBytesWorthThreads = 1 << 18;

/// How a session cuts its work, and the memory that it needs. In double, because the axes of an empty tensor may have a
/// product beyond 64 bits.
struct SessionPlan {
  double n_rows, n_queries, chunk_leaves, n_subtrees, n_chunks, workspace, n_threads, packed, state;

  SessionPlan(const AttentionShape& shape, KeyRange capacity, int threads) : n_threads(threads) {
    const double batch = static_cast<double>(shape.batch), heads = static_cast<double>(shape.heads),
                 kv_heads = static_cast<double>(shape.kv_heads), l = static_cast<double>(shape.n_queries);
    const double n_keys = static_cast<double>(capacity.size());
    n_rows = batch * heads * l;
    n_queries = batch * kv_heads == 0 ? 0 : heads / kv_heads * l;
    packed = static_cast<double>(packed_size(shape.head_dim));
    state = static_cast<double>(state_size(shape.value_dim));

    // Chunks of 2^i leaves.
    std::int64_t chunk_keys = kChunkKeys;
    const auto halve_while = [&chunk_keys](const auto& too_large) {
      while (chunk_keys > kLeafKeys && too_large(static_cast<double>(chunk_keys))) chunk_keys /= 2;
    };
    halve_while([&](double n) { return n * n_queries > static_cast<double>(kChunkScores); });
    halve_while([&](double n) { return n * n_threads * kChunksPerThread > n_keys * batch * kv_heads; });
    chunk_leaves = static_cast<double>(chunk_keys / kLeafKeys);
    // Shorter ones at both ends of the range, at most one per level.
    const double n_levels = std::bit_width(static_cast<std::uint64_t>(std::min(chunk_keys, capacity.size())));
    n_chunks = std::min(n_keys, std::floor(n_keys / static_cast<double>(chunk_keys)) + 2 * n_levels);
    n_subtrees = std::min(n_keys, 2.0 * std::bit_width(static_cast<std::uint64_t>(capacity.size())));
    workspace = n_queries * static_cast<double>(workspace_floats(chunk_keys / kLeafKeys, 1, shape.value_dim));
  }
};

/// A session on the CPU: states are computed where they are asked for.
class CpuSession final : public DecodeSession, public States {
 public:
  CpuSession(const CpuCache& cache, double scale, int n_threads)
      : CpuSession(cache, scale, n_threads, SessionPlan(cache.shape(), cache.capacity(), n_threads)) {}

  Forest<float>& host() override { return forest_; }
  const float* device() const override { return nullptr; }
  std::int64_t bytes() const override {
    const std::size_t floats = row_.size() + queries_.size() + workspace_.size() + states_.size();
    return forest_.bytes() + static_cast<std::int64_t>(floats * sizeof(float) + leaves_.size() * sizeof(LeafRows) +
                                                       chunks_.capacity() * sizeof(Subtree));
  }
  std::string describe() const override { return ""; }

 protected:
  States& run(const TensorView& q, std::span<const std::int64_t> lengths, int lift,
              const std::function<void()>& progress) override {
    pack_queries(q);
    const KeyRange capacity = cache_.capacity();
    chunks_.clear();
    for (std::int64_t begin = capacity.begin; begin < capacity.end; begin = chunks_.back().end())
      chunks_.push_back(first_subtree(begin, std::min(capacity.end, begin + chunk_leaves_ * kLeafKeys)));

    // Items in the order of memory: the chunks of a head, one after the other.
    lengths_ = lengths, lift_ = lift;
    const AttentionShape& shape = cache_.shape();
    const std::int64_t n_items = shape.batch * shape.kv_heads * n_chunks();
    double bytes = 0;
    for (const std::int64_t length : lengths)
      bytes += static_cast<double>(std::clamp(length, capacity.begin, capacity.end) - capacity.begin);
    bytes *= static_cast<double>(shape.bytes_per_position()) / static_cast<double>(std::max<std::int64_t>(shape.batch, 1));
    pool_.run(
        n_items, bytes < kBytesWorthThreads,
        [](void* self, int thread, std::int64_t item) { static_cast<CpuSession*>(self)->compute(thread, item); }, this,
        progress);

    // Siblings merge as they are appended.
    forest_.clear();
    forest_.append(chunks_, states_.data());
    return *this;
  }

 private:
  CpuSession(const CpuCache& cache, double scale, int n_threads, const SessionPlan& plan)
      : DecodeSession(cache),
        cache_(cache),
        kernel_(leaf_kernel()),
        scale_(split_scale(scale)),
        n_queries_(static_cast<std::int64_t>(plan.n_queries)),
        chunk_leaves_(static_cast<std::int64_t>(plan.chunk_leaves)),
        row_(static_cast<std::size_t>(cache.shape().head_dim)),
        queries_(static_cast<std::size_t>(plan.n_rows * plan.packed)),
        workspace_(static_cast<std::size_t>(plan.n_threads * plan.workspace)),
        states_(static_cast<std::size_t>(plan.n_chunks * plan.n_rows * plan.state)),
        leaves_(static_cast<std::size_t>(plan.n_threads * plan.chunk_leaves)),
        forest_(cache.shape().n_rows(), cache.shape().value_dim),
        pool_(n_threads) {
    chunks_.reserve(static_cast<std::size_t>(plan.n_chunks));
    forest_.reserve(static_cast<std::size_t>(plan.n_subtrees));
  }

  std::int64_t n_chunks() const { return static_cast<std::int64_t>(chunks_.size()); }

  void pack_queries(const TensorView& q) {
    const AttentionShape& shape = cache_.shape();
    float* packed = queries_.data();
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        for (std::int64_t j = 0; j < shape.n_queries; ++j, packed += packed_size(shape.head_dim)) {
          load_row(q, i, h, j, row_.data());
          kernel_.pack_query(row_.data(), shape.head_dim, shape.dtype, scale_.query, packed);
        }
      }
    }
  }

  /// The states of one chunk of one key/value head.
  void compute(int thread, std::int64_t item) {
    const AttentionShape& shape = cache_.shape();
    const std::int64_t c = item % n_chunks(), head = item / n_chunks(), i = head / shape.kv_heads, h = head % shape.kv_heads;
    const Subtree subtree = chunks_[static_cast<std::size_t>(c)];
    const std::int64_t length = lengths_[static_cast<std::size_t>(i)], end = std::min(subtree.end(), length);
    const std::int64_t row = head * n_queries_, d_v = shape.value_dim;  // of the first query that shares the head
    float* const states = states_.data() + (c * shape.n_rows() + row) * state_size(d_v);
    if (end <= subtree.begin()) {
      for (std::int64_t r = 0; r < n_queries_; ++r) set_empty(states + r * state_size(d_v), d_v);
      return;
    }
    LeafRows* const leaves = leaves_.data() + thread * chunk_leaves_;
    std::int64_t n_leaves = 0;
    for (std::int64_t position = subtree.begin(); position < end; position += kLeafKeys)
      leaves[n_leaves++] = cache_.leaf(i, h, position);
    const Chunk chunk{.leaves = leaves,
                      .n_leaves = n_leaves,
                      .n_keys = end - subtree.begin(),
                      .key_type = shape.dtype,
                      .value_type = shape.value_dtype,
                      .d_h = shape.head_dim,
                      .d_v = d_v,
                      .n_queries = n_queries_,
                      .queries = queries_.data() + row * packed_size(shape.head_dim),
                      .score_scale = scale_.score,
                      .lift = lift_,
                      .single_key = length == 1 && subtree.begin() == 0};
    kernel_.states(chunk, workspace_.data() + thread * (static_cast<std::int64_t>(workspace_.size()) / pool_.size()),
                   states);
  }

  const CpuCache& cache_;
  const LeafKernel& kernel_;
  ScoreScale scale_;
  std::int64_t n_queries_, chunk_leaves_;
  std::vector<float> row_, queries_, workspace_, states_;  ///< [threads] workspaces; states [chunks][n_rows][2 + d_v]
  std::vector<LeafRows> leaves_;                           ///< [threads][leaves of a chunk]
  std::vector<Subtree> chunks_;
  Forest<float> forest_;
  std::span<const std::int64_t> lengths_;  ///< of the step at hand, and its lift
  int lift_ = 0;
  ThreadPool pool_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int n_threads) : n_threads_(n_threads) {}
  std::string_view name() const override { return "cpu"; }
  std::string missing() const override {
    try {
      leaf_kernel();
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  }
  std::vector<std::string> gpus() const override { return {}; }
  bool has_threads() const override { return true; }
  std::string refusal(const AttentionShape&) const override { return ""; }
  ErrorTerms error_terms(const AttentionShape&) const override { return {}; }
  AttentionShape stored(const AttentionShape& shape) const override { return shape; }

  MemoryNeed memory(const AttentionShape& shape, KeyRange capacity) const override {
    const SessionPlan plan(shape, capacity, n_threads_);
    MemoryNeed need;
    need.session = sizeof(float) * (static_cast<double>(shape.head_dim) +
                                    plan.n_rows * (plan.packed + (plan.n_chunks + plan.n_subtrees) * plan.state) +
                                    plan.n_threads * plan.workspace) +
                   sizeof(LeafRows) * plan.n_threads * plan.chunk_leaves +
                   sizeof(Subtree) * (plan.n_chunks + plan.n_subtrees);
    need.cache = static_cast<double>(capacity.size()) * static_cast<double>(shape.bytes_per_position());
    return need;
  }
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, KeyRange capacity) const override {
    return std::make_unique<CpuCache>(shape, capacity, n_threads_);
  }

 private:
  int n_threads_;
};

}  // namespace

std::unique_ptr<DecodeSession> CpuCache::open(double scale) const {
  return std::make_unique<CpuSession>(*this, scale, n_threads_);
}

const Backend& cpu_backend(int n_threads) {
  if (n_threads < 1)
    throw std::invalid_argument("cpu_backend: " + std::to_string(n_threads) + " threads, at least 1 is needed");
  static std::mutex mutex;
  static std::map<int, CpuBackend> backends;
  const std::lock_guard lock(mutex);
  return backends.try_emplace(n_threads, n_threads).first->second;
}

}  // namespace tree_attn
