// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Names of backends. Apart from the decoders, which need no kernel.
#include "distributed/decoders/decoder.hpp"
#include "reference/data/input_error.hpp"
#include "gpu/platform/device_error.hpp"

namespace tree_attn {

Backend find_backend(std::string_view name) {
  if (name == "cpu") return {"cpu", nullptr, decode_shard};
  const auto of_kernels = [name](const KernelBackend& kernels) {
    try {
      kernels.device_name();
    } catch (const DeviceError& error) {
      throw InputError("--backend " + std::string(name) + ": " + error.what());
    }
    return Backend{std::string(name), &kernels, kernels.decode_shard};
  };
  if (name == "emulated") return of_kernels(emulated::kBackend);
#if defined(TREE_ATTN_HAS_CUDA)
  if (name == "cuda") return of_kernels(cuda::kBackend);
#else
  if (name == "cuda") throw InputError("--backend cuda: not built in (" TREE_ATTN_NO_CUDA "); it takes a build with nvcc 12 or later");
#endif
  throw InputError("--backend " + std::string(name) + ": unknown; there are cpu, emulated, cuda");
}

}  // namespace tree_attn
