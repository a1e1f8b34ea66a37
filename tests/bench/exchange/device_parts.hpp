// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A device in equal parts, one for each rank: green contexts on a GPU, a number in the emulator.
#pragma once

#include "gpu/platform/launch.hpp"
#include "gpu/types/device_part.hpp"

#if defined(TREE_ATTN_FOR_CUDA)
#include <cuda.h>
#endif

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#if defined(TREE_ATTN_FOR_CUDA)
namespace tree_attn::cuda {

/// A function of the driver that is loaded. @throws DeviceError if it has none of that name, as of CUDA 12.5
template <class Function>
Function driver_function(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &entry, 12050, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess)
    throw DeviceError(std::string("this driver has no ") + name + "; green contexts take one of CUDA 12.5 or later");
  return reinterpret_cast<Function>(entry);
}
#define TREE_ATTN_DRIVER(function, ...)                                                                              \
  ::tree_attn::cuda::check_driver(::tree_attn::cuda::driver_function<decltype(&::function)>(#function)(__VA_ARGS__), \
                                  #function)
inline void check_driver(CUresult status, const char* call) {
  if (status != CUDA_SUCCESS) throw DeviceError(std::string(call) + ": error " + std::to_string(status));
}

/// Disjoint sets of multiprocessors of device 0, each with a green context. While one is current, the streams that a host
/// thread makes belong to it, and so does its default stream: that of the whole device would order the steps of all ranks,
/// one after the other, although they wait for each other.
///
/// CUDA does not promise that kernels of different green contexts run at the same time. Time limits end the waits if they do
/// not.
class DeviceParts {
 public:
  /// @throws DeviceError if the driver has no green contexts, or the device not so many parts
  explicit DeviceParts(int n) : resources_(static_cast<std::size_t>(n)), contexts_(static_cast<std::size_t>(n)) {
    set_device(0);
    check(cudaFree(nullptr), "cudaFree");  // makes the primary context
    CUdevResource all{};
    TREE_ATTN_DRIVER(cuDeviceGetDevResource, 0, &all, CU_DEV_RESOURCE_TYPE_SM);
    // The driver rounds parts up, and may then have too few.
    const auto split = driver_function<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
    unsigned n_least = all.sm.smCount / static_cast<unsigned>(n), n_parts = 0;
    for (; n_least > 0; --n_least) {
      n_parts = static_cast<unsigned>(n);
      if (split(resources_.data(), &n_parts, &all, nullptr, 0, n_least) == CUDA_SUCCESS && n_parts == contexts_.size())
        break;
    }
    if (n_least == 0)
      throw DeviceError("the " + std::to_string(all.sm.smCount) + " multiprocessors cannot be split into " +
                        std::to_string(n));
    for (std::size_t i = 0; i < contexts_.size(); ++i) {
      CUdevResourceDesc described = nullptr;
      CUgreenCtx context = nullptr;
      TREE_ATTN_DRIVER(cuDevResourceGenerateDesc, &described, &resources_[i], 1);
      TREE_ATTN_DRIVER(cuGreenCtxCreate, &context, described, 0, CU_GREEN_CTX_DEFAULT_STREAM);
      contexts_[i].reset(context);
    }
  }

  /// Multiprocessors of every part: the parts are equal.
  int n_multiprocessors() const { return static_cast<int>(resources_.front().sm.smCount); }

  /// While it exists, this host thread is on a part.
  class Entered {
   public:
    /// @throws DeviceError if streams that this thread makes do not run there
    Entered(const DeviceParts& parts, int i) : part_(parts.n_multiprocessors()) {
      set_device(0);
      CUcontext context = nullptr;
      CUgreenCtx of_stream = nullptr, of_default = nullptr;
      const CUgreenCtx own = parts.contexts_[static_cast<std::size_t>(i)].get();
      TREE_ATTN_DRIVER(cuCtxFromGreenCtx, &context, own);
      TREE_ATTN_DRIVER(cuCtxSetCurrent, context);
      const OwnedStream stream;
      TREE_ATTN_DRIVER(cuStreamGetGreenCtx, static_cast<Stream>(stream), &of_stream);
      TREE_ATTN_DRIVER(cuStreamGetGreenCtx, Stream{}, &of_default);
      if (of_stream != own || of_default != own)
        throw DeviceError("streams do not run on the green context that is current");
    }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    ~Entered() { cudaSetDevice(0); }

   private:
    DevicePart part_;
  };

 private:
  struct Destroy {
    void operator()(CUgreenCtx context) const {
      driver_function<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy")(context);
    }
  };

  std::vector<CUdevResource> resources_;
  std::vector<std::unique_ptr<std::remove_pointer_t<CUgreenCtx>, Destroy>> contexts_;
};
#undef TREE_ATTN_DRIVER

}  // namespace tree_attn::cuda
#else
namespace tree_attn::emulated {

/// Parts of two multiprocessors. The emulator has room for the blocks of every launch by itself, so it shows neither parts
/// that overlap, nor launches that do not run at the same time.
class DeviceParts {
 public:
  explicit DeviceParts(int n) : scope_({.n_multiprocessors = kOfPart * n, .n_hosts = n, .n_devices = 1}) {}
  int n_multiprocessors() const { return kOfPart; }
  class Entered {
   public:
    Entered(const DeviceParts& parts, int) : part_(parts.n_multiprocessors()) {}

   private:
    DevicePart part_;
  };

 private:
  static constexpr int kOfPart = 2;
  SettingsScope scope_;
};

}  // namespace tree_attn::emulated
#endif
