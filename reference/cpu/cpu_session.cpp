// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A session on the CPU: chunks of leaves, shared by threads, and the forest of their states (eq. (7), section 5).
///
/// Keys are read in the order of storage. In the contiguous order a chunk is a subtree. In the dealt order neighbouring rows
/// are far apart in the tree, so every leaf has a state of its own, see DealtMerges. In a cache in pages one item computes a
/// chunk for all batch entries that have its pages in common: a shared prefix is read once, unless there is a mask.
#include "reference/cpu/cpu_cache.hpp"
#include "reference/cpu/dealt_merges.hpp"
#include "reference/cpu/session_plan.hpp"
#include "reference/cpu/shared_chunks.hpp"
#include "reference/cpu/thread_pool.hpp"
#include "reference/decode/session.hpp"
#include "reference/state/score_scale.hpp"
#include "reference/tensor/convert.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <optional>

namespace tree_attn {
namespace {

/// Most floats of states that a session takes memory for before a step needs them.
constexpr double kMostPlannedStates = 1 << 21;
/// Bytes of keys and values of the smallest step that is shared: a shorter one ends before another thread has woken.
constexpr double kBytesWorthThreads = 1 << 18;

/// Allocates arrays that begin at a line of the cache. A load that crosses a line takes twice as long, and every key is
/// multiplied by a query that is loaded again.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* first, std::size_t) { ::operator delete(first, kLine); }
  bool operator==(const LineAllocator&) const = default;
};

/// A session on the CPU: states are computed where they are asked for.
class CpuSession final : public DecodeSession, public States {
 public:
  CpuSession(const CpuCache& cache, double scale, std::int64_t most_queries, int n_threads)
      : DecodeSession(cache, scale, most_queries),
        cache_(cache),
        shared_(cache),
        kernel_(leaf_kernel()),
        row_(static_cast<std::size_t>(cache.shape().head_dim)),
        forest_(0, cache.shape().value_dim),
        pool_(n_threads) {
    reserve(most_queries);
  }

  Forest<float>& host() override { return forest_; }
  const float* device() const override { return nullptr; }
  std::string describe() const override { return ""; }
  std::int64_t bytes_read() const override {
    return n_rows_read_ *
           (cache_.shape().bytes_per_position() / std::max<std::int64_t>(1, cache_.shape().batch * cache_.shape().kv_heads));
  }

 protected:
  States& run(const Step& step, const std::function<void()>& progress) override {
    const AttentionShape& shape = cache_.shape();
    const OwnedLeaves& leaves = cache_.leaves();
    if (planned_ != cache_.capacity() || is_dealt() != (leaves.order() == LeafOrder::kDealt)) reserve(most_queries_);
    if (step.q.shape[2] != l_) plan(step.q.shape[2]);
    pack_queries(step.q);
    step_ = step;
    see(step);
    double keys = 0;
    std::int64_t most_rows = 0;
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      const Seen seen = step.seen_by_any(i);
      const std::int64_t n = leaves.n_keys(seen.end), hidden = leaves.n_keys(seen.begin) - leaves.n_keys(seen.sinks);
      keys += static_cast<double>(n - std::max<std::int64_t>(0, hidden));
      most_rows = std::max(most_rows, n);
    }
    shared_.find_cuts(step);
    if (is_dealt()) {
      bounds_.clear();
      const std::int64_t n = chunk_leaves_ * kLeafKeys;
      const KeyRange hidden = hidden_rows(hidden_);  // one chunk
      for (std::int64_t a = 0, end = 0; a < most_rows; a = end) {
        bounds_.push_back(a);
        end = std::min(shared_.next_cut(a), (a / n + 1) * n);
        if (hidden.begin < hidden.end && end > hidden.begin && a < hidden.end)
          end = a < hidden.begin ? hidden.begin : hidden.end;
      }
      n_chunks_ = std::ssize(bounds_);
      bounds_.push_back(most_rows);
      subtrees_.clear();
      for (const DealtSubtree& each : leaves.subtrees()) subtrees_.push_back(each.subtree);
      subtree_states_ = forest_.assign(subtrees_).data();
      for (std::int64_t head = 0; head < shape.batch * shape.kv_heads; ++head) {
        for (std::size_t i = 0; i < leaves.subtrees().size(); ++i) {
          const Seen of_subtree = DealtMerges::leaves_of(leaves.subtrees()[i], step.seen_by_any(head / shape.kv_heads));
          if (!of_subtree.touches(0, of_subtree.end)) set_all_empty(states_of(head, i));
        }
      }
    } else {
      cut(closed(leaves.range(), step.longest()), most_rows);
    }

