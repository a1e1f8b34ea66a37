// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of the library, what shapes they take, and how many additions they make.
#include "gpu/engine/launch.hpp"

#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/one_shot.cuh"
#include "reference/state/score_scale.hpp"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {

DecodeParams params_of(const AttentionShape& shape, std::int64_t l, KeyRange capacity) {
  DecodeParams params;
  params.batch = shape.batch, params.kv_heads = shape.kv_heads;
  params.group = shape.rows_per_kv_head(l), params.n_queries = l;
  params.d_h = static_cast<int>(shape.head_dim), params.d_v = static_cast<int>(shape.value_dim);
  params.begin = capacity.begin, params.end = params.readable_end = capacity.end;
  params.portable = shape.portable, params.in_pairs = shape.in_pairs || sums_in_pairs(shape.dtype);
  return params;
}

bool starts_aligned(const DecodeParams& params, DType dtype) {
  const auto size = static_cast<std::int64_t>(bytes_of(dtype));
  const auto aligned = [size](const DeviceView& view) {
    return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
           std::all_of(view.stride, view.stride + 3, [size](std::int64_t n) { return n * size % 16 == 0; });
  };
  return aligned(params.k) && aligned(params.v);
}

bool has_bulk_rows(const DecodeParams& params, DType dtype) {
  const auto size = static_cast<int>(bytes_of(dtype));
  return params.d_h * size % 16 == 0 && params.d_v * size % 16 == 0 && starts_aligned(params, dtype);
}

void set_scale(DecodeParams& params, DType dtype, double scale) {
  const double largest = largest_of(multiplied(dtype));
  const bool may_overflow = kLongestRow * largest * largest >= largest_of(DType::F32);
  const bool is_split = may_overflow || !multiplies_on_tensor_cores(params, dtype);
  const ScoreScale parts = is_split ? split_scale(scale) : ScoreScale{1, static_cast<float>(kLog2E * scale)};
  params.query_scale = parts.query, params.score_scale = parts.score;
}

DType query_type(const DecodeParams& params, DType dtype) {
  return multiplies_on_tensor_cores(params, dtype) ? multiplied(dtype) : DType::F32;
}

bool multiplies_on_tensor_cores(const DecodeParams& params, DType dtype) {
  return !params.portable && kernel_cores_of(dtype) == KernelCores::TensorCores && params.d_v <= kLongestValue;
}

std::string accepts_any_grid(const DecodeParams& params, DType dtype) {
  if (kernel_cores_of(dtype) == KernelCores::None) return std::string(name_of(dtype)) + " storage";
  if (params.d_h > kLongestRow || params.d_v > kLongestRow)
    return "d_h " + std::to_string(params.d_h) + ", d_v " + std::to_string(params.d_v) + ": more than " +
           std::to_string(kLongestRow);
  if (const std::int64_t n = leaves_of({params.begin, params.end}); params.n_rows() > kMostWorkItems / n) {
    return std::to_string(params.n_rows()) + " rows over " + std::to_string(n) + " leaves: more than " +
           std::to_string(kMostWorkItems) + " work items";
  }
  // Units count leaves in 32 bits.
  if (params.end > kMostWorkItems * kLeafKeys) return "position " + std::to_string(params.end) + ": more than 2^38 - 64";
  for (const DeviceView* view : {&params.q, &params.k, &params.v}) {
    if (reinterpret_cast<std::uintptr_t>(view->data) % bytes_of(dtype) != 0) return "an array that starts inside a number";
  }
  return "";
}

std::string accepts_copied_rows(const DecodeParams& params, DType dtype) {
  if (const std::string refusal = accepts_any_grid(params, dtype); !refusal.empty()) return refusal;
  return starts_aligned(params, dtype) ? "" : "rows that do not start at multiples of 16 bytes";
}

double n_additions(const DecodeParams& params, DType dtype) {
  // On tensor cores 64 products with each of three parts. They truncate sums, which may cost two roundings each.
  const double of_leaf = multiplies_on_tensor_cores(params, dtype) ? 2 * 3 * static_cast<double>(kLeafKeys) : 0;
  return of_leaf + n_tree_additions(params.end - params.begin);
}

void run_one_shot(const DecodeParams& params, DType dtype, const Peers& peers, const DeviceOutput& result,
                  const LaunchPlan& plan, const Workspace& workspace, Stream stream) {
  if (params.n_rows() == 0) return;
  // The subtrees that are sent are those of whole leaves.
  DecodeParams whole = params;
  if (const KeyRange own = peers.range[peers.me]; !own.empty()) whole.end = std::max(params.end, own.end);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    run_exchange<T>(whole, run_units<T>(whole, false, plan, workspace, stream), peers, result, plan, stream);
  });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
