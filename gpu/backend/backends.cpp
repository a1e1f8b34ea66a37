// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of backends.
#include "gpu/backend/backends.hpp"

#include "reference/data/input_error.hpp"

namespace tree_attn {

std::span<const std::string_view> backend_names() {
  static constexpr std::string_view kNames[] = {"cpu", "emulated", "cuda"};
  return kNames;
}

std::span<const Backend* const> backends() {
#if defined(TREE_ATTN_HAS_CUDA)
  static const Backend* const kAll[] = {&cpu_backend(), &emulated::backend(), &cuda::backend()};
#else
  static const Backend* const kAll[] = {&cpu_backend(), &emulated::backend()};
#endif
  return kAll;
}

const Backend& find_backend(std::string_view name, int n_threads) {
  for (const Backend* backend : backends()) {
    if (backend->name() != name) continue;
    if (const std::string why = backend->missing(); !why.empty())
      throw InputError("--backend " + std::string(name) + ": " + why);
    return backend == &cpu_backend() ? cpu_backend(n_threads) : *backend;
  }
  std::string known;
  for (const std::string_view other : backend_names()) {
#if !defined(TREE_ATTN_HAS_CUDA)
    if (other == name)
      throw InputError("--backend " + std::string(name) +
                       ": not built in (" TREE_ATTN_NO_CUDA "); build with nvcc 12 or later");
#endif
    known += (known.empty() ? "" : ", ") + std::string(other);
  }
  throw InputError("--backend " + std::string(name) + ": unknown; use one of " + known);
}

}  // namespace tree_attn
