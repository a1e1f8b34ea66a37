// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Chooses the build of the loops that this processor runs.
#include "reference/cpu/leaf_kernel.hpp"
#include "reference/decode/decode.hpp"

#if defined(TREE_ATTN_X86_64)
#include <cpuid.h>
#endif

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn {

#if defined(TREE_ATTN_X86_64)
extern const LeafKernel leaf_kernel_x86_64, leaf_kernel_x86_64_v3, leaf_kernel_x86_64_v4;
#else
extern const LeafKernel leaf_kernel_generic;
#endif

namespace {

#if defined(TREE_ATTN_X86_64)
constexpr std::array kKernels{&leaf_kernel_x86_64_v4, &leaf_kernel_x86_64_v3, &leaf_kernel_x86_64};

/// Tests whether this processor has the instructions of a level of the x86-64 psABI, as far as compilers use them in these
/// loops.
bool can_run(const LeafKernel& kernel) {
  unsigned a = 0, b = 0, basic = 0, extended = 0, d = 0;
  __get_cpuid(1, &a, &b, &basic, &d);
  __get_cpuid(0x80000001, &a, &b, &extended, &d);
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && (basic & bit_F16C) != 0 && (extended & bit_LZCNT) != 0;
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return &kernel == &leaf_kernel_x86_64_v4 ? v4 : &kernel == &leaf_kernel_x86_64_v3 ? v3 : true;
}
#else
constexpr std::array kKernels{&leaf_kernel_generic};
bool can_run(const LeafKernel&) { return true; }
#endif

const LeafKernel& choose() {
  const std::span<const LeafKernel* const> usable = leaf_kernels();
  const char* const asked = std::getenv("TREE_ATTN_INSTRUCTION_SET");
  if (asked == nullptr || *asked == '\0') return *usable.front();
  std::string names;
  for (const LeafKernel* kernel : usable) {
    if (kernel->name == asked) return *kernel;
    names += (names.empty() ? "" : ", ") + std::string(kernel->name);
  }
  throw std::invalid_argument("TREE_ATTN_INSTRUCTION_SET is '" + std::string(asked) + "'; this processor runs " + names);
}

}  // namespace

std::span<const LeafKernel* const> leaf_kernels() {
  static const std::vector<const LeafKernel*> usable = [] {
    std::vector<const LeafKernel*> list;
    for (const LeafKernel* kernel : kKernels) {
      if (can_run(*kernel)) list.push_back(kernel);
    }
    return list;
  }();
  return usable;
}

const LeafKernel& leaf_kernel() {
  static const LeafKernel& chosen = choose();
  return chosen;
}

DecodeOutput finish_rows(std::span<const float> states, std::int64_t n_rows, std::int64_t d_v) {
  require(n_rows >= 0 && d_v >= 0 && std::ssize(states) == n_rows * state_size(d_v), "finish_rows: ", states.size(),
          " elements for ", n_rows, " states of 2 + ", d_v);
  DecodeOutput output{std::vector<float>(static_cast<std::size_t>(n_rows * d_v)),
                      std::vector<float>(static_cast<std::size_t>(n_rows))};
  leaf_kernel().finish_states(states.data(), n_rows, d_v, output.out.data(), output.lse.data());
  return output;
}

}  // namespace tree_attn
