// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What shapes kernels take.
#include "gpu/parts/plan.hpp"

#include <algorithm>

#include "reference/state/score_scale.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

bool starts_aligned(const DeviceProblem& problem, Storage storage) {
  const auto size = static_cast<std::int64_t>(bytes_of(storage));
  const auto aligned = [size](const DeviceView& view) {
    return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
           std::all_of(view.stride, view.stride + 3, [size](std::int64_t n) { return n * size % 16 == 0; });
  };
  return aligned(problem.k) && aligned(problem.v);
}

void set_scale(DeviceProblem& problem, Storage storage, double scale, int lift) {
  const bool may_overflow = kLongestRow * largest_of(storage) * largest_of(storage) >= largest_of(Storage::F32);
  const ScoreScale parts = may_overflow ? split_scale(scale) : ScoreScale{1, static_cast<float>(kLog2E * scale)};
  problem.query_scale = parts.query, problem.score_scale = parts.score;
  problem.lift = static_cast<float>(may_overflow ? lift : 0);
}

bool multiplies_on_tensor_cores(const DeviceProblem& problem, Storage storage) {
  return kernel_unit_of(storage) == KernelUnit::TensorCores && problem.group >= 2 && std::max(problem.d_h, problem.d_v) <= 256;
}

std::string accepts_any_grid(const DeviceProblem& problem, Storage storage) {
  if (kernel_unit_of(storage) == KernelUnit::None) return std::string(name_of(storage)) + " storage";
  if (problem.d_h > kLongestRow || problem.d_v > kLongestRow)
    return "d_h " + std::to_string(problem.d_h) + ", d_v " + std::to_string(problem.d_v) + ": more than " + std::to_string(kLongestRow);
  for (const DeviceView* view : {&problem.q, &problem.k, &problem.v}) {
    if (reinterpret_cast<std::uintptr_t>(view->data) % bytes_of(storage) != 0) return "an array that starts inside a number";
  }
  return "";
}

std::string accepts_any_rows(const DeviceProblem& problem, Storage storage) {
  if (const std::string refusal = accepts_any_grid(problem, storage); !refusal.empty()) return refusal;
  // Rows are counted by the second axis of a grid.
  if (problem.n_rows() > 65535) return std::to_string(problem.n_rows()) + " rows: more than 65535";
  return "";
}

std::string accepts_aligned_rows(const DeviceProblem& problem, Storage storage) {
  const auto size = static_cast<int>(bytes_of(storage));
  if (const std::string refusal = accepts_any_rows(problem, storage); !refusal.empty()) return refusal;
  if (problem.d_h * size % 16 != 0 || problem.d_v * size % 16 != 0) return "rows are not a multiple of 16 bytes";
  if (!starts_aligned(problem, storage)) return "rows do not start at multiples of 16 bytes";
  return "";
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
