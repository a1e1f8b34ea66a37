// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CUDA side of gpu/platform/launch.hpp.
#pragma once

#include "gpu/platform/cuda/stream.hpp"
#include "gpu/platform/cuda/tensor_map.hpp"
#include "gpu/types/code_version.hpp"
#include "gpu/types/device_part.hpp"
#include "gpu/types/memory_use.hpp"
#include "gpu/types/window_handle.hpp"

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::cuda {

/// Properties of the current device that a launch layer needs.
struct Device {
  std::string name;
  int n_multiprocessors = 0;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory that one block may have
  int major = 0;                 ///< of the compute capability that its kernels were compiled for: at most its own
};

/// As --backend takes it; whether device memory is memory of the host.
inline constexpr const char* kName = "cuda";
inline constexpr bool kIsHostMemory = false;

/// The version, as in code_version.hpp, that the kernels were compiled for which the current device runs: older than that of
/// the device if the driver compiles them from PTX. 0: the program has none that it could run. @throws DeviceError
int code_version();
/// All versions that the program was compiled for.
std::span<const int> built_for();

/// Asks for the properties of the current device, which takes as long as a short kernel. Makes its context: code_version()
/// asks about a kernel.
/// @throws DeviceError with one line if the program has no kernels for it
inline Device ask_device(int id) {
  int n = 0, shared = 0;
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, id), "cudaDeviceGetAttribute");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, id), "cudaGetDeviceProperties");
  const std::size_t shared_bytes = static_cast<std::size_t>(shared);
  const int code = code_version(), version = 10 * properties.major + properties.minor;
  if (const std::string why = why_no_kernels(properties.name, version, code, shared_bytes, built_for()); !why.empty())
    throw DeviceError(why);
  return {properties.name, n, shared_bytes, code / 10};
}

/// The GPUs of this machine, by name; none where the driver does not answer. Makes no context.
inline std::vector<std::string> gpu_names() {
  int n = 0;
  std::vector<std::string> names;
  if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
  for (int id = 0; id < n; ++id) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, id), "cudaGetDeviceProperties");
    names.emplace_back(properties.name);
  }
  return names;
}

/// The current device, or the part of it that this host thread has; each device is asked once. @throws DeviceError if there
/// is none, or the program has no kernels for it
inline const Device& device() {
  static std::mutex mutex;
  static std::map<int, Device> known;
  int id = 0;
  check(cudaGetDevice(&id), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  const auto found = known.find(id);
  const Device& whole = found != known.end() ? found->second : known.emplace(id, ask_device(id)).first->second;
  if (DevicePart::n_multiprocessors() == 0) return whole;
  static thread_local Device part;
  part = whole, part.n_multiprocessors = DevicePart::n_multiprocessors();
  return part;
}

/// Devices: how many there are, and which one this host thread allocates and launches on. @throws DeviceError
inline int n_devices() {
  int n = 0;
  check(cudaGetDeviceCount(&n), "cudaGetDeviceCount");
  return n;
}
inline void set_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }
/// The device of a host thread that decodes as one rank of several.
inline void use_device(int device) { set_device(device); }
inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
/// Kernels of the current device may reach windows of another from now on. @throws DeviceError if they cannot
inline void enable_peer_access(int other) {
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();  // or the next to ask takes it for its own
  else
    check(status, "cudaDeviceEnablePeerAccess");
}

