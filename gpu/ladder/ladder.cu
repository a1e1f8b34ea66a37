// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The shapes that rungs take, the additions that they make, and the list of all kernels.
#include "gpu/ladder/ladder.hpp"

#include "gpu/engine/equal_runs.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

std::string accepts_any_rows(const DecodeParams& params, DType dtype) {
  if (const std::string refusal = accepts_any_grid(params, dtype); !refusal.empty()) return refusal;
  if (dtype == DType::F8_E4M3) return "F8_E4M3 storage";
  if (params.n_edge() > 0 || params.rule.window > 0) return "a causal edge or a window";
  if (params.softcap) return "a soft cap";
  // Rows are counted by the second axis of a grid.
  if (params.n_rows() > 65535) return std::to_string(params.n_rows()) + " rows: more than 65535";
  return "";
}

std::string accepts_aligned_rows(const DecodeParams& params, DType dtype) {
  const auto size = static_cast<int>(bytes_of(dtype));
  if (const std::string refusal = accepts_any_rows(params, dtype); !refusal.empty()) return refusal;
  if (multiplies_on_tensor_cores(params, dtype))
    return std::string(name_of(dtype)) + " storage: its bits are those of tensor cores";
  if (params.d_h * size % 16 != 0 || params.d_v * size % 16 != 0) return "rows are not a multiple of 16 bytes";
  if (!starts_aligned(params, dtype)) return "rows do not start at multiples of 16 bytes";
  return "";
}

std::string accepts_tensor_rows(const DecodeParams& params, DType dtype) {
  if (const std::string refusal = accepts_any_rows(params, dtype); !refusal.empty()) return refusal;
  if (kernel_cores_of(dtype) == KernelCores::Scalar)
    return std::string(name_of(dtype)) + " storage: no tensor core keeps its bits";
  if (params.portable) return "a portable result";
  if (!multiplies_on_tensor_cores(params, dtype))
    return "d_h " + std::to_string(params.d_h) + ", d_v " + std::to_string(params.d_v) + ": more than 512";
  if (!starts_aligned(params, dtype)) return "rows do not start at multiples of 16 bytes";
  return "";
}

double chain_additions(const DecodeParams& params, DType) { return static_cast<double>(params.end - params.begin) + 4; }

double leaf_additions(const DecodeParams& params, DType) {
  return static_cast<double>(kLeafKeys) + n_tree_additions(params.end - params.begin);
}

const DecodeKernel kEqualRuns{.name = "equal-runs",
                              .keeps_states = true,
                              .n_additions = n_additions,
                              .refusal = accepts_copied_rows,
                              .plan = plan_equal_runs<DecodeParams>,
                              .run = run_equal_runs<DecodeParams>};

std::span<const DecodeKernel* const> all_kernels() {
  static constexpr const DecodeKernel* kKernels[] = {&kNaive,  &kFused,  &kVectors, &kSplit,
                                                     &kCopies, &kTensor, &kUnits,   &kEqualRuns};
  return kKernels;
}

std::span<const LadderStep* const> ladder() { return all_kernels().first(7); }

}  // namespace tree_attn::TREE_ATTN_PLATFORM