    shared_.find(step, n_chunks_, [this](std::int64_t entry, std::int64_t c) { return rows_of(entry, c); });
    n_rows_read_ = 0;

    // Items in the order of memory: the chunks of a head, one after the other.
    const double bytes =
        keys * static_cast<double>(shape.bytes_per_position()) / static_cast<double>(std::max<std::int64_t>(shape.batch, 1));
    try {
      pool_.run(
          n_queries_ == 0 ? 0 : shape.batch * shape.kv_heads * n_chunks_, bytes < kBytesWorthThreads,
          [](void* self, int thread, std::int64_t item) { static_cast<CpuSession*>(self)->compute(thread, item); }, this,
          progress);
    } catch (...) {
      if (is_dealt()) merges_->clear();
      throw;
    }

    // Siblings merge as they are appended.
    if (!is_dealt()) {
      forest_.clear();
      forest_.append(chunks_, states_.data());
    }
    return *this;
  }

 private:
  bool is_dealt() const { return merges_.has_value(); }
  /// The factor of the scores of a head of an entry, which the scale of its keys has joined.
  ScoreScale scale_of(std::int64_t head) const {
    return split_scale(scale() * double{KvScales::at(cache_.scales().k, head)});
  }

  /// Takes the memory for steps of 1 to n queries over the capacity of the cache.
  void reserve(std::int64_t n) {
    planned_ = -1;  // until there is memory for it
    merges_.reset();
    std::int64_t l = std::max<std::int64_t>(1, n);
    do plan(l);
    while (n_rows_ > 0 && --l > 0);
    planned_ = cache_.capacity();
  }

  /// Plans for steps of l queries, and takes what memory they need and earlier plans did not.
  void plan(std::int64_t l) {
    const AttentionShape& shape = cache_.shape();
    const OwnedLeaves& leaves = cache_.leaves();
    const SessionPlan plan(shape, l, leaves, cache_.capacity(), pool_.size(), shared_.are_possible());
    const auto take = [](auto& memory, double n) {
      if (static_cast<double>(memory.size()) < n) memory.resize(static_cast<std::size_t>(n));
    };
    l_ = -1;  // likewise
    n_rows_ = static_cast<std::int64_t>(plan.n_rows);
    n_queries_ = static_cast<std::int64_t>(plan.n_queries);
    chunk_leaves_ = static_cast<std::int64_t>(plan.chunk_leaves);
    workspace_size_ = static_cast<std::int64_t>(plan.workspace);
    take(queries_, plan.n_rows * plan.packed);
    take(workspace_, plan.n_threads * plan.workspace);
    // Takes memory for a window of a very long range, as queries may see no more; cut() takes what a step needs beyond.
    const double n_chunks =
        std::min(plan.n_chunks, std::floor(kMostPlannedStates / std::max(1.0, plan.n_rows * plan.state)) + 1);
    take(states_, n_chunks * plan.n_rows * plan.state);
    take(leaves_, plan.n_threads * plan.chunk_leaves);
    chunks_.reserve(static_cast<std::size_t>(n_chunks));
    ends_.reserve(static_cast<std::size_t>(n_chunks));
    seen_.reserve(static_cast<std::size_t>(shape.batch * l));
    masks_.reserve(static_cast<std::size_t>(n_rows_));
    bounds_.reserve(static_cast<std::size_t>(plan.n_dealt_leaves) + 1);
    subtrees_.reserve(leaves.subtrees().size());
    forest_.set_rows(n_rows_);
    forest_.reserve(static_cast<std::size_t>(plan.n_subtrees));
    together_.resize(shared_.are_possible() ? static_cast<std::size_t>(pool_.size()) : 0);
    for (Together& each : together_) {
      const double n = plan.n_together * plan.n_queries;
      take(each.queries, n * plan.packed);
      take(each.states, n * plan.chunk_leaves * static_cast<double>(state_size(packed_size(shape.value_dim))));
    }
    if (leaves.order() == LeafOrder::kDealt && !merges_)
      merges_.emplace(kernel_, static_cast<std::int64_t>(plan.n_dealt_heads), static_cast<std::int64_t>(plan.n_dealt_leaves),
                      shape.value_dim);
    if (merges_) merges_->set_queries(n_queries_);
    l_ = l, most_queries_ = std::max(most_queries_, l);
  }

