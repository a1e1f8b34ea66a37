// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Hashes of the input, and their comparison between ranks.
#include "distributed/program/fingerprint.hpp"

#include "reference/data/fnv1a.hpp"
#include "reference/data/input_error.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace tree_attn {
namespace {

std::uint64_t hash_of_row(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t n, std::uint64_t hash) {
  return fnv1a({view.row(i, j, n), static_cast<std::size_t>(view.shape[3]) * bytes_of(view.dtype)}, hash);
}

/// The hash of the queries of all steps.
std::uint64_t hash_of_queries(Workload& workload) {
  std::uint64_t hash = kFnvStart;
  for (int t = 0; t < workload.steps(); ++t) {
    const TensorView q = workload.query(t);
    for (std::int64_t i = 0; i < q.shape[0]; ++i) {
      for (std::int64_t h = 0; h < q.shape[1]; ++h) {
        for (std::int64_t n = 0; n < q.shape[2]; ++n) hash = hash_of_row(q, i, h, n, hash);
      }
    }
  }
  return hash;
}

/// The hash of what is added to the scores of a key, for all queries of its group.
std::uint64_t hash_of_mask(const Workload& workload, std::int64_t i, std::int64_t kv_head, std::int64_t n,
                           std::uint64_t hash) {
  const WorkloadShape& shape = workload.shape();
  const std::int64_t group = shape.heads / shape.kv_heads;
  std::vector<float> elements;
  for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
    for (std::int64_t j = 0; j < shape.mask.shape[2]; ++j) elements.push_back(shape.mask.add(0.0f, 1.0f, i, h, j, n));
  return fnv1a(std::as_bytes(std::span(elements)), hash);
}

}  // namespace

std::vector<CacheRow> sampled_rows(std::span<const std::int64_t> lengths, std::int64_t kv_heads) {
  // Tensors without elements may have any number of heads, and more rows than 64 bits count.
  const std::int64_t n_positions = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (n_positions == 0) return {};
  constexpr std::int64_t kMostRows = 192;
  const std::int64_t n_rows = n_positions * kv_heads, n_sampled = std::min(n_rows, kMostRows);
  std::vector<CacheRow> rows;
  for (std::int64_t s = 0; s < n_sampled; ++s) {
    std::int64_t row = n_sampled == 1 ? 0 : s * (n_rows - 1) / (n_sampled - 1), entry = 0;
    for (; row >= kv_heads * lengths[static_cast<std::size_t>(entry)]; ++entry)
      row -= kv_heads * lengths[static_cast<std::size_t>(entry)];
    const std::int64_t n = lengths[static_cast<std::size_t>(entry)];
    rows.push_back({entry, row / n, row % n});
  }
  return rows;
}

void agree_on_input(const Ranks& ranks, Workload& workload, const SafetensorsFile* file) {
  if (ranks.size() == 1) return;
  const WorkloadShape& shape = workload.shape();
  const std::vector<std::int64_t> lengths = workload.lengths(workload.steps() - 1);
  std::vector<Field> fields{{"hash of lengths", fnv1a(std::as_bytes(std::span(lengths)))},
                            {"hash of k_scale", fnv1a(std::as_bytes(std::span(shape.scales.k)))},
                            {"hash of v_scale", fnv1a(std::as_bytes(std::span(shape.scales.v)))},
                            {"hash of q", hash_of_queries(workload)}};
  if (file != nullptr) {
    const Shard cache = workload.whole();
    std::uint64_t k = kFnvStart, v = kFnvStart, mask = kFnvStart;
    for (const auto& [i, h, n] : sampled_rows(lengths, shape.kv_heads)) {
      k = hash_of_row(cache.k, i, h, n, k), v = hash_of_row(cache.v, i, h, n, v);
      if (shape.mask.data != nullptr) mask = hash_of_mask(workload, i, h, n, mask);
      file->release_pages();  // most belong to other shards
    }
    fields.insert(fields.end(), {{"hash of the header", file->header_hash()},
                                 {"hash of rows of k", k},
                                 {"hash of rows of v", v},
                                 {"hash of rows of the mask", mask}});
  }
  require_equal(ranks, "decode", "all ranks to compare their input", fields);
}

}  // namespace tree_attn