/// A word of host memory that kernels of every device read while host threads write it. Starts as 0.
class HostWord {
 public:
  /// @throws DeviceError if the memory cannot be pinned
  HostWord() {
    check(cudaHostAlloc(&word_, sizeof(unsigned), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
    store(0);
  }
  HostWord(const HostWord&) = delete;
  HostWord& operator=(const HostWord&) = delete;
  ~HostWord() { cudaFreeHost(word_); }
  void store(unsigned value) { std::atomic_ref(*word_).store(value, std::memory_order_release); }
  /// Its address is that of the host: addresses of pinned memory are unified.
  const unsigned* on_device() const { return word_; }

 private:
  unsigned* word_ = nullptr;
};

/// A window of another process, for kernels of the device that is current when it is opened. That process frees the window
/// after this one has closed it.
class OpenedWindow {
 public:
  /// @throws DeviceError if it cannot be reached
  OpenedWindow(const WindowHandle& handle, std::size_t) {
    cudaIpcMemHandle_t ipc;
    void* opened = nullptr;
    std::memcpy(&ipc, handle.bytes, sizeof ipc);
    check(cudaIpcOpenMemHandle(&opened, ipc, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    opened_.reset(static_cast<std::byte*>(opened));
  }
  void* data() const { return opened_.get(); }

 private:
  struct Close {
    void operator()(std::byte* memory) const { cudaIpcCloseMemHandle(memory); }
  };
  std::unique_ptr<std::byte, Close> opened_;  ///< of CUDA IPC
};

/// Bytes that kernels of this device have stored into windows of others: a GPU does not count them.
inline std::optional<std::int64_t> bytes_to_peers() { return std::nullopt; }

/// n elements of host memory that copies read and write while the host does something else: pinned.
template <class T>
class HostBuffer {
 public:
  explicit HostBuffer(std::int64_t n) : n_(n) {
    if (n > 0) check(cudaMallocHost(&data_, static_cast<std::size_t>(n) * sizeof(T)), "cudaMallocHost");
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer() { cudaFreeHost(data_); }
  T* data() { return data_; }
  std::int64_t size() const { return n_; }
  std::span<const T> elements() const { return {data_, static_cast<std::size_t>(n_)}; }
  /// The elements, to be written. @pre the host has waited for all copies from here and to here, which the emulator checks
  std::span<T> to_write() { return {data_, static_cast<std::size_t>(n_)}; }

 private:
  T* data_ = nullptr;
  std::int64_t n_ = 0;
};

/// Memory of the device, or of a library as a window.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// @throws DeviceError if the device has no n_bytes free
  DeviceMemory(std::size_t n_bytes, MemoryUse use) {
    // A smaller allocation shares its 2 MiB with neighbours, and another process that opens it reaches those too.
    constexpr std::size_t kShared = 2 << 20;
    const std::size_t n_taken = use == MemoryUse::Window ? (n_bytes + kShared - 1) / kShared * kShared : n_bytes;
    void* memory = nullptr;
    if (const cudaError_t status = cudaMalloc(&memory, n_taken); status != cudaSuccess) {
      std::size_t n_free = 0, n_all = 0;
      cudaGetLastError();
      cudaMemGetInfo(&n_free, &n_all);
      throw DeviceError("cudaMalloc of " + std::to_string(n_bytes >> 20) + " MiB, with " + std::to_string(n_free >> 20) +
                        " MiB free: " + cudaGetErrorString(status));
    }
    own_.reset(static_cast<std::byte*>(memory));
  }
  DeviceMemory(void* memory, std::size_t) : borrowed_(memory) {}
  void* data() const { return borrowed_ != nullptr ? borrowed_ : own_.get(); }
  WindowHandle handle() const {
    WindowHandle handle;
    cudaIpcMemHandle_t ipc;
    static_assert(sizeof ipc == sizeof handle.bytes);
    check(cudaIpcGetMemHandle(&ipc, data()), "cudaIpcGetMemHandle");
    std::memcpy(handle.bytes, &ipc, sizeof ipc);
    return handle;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { cudaFree(memory); }
  };
  std::unique_ptr<std::byte, Free> own_;  ///< what cudaMalloc() has made
  void* borrowed_ = nullptr;              ///< of a library
};

/// CUDA refuses by itself what a capture cannot record.
inline void refuse_in_capture(const char*) {}
/// Waits for all that is queued on the device.
inline void synchronise_all() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
/// Queues a copy of n_rows rows of n_bytes, each `pitch` bytes after the one before it.
inline void copy_rows(Stream stream, CopyKind copy, void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                      std::size_t n_bytes, std::size_t n_rows, const Line&) {
  constexpr std::size_t kMostPitch = 0x7FFFFFFF;  // of cudaMemcpy2DAsync
  const bool is_up = copy == CopyKind::Upload, is_down = copy == CopyKind::Download;
  const cudaMemcpyKind kind = is_up ? cudaMemcpyHostToDevice : is_down ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
  if (n_rows > 1 && to_pitch <= kMostPitch && from_pitch <= kMostPitch && n_bytes <= to_pitch && n_bytes <= from_pitch) {
    check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, n_bytes, n_rows, kind, stream), "cudaMemcpy2DAsync");
  } else {
    for (std::size_t row = 0; row < n_rows; ++row)
      check(cudaMemcpyAsync(static_cast<std::byte*>(to) + row * to_pitch,
                            static_cast<const std::byte*>(from) + row * from_pitch, n_bytes, kind, stream),
            "cudaMemcpyAsync");
  }
  const auto n_copied = static_cast<std::int64_t>(n_rows * n_bytes);
  if (is_up) ++traffic().n_uploads, traffic().bytes_uploaded += n_copied;
  if (is_down) traffic().bytes_downloaded += n_copied;
}
/// Queues a fill.
inline void fill_bytes(Stream stream, void* to, unsigned char byte, std::size_t n_bytes, const Line&) {
  check(cudaMemsetAsync(to, byte, n_bytes, stream), "cudaMemsetAsync");
}

/// Blocks of a cluster that every whole device of compute capability 9 can run; of more it is asked, see
/// n_resident_clusters().
inline constexpr int kPortableCluster = 8;

/// Launch configuration of a kernel.
struct Launch {
  dim3 grid{1}, block{1};
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
  int cluster = 1;               ///< blocks of a cluster, along x
  bool continues = false;        ///< whether it reads scratch memory that the launch before it wrote
  bool overlaps = false;         ///< whether it may begin before the launch before it ends: see wait_for_previous_launch()
  bool is_cooperative = false;   ///< whether its blocks wait for each other: then all have to fit the device at once
};

/// Describes an array, and the box that bulk_copy_tensor() fetches of it, to the copy engine.
/// @param[out] map written in place @throws DeviceError see check_tensor_map(), or for a driver or device without tensor
/// maps
inline void encode_tensor_map(const TensorArray& array, TensorMap* map) {
  check_tensor_map(map, array);
  // From the driver that is loaded: a program that links libcuda itself does not start where there is none.
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  if (encode == nullptr)
    throw DeviceError("encode_tensor_map: this driver has no cuTensorMapEncodeTiled; it takes one of CUDA 12 or later");

  // The driver counts axes from the innermost one, and strides in bytes.
  cuuint64_t extent[4], stride[3];
  for (int i = 0; i < 4; ++i) extent[i] = static_cast<cuuint64_t>(array.extent[3 - i]);
  const auto size = static_cast<cuuint64_t>(array.size());
  for (int i = 0; i < 3; ++i) stride[i] = array.extent[2 - i] > 1 ? static_cast<cuuint64_t>(array.stride[2 - i]) * size : 16;
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(array.rows), 1, 1}, step[] = {1, 1, 1, 1};
  const CUresult status = encode(map, size == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 4,
                                 const_cast<void*>(array.data), extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 size == 2 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError("encode_tensor_map: cuTensorMapEncodeTiled: error " + std::to_string(status));
}

/// Allows a kernel what a launch of it asks for: shared memory, and more blocks of a cluster than every device has.
template <class... Parameters>
void allow(void (*kernel)(Parameters...), const Launch& config) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(config.shared_bytes)),
        "cudaFuncSetAttribute");
  if (config.cluster > kPortableCluster)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
}