  /// The chunks of a contiguous range whose first `n` positions are in use: past them subtrees are as large as they can be.
  /// A leaf in which the range ends is several of them, and the first has all of its sums.
  void cut(KeyRange range, std::int64_t n) {
    chunks_.clear(), ends_.clear();
    for (std::int64_t begin = range.begin; begin < range.end; begin = chunks_.back().end()) {
      std::int64_t end = begin < range.begin + n ? std::min(range.end, begin + chunk_leaves_ * kLeafKeys) : range.end;
      // Between the sinks and the windows of all sequences nothing is seen.
      const std::int64_t first_seen = begin < hidden_.begin ? begin : hidden_.end / kLeafKeys * kLeafKeys;
      if (first_seen > begin) end = std::min(range.end, first_seen);
      if (shared_.next_cut(begin - range.begin) < end - range.begin)
        end = range.begin + shared_.next_cut(begin - range.begin);
      chunks_.push_back(first_subtree(begin, end));
      ends_.push_back(begin % kLeafKeys > 0 ? begin : std::max(chunks_.back().end(), begin + kLeafKeys));
    }
    n_chunks_ = std::ssize(chunks_);
    const std::size_t n_floats = chunks_.size() * static_cast<std::size_t>(forest_.block_size());
    if (states_.size() < n_floats) states_.resize(n_floats);
  }

  /// Sets what the queries of each sequence see, and which keys no query of any sequence sees.
  void see(const Step& step) {
    const std::int64_t b = step.q.shape[0], n_h = step.q.shape[1], l = step.q.shape[2];
    masks_.clear();
    for (std::int64_t r = 0; step.mask.data != nullptr && r < b * n_h * l; ++r)
      masks_.push_back(step.mask.row(r / (n_h * l), r / l % n_h, r % l));
    seen_.clear();
    hidden_ = {};
    if (step.sees_all()) return;
    hidden_ = {0, kOpenEnd};
    for (std::int64_t i = 0; i < b; ++i) {
      for (std::int64_t j = 0; j < l; ++j) seen_.push_back(step.seen(i, j));
      const Seen any = step.seen_by_any(i);
      hidden_ = {std::max(hidden_.begin, any.sinks), std::min(hidden_.end, any.begin)};
    }
  }

