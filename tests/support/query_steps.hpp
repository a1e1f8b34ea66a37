// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One cache, and steps of other numbers of queries: a prompt in chunks, single queries, drafts, and rows taken back.
#pragma once

#include "distributed/exchange/decoder.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensors.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::test::queries {

/// The first sequence keeps `n_kept` keys and gets others up to `n_keys`; then come l queries. The second one is 30 shorter.
struct QueryStep {
  std::int64_t n_kept, n_keys, l;
  std::vector<std::int64_t> kept() const { return {n_kept, std::max<std::int64_t>(0, n_kept - 30)}; }
  std::vector<std::int64_t> lengths() const { return {n_keys, std::max<std::int64_t>(0, n_keys - 30)}; }
};

/// Steps of a prompt in chunks of 64, then of one query or a draft of five, of which two or three stay. A fifth number of
/// queries is one more than there are graphs for.
inline const std::vector<QueryStep> kSteps{{0, 64, 64},   {64, 128, 64}, {128, 192, 64}, {192, 256, 64}, {256, 257, 1},
                                           {257, 262, 5}, {259, 260, 1}, {260, 265, 5},  {262, 263, 1},  {263, 264, 1},
                                           {264, 269, 5}, {266, 267, 1}, {267, 331, 64}, {331, 334, 3},  {334, 336, 2},
                                           {336, 337, 1}, {337, 342, 5}};
/// In which of them a graph is launched, where no plan changes but for the queries: from the second step of a number on,
/// unless four others have come in between.
inline const std::vector<bool> kHasGraph{false, true, true, true, false, false, true, true, true,
                                         true,  true, true, true, false, false, true, false};
inline constexpr std::int64_t kMostKeys = 448, kMostQueries = 64;
inline constexpr double kScale = 0.3;

inline AttentionShape shape_of(DType dtype) {
  return {.dtype = dtype, .value_dtype = dtype, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8};
}

/// Keys of a position differ each time that it is taken back.
class Keys {
 public:
  explicit Keys(DType dtype) : shape_{shape_of(dtype), kMostKeys, {}} {}
  /// Appends what a step appends, to a cache that has the kept rows.
  void append(KvCache& cache, const QueryStep& step, std::size_t index) const {
    fill(cache, *make_workload(shape_, 600 + static_cast<unsigned>(index), 1), step.lengths());
  }
  /// Appends all that is held in a step to an empty cache.
  void append_all(KvCache& cache, std::size_t index) const {
    for (std::size_t i = 0; i <= index; ++i) {
      QueryStep part = kSteps[i];
      for (std::size_t later = i + 1; later <= index; ++later) part.n_keys = std::min(part.n_keys, kSteps[later].n_kept);
      append(cache, part, i);
    }
  }

 private:
  WorkloadShape shape_;
};

inline Tensor queries_of(DType dtype, std::size_t index) {
  std::mt19937 random(700 + static_cast<unsigned>(index));
  const AttentionShape shape = shape_of(dtype);
  return normal_tensor(random, {shape.batch, shape.heads, kSteps[index].l, shape.head_dim}, dtype);
}

/// Every step of one rank, over a cache of its own.
inline std::vector<DecodeOutput> fresh(const Backend& backend, DType dtype, LeafOrder order = LeafOrder::kContiguous) {
  const Keys keys(dtype);
  std::vector<DecodeOutput> outputs;
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    const AttentionShape shape = shape_of(dtype);
    const OwnedLeaves leaves(order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, kMostKeys}, order);
    const auto cache = backend.make_cache(shape, leaves, kMostKeys);
    keys.append_all(*cache, i);
    const Tensor q = queries_of(dtype, i);
    const std::vector<std::int64_t> lengths = kSteps[i].lengths();
    const auto session = cache->open(kScale);
    outputs.push_back(finish_rows(session->decode({q.view(), lengths, {.causal = true}}).host().fold(),
                                  shape.n_rows(kSteps[i].l), shape.value_dim));
  }
  return outputs;
}

/// Setup of the steps.
struct Run {
  std::string_view algorithm;
  const Backend& backend;
  DType dtype = DType::F32;
  LeafOrder order = LeafOrder::kContiguous;
  std::int64_t most_queries = 0;
  bool is_open = false;  ///< whether the last range is

  std::vector<KeyRange> ranges(int p) const {
    if (order == LeafOrder::kDealt) return dealt_ranges(p);
    std::vector<KeyRange> ranges = coarse_ranges(kMostKeys, p, kLeafKeys);
    if (is_open) ranges.back().end = kOpenEnd;
    return ranges;
  }
};

/// The steps of one rank over one cache. @param before, after called with the number of a step @returns steps with other
/// bits
template <class Before, class After>
int differences(Transport& transport, const Run& run, const std::vector<DecodeOutput>& want, const Before& before,
                const After& after) {
  const std::vector<KeyRange> ranges = run.ranges(transport.size());
  const OwnedLeaves leaves(transport.topology().range_of(transport.rank(), ranges), run.order);
  OpenShard shard = open_shard(run.backend, shape_of(run.dtype), leaves, kMostKeys, kScale, {}, {}, run.most_queries);
  shard.cache->reserve();
  const auto decoder = find_algorithm(run.algorithm).open(transport, shard, ranges);
  const Keys keys(run.dtype);
  int n_other = 0;
  for (std::size_t i = 0; i < kSteps.size(); ++i) {
    const std::vector<std::int64_t> kept = kSteps[i].kept(), lengths = kSteps[i].lengths();
    for (std::int64_t entry = 0; entry < 2; ++entry)
      shard.cache->truncate(entry, leaves.n_keys(kept[static_cast<std::size_t>(entry)]));
    keys.append(*shard.cache, kSteps[i], i);
    const Tensor q = queries_of(run.dtype, i);
    before(i);
    const OutputView output = decoder->step({q.view(), lengths, {.causal = true}});
    after(i);
    n_other += !same_bits(output.copy(), want[i]);
  }
  return n_other;
}

}  // namespace tree_attn::test::queries
