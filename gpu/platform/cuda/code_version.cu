// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Finds which image in the program the current device runs, by asking a kernel that is compiled as all others are.
#include "gpu/platform/cuda/launch.hpp"

namespace tree_attn::cuda {
namespace {

__global__ void probe() {}

}  // namespace

int code_version() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();  // or the next to ask takes it for its own
    return 0;
  }
  check(status, "cudaFuncGetAttributes");
  // Not binaryVersion, which is that of the device where the driver has compiled PTX.
  return attributes.ptxVersion;
}

std::span<const int> built_for() {
  static constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
  static const std::vector<int> versions = [] {
    std::vector<int> all;
    for (const int architecture : kArchitectures) all.push_back(architecture / 10);
    return all;
  }();
  return versions;
}

}  // namespace tree_attn::cuda