  void pack_queries(const TensorView& q) {
    const AttentionShape& shape = cache_.shape();
    float* packed = queries_.data();
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        for (std::int64_t j = 0; j < l_; ++j, packed += packed_size(shape.head_dim)) {
          load_row(q, i, h, j, row_.data());
          kernel_.pack_query(row_.data(), shape.head_dim, shape.dtype,
                             scale_of(i * shape.kv_heads + h / (shape.heads / shape.kv_heads)).query, packed);
        }
      }
    }
  }

  /// One item: a chunk of one key/value head.
  void compute(int thread, std::int64_t item) {
    const std::int64_t c = item % n_chunks_, head = item / n_chunks_, entry = head / cache_.shape().kv_heads;
    if (shared_.first_of(entry, c) != entry) return;
    return is_dealt() ? compute_dealt(thread, head, c) : compute_subtree(thread, head, c);
  }

  /// In the dealt order, the rows of the leaves whose positions are all hidden.
  KeyRange hidden_rows(KeyRange hidden) const {
    const auto row_of = [&](std::int64_t position) { return cache_.leaves().n_keys(position / kLeafKeys * kLeafKeys); };
    return {row_of(std::min(hidden.begin, hidden.end) + kLeafKeys - 1), row_of(hidden.end)};
  }
  /// The rows of a chunk that any query of an entry sees; in the dealt order those between two that it sees, too.
  KeyRange rows_of(std::int64_t entry, std::int64_t c) const {
    const Seen seen = step_.seen_by_any(entry);
    if (is_dealt()) {
      const KeyRange hidden = hidden_rows({seen.sinks, seen.begin});
      std::int64_t begin = bounds_[static_cast<std::size_t>(c)],
                   end = std::min(cache_.leaves().n_keys(seen.end), bounds_[static_cast<std::size_t>(c + 1)]);
      if (begin >= hidden.begin) begin = std::max(begin, hidden.end);
      if (end <= hidden.end) end = std::min(end, hidden.begin);
      return {begin, std::max(begin, end)};
    }
    const KeyRange range = cache_.leaves().range();
    const std::int64_t begin = chunks_[static_cast<std::size_t>(c)].begin(),
                       end = std::min({ends_[static_cast<std::size_t>(c)], seen.end, range.end}), first_row = range.begin;
    return {begin - first_row, seen.touches(begin, end) ? end - first_row : begin - first_row};
  }
  /// The states of the subtree that is a chunk of the contiguous order.
  void compute_subtree(int thread, std::int64_t head, std::int64_t c) {
    const AttentionShape& shape = cache_.shape();
    const KeyRange rows = rows_of(head / shape.kv_heads, c);
    const auto states = [&](std::int64_t of_head) {
      return states_.data() + (c * n_rows_ + of_head * n_queries_) * state_size(shape.value_dim);
    };
    if (rows.empty()) return set_all_empty(states(head));
    compute_rows(thread, head, c, rows, false, states);
  }

  /// The states of the leaves of a chunk of rows, each merged with its siblings that are complete.
  void compute_dealt(int thread, std::int64_t head, std::int64_t c) {
    const AttentionShape& shape = cache_.shape();
    const OwnedLeaves& leaves = cache_.leaves();
    const KeyRange rows = rows_of(head / shape.kv_heads, c);
    if (rows.empty()) return;
    const std::int64_t first = rows.begin / kLeafKeys, end = (rows.end + kLeafKeys - 1) / kLeafKeys;
    const auto index_of_head = [&](std::int64_t of_head) { return pool_.size() > 1 || !together_.empty() ? of_head : 0; };
    compute_rows(thread, head, c, rows, true,
                 [&](std::int64_t of_head) { return merges_->states(index_of_head(of_head), first); });
    shared_.for_each(head, c, [&](std::int64_t of_head) {
      const Seen seen = step_.seen_by_any(of_head / shape.kv_heads);
      for (std::int64_t i = first; i < end; ++i) {
        std::size_t subtree = 0;
        if (const float* states = merges_->complete(index_of_head(of_head), leaves, i, seen, &subtree))
          kernel_.unpack(states, shape.value_dtype, n_queries_, shape.value_dim, states_of(of_head, subtree));
      }
    });
  }
  float* states_of(std::int64_t head, std::size_t subtree) const {
    const AttentionShape& shape = cache_.shape();
    return subtree_states_ +
           (static_cast<std::int64_t>(subtree) * n_rows_ + head * n_queries_) * state_size(shape.value_dim);
  }

  void set_all_empty(float* states) const {
    const std::int64_t d_v = cache_.shape().value_dim;
    for (std::int64_t r = 0; r < n_queries_; ++r) set_empty(states + r * state_size(d_v), d_v);
  }

  /// The states of the leaves in the rows of a chunk, for a head and those that share it.
  /// @param apart whether each leaf has states of its own @param states_of where those of a head belong
  template <class StatesOf>
  void compute_rows(int thread, std::int64_t head, std::int64_t c, KeyRange rows, bool apart, const StatesOf& states_of) {
    const AttentionShape& shape = cache_.shape();
    LeafRows* const leaves = leaves_.data() + thread * chunk_leaves_;
    std::int64_t n_leaves = 0, n_read = 0, n_heads = 0;
    const std::int64_t entry = head / shape.kv_heads;
    for (std::int64_t a = rows.begin; a < rows.end; a += kLeafKeys, ++n_leaves) {
      LeafRows& leaf = leaves[n_leaves] = cache_.leaf(entry, head % shape.kv_heads, a);
      if (!seen_.empty() || !masks_.empty()) {
        leaf.position = cache_.leaves().position(a);
        leaf.is_hidden = !step_.seen_by_any(entry).touches(leaf.position, leaf.position + kLeafKeys);
      }
      if (!leaf.is_hidden) n_read += std::min(kLeafKeys, rows.end - a);
    }
    n_rows_read_.fetch_add(n_read, std::memory_order_relaxed);

    // The queries of all heads, one after the other.
    const std::int64_t query_floats = n_queries_ * packed_size(shape.head_dim);
    const float* queries = queries_.data() + head * query_floats;
    shared_.for_each(head, c, [&](std::int64_t) { ++n_heads; });
    if (n_heads > 1) {
      float* to = together_[static_cast<std::size_t>(thread)].queries.data();
      queries = to;
      shared_.for_each(head, c, [&](std::int64_t of_head) {
        to = std::copy_n(queries_.data() + of_head * query_floats, query_floats, to);
      });
    }
    float* const states = n_heads == 1 ? states_of(head) : together_[static_cast<std::size_t>(thread)].states.data();
    const Chunk chunk{.leaves = leaves,
                      .n_leaves = n_leaves,
                      .n_keys = rows.size(),
                      .key_type = shape.dtype,
                      .value_type = shape.value_dtype,
                      .d_h = shape.head_dim,
                      .d_v = shape.value_dim,
                      .n_queries = n_heads * n_queries_,
                      .queries = queries,
                      .score_scale = scale_of(head).score,
                      .seen = seen_.empty() || n_heads > 1 ? nullptr : seen_.data() + entry * l_,
                      .n_rules = l_,
                      .cap = static_cast<float>(kLog2E * step_.softcap),
                      .cap_inverse = step_.softcap > 0 ? static_cast<float>(1 / (kLog2E * step_.softcap)) : 0,
                      .masks = masks_.empty() ? nullptr : masks_.data() + head * n_queries_,
                      .is_boolean = step_.mask.is_boolean,
                      .apart = apart};
    kernel_.states(chunk, workspace_.data() + thread * workspace_size_, states);
    if (n_heads == 1) return;

    // Their states to where they belong.
    const std::int64_t n = n_queries_ * state_size(apart ? packed_size(shape.value_dim) : shape.value_dim);
    std::int64_t i = 0;
    shared_.for_each(head, c, [&](std::int64_t of_head) {
      float* to = states_of(of_head);
      for (std::int64_t leaf = 0; leaf < (apart ? n_leaves : 1); ++leaf)
        to = std::copy_n(states + (leaf * n_heads + i) * n, n, to);
      ++i;
    });
  }

  const CpuCache& cache_;
  SharedChunks shared_;
  const LeafKernel& kernel_;
  std::int64_t planned_ = -1, most_queries_ = 0;  ///< the capacity, or -1, and the most queries that the memory is for
  /// Axes of the planned step: query positions (-1 before one is planned), query rows, and query rows that share a head.
  std::int64_t l_ = -1, n_rows_ = 0, n_queries_ = 0;
  std::int64_t chunk_leaves_ = 1, workspace_size_ = 0, n_chunks_ = 0;
  std::vector<float, LineAllocator<float>> queries_, workspace_;  ///< [n_rows][padded d_h]; [threads] workspaces
  std::vector<float> row_, states_;                               ///< states [chunks][n_rows][2 + d_v]
  std::vector<LeafRows> leaves_;                                  ///< [threads][leaves of a chunk]
  std::vector<Subtree> chunks_, subtrees_;                        ///< of the contiguous range; of the dealt one
  std::vector<std::int64_t> ends_;                                ///< [chunks] one past the last key of its sums
  std::vector<std::int64_t> bounds_;                              ///< [chunks + 1] rows of the chunks of the dealt order
  std::optional<DealtMerges> merges_;                             ///< in the dealt order
  float* subtree_states_ = nullptr;                               ///< the states of its subtrees in the forest
  Forest<float> forest_;
  Step step_;                            ///< the step at hand
  std::vector<Seen> seen_;               ///< [b, l] what its queries see; empty if that is everything
  std::vector<const std::byte*> masks_;  ///< [n_rows] the mask of every row; empty if there is none
  KeyRange hidden_;                      ///< positions that none of them sees
  /// Queries and states of the entries that a thread decodes together.
  struct Together {
    std::vector<float, LineAllocator<float>> queries{};  ///< [entries][rows of a head][padded d_h]
    std::vector<float> states{};                         ///< [leaves or 1][entries][rows of a head][...]
  };
  std::vector<Together> together_;           ///< [threads]; empty unless entries may share pages
  std::atomic<std::int64_t> n_rows_read_{};  ///< of keys and of values of a head, in the step
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<DecodeSession> CpuCache::open(double scale, std::int64_t most_queries) const {
  return std::make_unique<CpuSession>(*this, scale, most_queries, n_threads_);
}

}  // namespace tree_attn
