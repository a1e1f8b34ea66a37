// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts shared pages, and joins the states of a shared prefix with those of what follows.
#include "gpu/backend/shared_prefix.hpp"

#include "gpu/backend/merge_rows.cuh"
#include "gpu/engine/equal_runs.cuh"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <utility>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr unsigned kThreads = 128;

/// Joins the forests of prefix and rest. Row (i, h) of an entry is row (h, i) of the prefix.
/// - Grid: n_rows.
/// - Block: kThreads threads, which share the components of a row.
/// - Reads: the row of all state blocks of prefix and rest.
/// - Writes: the row of the merged blocks, in place, and of the results, `to` [results][n_rows][2 + d_v].
__global__ void join_rows(float* prefix, float* rest, float* to, SharedPrefix::Join join) {
  const std::int64_t row = blockIdx.x, rows_of_entry = join.n_rows / join.batch, size = state_size(join.d_v),
                     row_of_prefix = row % rows_of_entry * join.batch + row / rows_of_entry;
  const auto state = [&](int block) {
    return block < join.n_prefix ? prefix + (block * join.n_rows + row_of_prefix) * size
                                 : rest + ((block - join.n_prefix) * join.n_rows + row) * size;
  };
  for (int i = 0; i < join.n_pairs; ++i) merge_rows(state(join.left[i]), state(join.right[i]), join.d_v);
  for (int i = 0; i < join.n_results; ++i) {
    const float* const from = state(join.result[i]);
    for (std::int64_t c = threadIdx.x; c < size; c += blockDim.x)
      store_fresh(to + (i * join.n_rows + row) * size + c, load_fresh(from + c));
  }
}

/// The join of the forests of two neighbouring ranges: siblings are merged as soon as both are there.
SharedPrefix::Join join_of(KeyRange prefix, KeyRange rest) {
  SharedPrefix::Join join;
  std::vector<std::pair<Subtree, std::uint8_t>> forest;
  const std::vector<Subtree> left = cover(prefix.begin, prefix.end), right = cover(rest.begin, rest.end);
  join.n_prefix = static_cast<int>(left.size());
  if (left.size() + right.size() > SharedPrefix::Join::kMost) throw std::logic_error("SharedPrefix: too many subtrees");
  std::uint8_t block = 0;
  for (const auto* part : {&left, &right}) {
    for (const Subtree& subtree : *part) {
      forest.emplace_back(subtree, block++);
      while (forest.size() > 1 && forest.end()[-2].first.is_left_sibling_of(forest.back().first)) {
        join.left[join.n_pairs] = forest.end()[-2].second, join.right[join.n_pairs++] = forest.back().second;
        forest.pop_back();
        forest.back().first = forest.back().first.parent();
      }
    }
  }
  for (const auto& [subtree, at] : forest) join.result[join.n_results++] = at;
  return join;
}

}  // namespace

bool SharedPrefix::clear() {
  counted_for_.clear();
  return std::exchange(n_leaves_, 0) != 0;
}

bool SharedPrefix::count(const DeviceCache& cache, const Step& step) {
  const PageTable* const pages = cache.pages();
  const AttentionShape& s = cache.shape();
  const std::int64_t l = step.q.shape[2];
  if (pages == nullptr || s.batch < 2 || l == 0 || step.rule.window > 0 || !cache.scales().k.empty() ||
      cache.leaves().order() == LeafOrder::kDealt)
    return clear();
  std::int64_t n = std::numeric_limits<std::int64_t>::max(), changed = 0;
  for (std::int64_t i = 0; i < s.batch; ++i) {
    n = std::min(n, cache.leaves().n_keys(step.seen_by_all(i).end) / kLeafKeys);
    changed = std::max(changed, pages->version(i));
  }
  const std::vector<std::int64_t> counted_for{n, changed, l};
  if (counted_for == counted_for_) return false;
  const bool is_other_l = !counted_for_.empty() && counted_for_.back() != l;
  counted_for_ = counted_for;
  const auto is_shared = [&](std::int64_t leaf) {
    for (std::int64_t i = 1; i < s.batch; ++i)
      if (pages->page(i, leaf) != pages->page(0, leaf)) return false;
    return true;
  };
  std::int64_t n_shared = 0;
  while (n_shared < n && is_shared(n_shared)) ++n_shared;
  // One read serves up to 32 rows on tensor cores, and one row on others.
  const std::int64_t at_once = multiplies_on_tensor_cores(params_of(s, l, {}), s.dtype) ? 32 : 1;
  const auto n_reads = [&](std::int64_t n_rows) { return (n_rows + at_once - 1) / at_once; };
  const std::int64_t saved = s.batch * n_reads(s.rows_per_kv_head(l)) - n_reads(s.batch * s.rows_per_kv_head(l)),
                     leaf_bytes = kLeafKeys * s.kv_heads * (cache.key_pitch() + cache.value_pitch());
  if (saved * n_shared * leaf_bytes < least_bytes_saved) n_shared = 0;
  return std::exchange(n_leaves_, n_shared) != n_shared || (is_other_l && n_shared > 0);
}

void SharedPrefix::plan(const DeviceCache& cache, KeyRange range, const ListedParams& rest) {
  if (n_leaves_ == 0) return;
  const AttentionShape& s = cache.shape();
  const KeyRange prefix{range.begin, rest_of(range).begin};
  const std::int64_t l = rest.n_queries;
  if (n_leaves_ > lists_.most_leaves()) lists_ = LeafLists(1, n_leaves_);
  lists_.update(cache.leaves(), prefix, {TensorView{.shape = {1, 1, 1, 1}}, std::array{prefix.end}}, cache.pages(),
                &own_list_);
  list_ = DeviceBuffer<LeafList>(1, MemoryUse::Input), length_ = DeviceBuffer<std::int64_t>(1, MemoryUse::Input);
  list_.upload({&own_list_, 1}), length_.upload({&prefix.end, 1});

  params_ = rest;
  params_.q.stride[1] = s.head_dim, params_.q.stride[2] = s.heads * l * s.head_dim;
  params_.batch = 1, params_.group = s.batch * s.rows_per_kv_head(l), params_.n_queries = s.batch;
  params_.rule = {}, params_.lengths = length_.data();
  params_.lists = list_.data(), params_.tree_positions = prefix.size();
  params_.n_subtrees = n_subtrees(prefix.begin, prefix.end);
  lists_.set(params_);
  launch_ = plan_equal_runs(params_, s.dtype, {});
  if (!workspace_.is_enough_for(launch_)) workspace_ = DeviceWorkspace(launch_);

  join_ = join_of(prefix, rest_of(range));
  join_.n_rows = s.n_rows(l), join_.batch = s.batch, join_.d_v = s.value_dim;
  const std::int64_t n_floats = s.n_rows(l) * state_size(s.value_dim);
  prefix_ = DeviceBuffer<float>(join_.n_prefix * n_floats);
  rest_ = DeviceBuffer<float>(std::max(1, n_subtrees(prefix.end, range.end)) * n_floats);
}

void SharedPrefix::queue(const ListedParams& rest, DType dtype, Stream stream) const {
  if (n_leaves_ == 0) return;
  ListedParams params = params_;
  params.query_scale = rest.query_scale, params.score_scale = rest.score_scale;
  run_equal_runs(params, dtype, {.states = prefix_.data()}, launch_, workspace_.get(), stream);
}

void SharedPrefix::join(float* states, Stream stream) const {
  if (n_leaves_ == 0) return;
  launch(join_rows, {.grid = {static_cast<unsigned>(join_.n_rows)}, .block = {kThreads}}, stream, prefix_.data(),
         rest_.data(), states, join_);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
