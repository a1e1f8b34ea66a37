// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CUDA side of gpu/platform/launch.hpp.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gpu/platform/device_error.hpp"
#include "gpu/platform/memory_use.hpp"

namespace tree_attn::cuda {

using Stream = cudaStream_t;

/// @throws DeviceError with the call and what CUDA says of it
inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw DeviceError(std::string(call) + ": " + cudaGetErrorString(status));
}

/// What a launch layer asks of the device at hand.
struct Device {
  std::string name;
  int n_multiprocessors = 0;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory that one block may have
  int major = 0;                 ///< compute capability, 8 or 9
};

/// The current device. @throws DeviceError if there is none
inline Device device() {
  int id = 0, n = 0, shared = 0, major = 0;
  check(cudaGetDevice(&id), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, id), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "cudaDeviceGetAttribute");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, id), "cudaGetDeviceProperties");
  return {properties.name, n, static_cast<std::size_t>(shared), major};
}

/// n numbers of device memory. Contents start undefined.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t n, MemoryUse = MemoryUse::Persistent) : n_(n) {
    if (n > 0) check(cudaMalloc(&data_, static_cast<std::size_t>(n) * sizeof(T)), "cudaMalloc");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), n_(std::exchange(other.n_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_), std::swap(n_, other.n_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  T* data() const { return data_; }
  std::int64_t size() const { return n_; }
  /// Copies from the host; behind all that is queued on the default stream.
  void upload(std::span<const T> from, std::int64_t at = 0) {
    check(cudaMemcpy(data_ + at, from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  /// A copy on the host, once all launches are done.
  std::vector<T> download() const {
    std::vector<T> to(static_cast<std::size_t>(n_));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (n_ > 0) check(cudaMemcpy(to.data(), data_, to.size() * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
    return to;
  }
  /// Sets every byte.
  void fill(unsigned char byte) {
    if (n_ > 0) check(cudaMemset(data_, byte, static_cast<std::size_t>(n_) * sizeof(T)), "cudaMemset");
  }

 private:
  T* data_ = nullptr;
  std::int64_t n_ = 0;
};

/// How a kernel is launched.
struct Launch {
  dim3 grid{1}, block{1};
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
  int cluster = 1;               ///< blocks of a cluster, along x
  bool continues = false;        ///< whether it reads scratch memory that the launch before it wrote
};

/// Starts a kernel on a stream. @throws DeviceError if it could not be started
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& how, Stream stream, Arguments&&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(how.shared_bytes)),
        "cudaFuncSetAttribute");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = how.cluster > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...), "cudaLaunchKernelEx");
}

}  // namespace tree_attn::cuda
