// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief main() of the tests on a GPU: without one they are skipped, and say so.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

namespace {

/// Exit status that CTest takes for "skipped".
constexpr int kSkipped = 77;

/// Why no kernel can run here; null if one can.
const char* why_not() {
  int n = 0, major = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&n); status != cudaSuccess) return cudaGetErrorString(status);
  if (n == 0) return "no CUDA device";
  if (const cudaError_t status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0); status != cudaSuccess)
    return cudaGetErrorString(status);
  return major < 8 ? "the device is older than compute capability 8.0" : nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (const char* const reason = why_not()) {
    std::printf("skipped: no GPU to run kernels on (%s)\n", reason);
    // Where a GPU is known to be, a run without it is a failure.
    return std::getenv("TREE_ATTN_REQUIRE_GPU") != nullptr ? 1 : kSkipped;
  }
  return context.run();
}