/// Clusters of a launch that the device, or the part of it that this process has, holds at once: none of a size that the
/// driver refuses, by whatever error.
template <class... Parameters>
int n_resident_clusters(void (*kernel)(Parameters...), const Launch& config) {
  if (device().major < 9) return 0;
  allow(kernel, config);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(config.cluster), 1, 1};
  cudaLaunchConfig_t attributes{};
  attributes.gridDim = config.grid;
  attributes.blockDim = config.block;
  attributes.dynamicSmemBytes = config.shared_bytes;
  attributes.attrs = &cluster;
  attributes.numAttrs = 1;
  int n = 0;
  if (cudaOccupancyMaxActiveClusters(&n, kernel, &attributes) == cudaSuccess) return n;
  cudaGetLastError();  // or the next to ask takes it for its own
  return 0;
}

/// Starts a kernel on a stream. @throws DeviceError if it could not be started
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, Stream stream, Arguments&&... arguments) {
  allow(kernel, config);
  cudaLaunchAttribute set[3]{};
  unsigned n_set = 0;
  if (config.cluster > 1) {
    set[n_set].id = cudaLaunchAttributeClusterDimension;
    set[n_set++].val.clusterDim = {static_cast<unsigned>(config.cluster), 1, 1};
  }
  if (config.overlaps) {
    set[n_set].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    set[n_set++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.is_cooperative) {
    set[n_set].id = cudaLaunchAttributeCooperative;
    set[n_set++].val.cooperative = 1;
  }
  cudaLaunchConfig_t attributes{};
  attributes.gridDim = config.grid;
  attributes.blockDim = config.block;
  attributes.dynamicSmemBytes = config.shared_bytes;
  attributes.stream = stream;
  attributes.attrs = set;
  attributes.numAttrs = n_set;
  check(cudaLaunchKernelEx(&attributes, kernel, Parameters(std::forward<Arguments>(arguments))...), "cudaLaunchKernelEx");
  ++traffic().n_launches, ++n_launches_of_thread;
}

}  // namespace tree_attn::cuda
