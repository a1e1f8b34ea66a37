// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Chooses the build of the arithmetic that this processor runs.
#include "distributed/language_model/dense_kernel.hpp"
#include "reference/cpu/leaf_kernel.hpp"

#include <algorithm>
#include <array>

namespace tree_attn {

#if defined(TREE_ATTN_X86_64)
extern const DenseKernel dense_kernel_x86_64, dense_kernel_x86_64_v3, dense_kernel_x86_64_v4;
#else
extern const DenseKernel dense_kernel_generic;
#endif

const DenseKernel& dense_kernel() {
#if defined(TREE_ATTN_X86_64)
  static constexpr std::array kKernels{&dense_kernel_x86_64_v4, &dense_kernel_x86_64_v3, &dense_kernel_x86_64};
#else
  static constexpr std::array kKernels{&dense_kernel_generic};
#endif
  // Both lists have one kernel per instruction set.
  static const DenseKernel& chosen = **std::find_if(
      kKernels.begin(), kKernels.end(), [](const DenseKernel* kernel) { return kernel->name == leaf_kernel().name; });
  return chosen;
}

}  // namespace tree_attn
