// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CUDA runtime that programs find in place of libcudart.so.13: the calls that this project makes. What a card
/// would refuse is refused, with a line that says why.
#include "tests/gpu/soft_gpu/streams.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <optional>

using namespace tree_attn::soft_gpu;

struct CUstream_st : Stream {
  using Stream::Stream;
};
struct CUevent_st : Event {
  bool is_timed;
  bool has_time() const { return is_timed && time != std::chrono::steady_clock::time_point{}; }
};
struct CUgraph_st {
  std::shared_ptr<Capture> capture;
};
struct CUgraphExec_st : CUgraph_st {};

namespace {

/// The PTX of a program for the highest architecture that the device has.
struct Image {
  int architecture = 0;
  Module text{""};
};
/// A kernel of the program, decoded when it is first needed.
struct Function {
  std::string name;
  Image image;
  std::once_flag is_decoded;
  std::optional<Kernel> kernel;
  std::uint32_t most_dynamic_shared = 48 << 10, most_cluster = 8;
};

/// Bytes of shared memory that a block may have, by the tables of compute capability 8.0 and 9.0; a multiprocessor has 1 KiB
/// more, and every block takes as much besides.
std::uint32_t shared_of_block() { return (settings().major >= 9 ? 227 : 163) << 10; }

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<cudaError_t> broken{cudaSuccess};  // by a kernel: every later call fails, as on a card
std::map<const void*, Function> functions;     // by what host code calls them; complete before main()

cudaError_t give(cudaError_t status, const std::string& why = "") {
  if (!why.empty()) std::fprintf(stderr, "soft_gpu: %s\n", why.c_str());
  if (status != cudaSuccess) last_error = status;
  return status;
}
cudaError_t well() { return give(broken); }
/// An error if the status is one, otherwise what the call does after it.
template <class Then>
cudaError_t then(cudaError_t status, const Then& what) {
  return status != cudaSuccess ? status : what();
}
/// For calls that wait for the device or change its memory: they break a capture of this thread.
cudaError_t no_capture(const char* call) {
  if (!current_capture) return well();
  current_capture->is_broken = true;
  return give(cudaErrorStreamCaptureUnsupported, std::string(call) + " while a stream is captured");
}
Stream& of(cudaStream_t stream) { return stream == nullptr ? current_context().default_stream : *stream; }
std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

/// Calls what(function, kernel) for the kernel of a handle.
template <class What>
cudaError_t with_kernel(const void* handle, const What& what) {
  const auto found = functions.find(handle);
  if (found == functions.end()) return give(cudaErrorInvalidDeviceFunction);
  Function& function = found->second;
  if (function.image.architecture == 0) return give(cudaErrorNoKernelImageForDevice);
  try {
    std::call_once(function.is_decoded, [&] { function.kernel = function.image.text.kernel(function.name); });
  } catch (const Fault& fault) {
    return give(cudaErrorInvalidPtx, function.name + ": " + fault.what());
  }
  try {
    return then(well(), [&] { return what(function, *function.kernel); });
  } catch (const Fault& fault) {
    return give(cudaErrorInvalidConfiguration, function.name + ": " + fault.what());
  }
}

/// Clusters of a launch that the device, or the part of it, holds at once. A card may hold fewer: registers, which ptxas
/// assigns, and processing clusters, in one of which a cluster lies, are not modelled.
int n_resident(const LaunchShape& shape, int n_multiprocessors) {
  const std::uint32_t n_warps = (count(shape.block) + 31) / 32,
                      of_each = std::min({32U, 64 / n_warps, (shared_of_block() + 1024) / (shape.dynamic_shared + 1024)});
  return n_multiprocessors * static_cast<int>(of_each) / static_cast<int>(shape.cluster);
}

/// @throws Fault if a launch asks for what the device does not do
void check_launch(const Function& function, const Kernel& kernel, const LaunchShape& shape, int n_multiprocessors) {
  for (std::size_t i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.grid[i] > (i == 0 ? 0x7FFFFFFFU : 65535U))
      throw Fault(shape.grid[i], " blocks along axis ", i);
  }
  if (const std::uint32_t n_threads = count(shape.block); n_threads == 0 || n_threads > kernel.most_threads)
    throw Fault(n_threads, " threads of at most ", kernel.most_threads);
  if (shape.dynamic_shared > function.most_dynamic_shared)
    throw Fault(shape.dynamic_shared, " bytes of dynamic shared memory, allowed are ", function.most_dynamic_shared);
  if (shape.cluster > (settings().major < 9 ? 1 : function.most_cluster)) throw Fault("clusters of ", shape.cluster);
  if (shape.grid[0] % shape.cluster != 0) throw Fault(shape.grid[0], " blocks in clusters of ", shape.cluster);
  const std::uint32_t n_clusters = count(shape.grid) / shape.cluster;
  const auto n_fit = static_cast<std::uint32_t>(n_resident(shape, n_multiprocessors));
  if (n_fit == 0 || (shape.is_cooperative && n_clusters > n_fit))
    throw Fault("of ", n_clusters, " clusters ", n_fit, " fit the device");
}
/// @throws Fault for an attribute of a launch that is not known or not allowed
LaunchShape shape_of(const cudaLaunchConfig_t& config) {
  const auto extent = [](dim3 d) { return Extent{d.x, d.y, d.z}; };
  LaunchShape shape{extent(config.gridDim), extent(config.blockDim), 1, static_cast<std::uint32_t>(config.dynamicSmemBytes)};
  for (const auto* attribute = config.attrs; attribute != config.attrs + config.numAttrs; ++attribute) {
    if (attribute->id == cudaLaunchAttributeClusterDimension) {
      shape.cluster = attribute->val.clusterDim.x;
      if (attribute->val.clusterDim.y * attribute->val.clusterDim.z != 1 || shape.cluster == 0)
        throw Fault("clusters along other axes than x");
    } else if (attribute->id == cudaLaunchAttributeCooperative) {
      shape.is_cooperative = attribute->val.cooperative != 0;
    } else if (attribute->id != cudaLaunchAttributeProgrammaticStreamSerialization) {
      throw Fault("launch attribute ", static_cast<int>(attribute->id));
    } else if (settings().major < 9) {
      throw Fault("programmatic stream serialization, which takes compute capability 9.0");
    }
  }
  return shape;
}

/// Finds the host's memory of bytes that a copy names. @returns nullptr if they are not in one allocation, or not where they
/// should be
std::byte* bytes_at(const void* pointer, std::size_t n, bool is_on_device) {
  const auto range = memory::find(number(pointer));
  if ((range && !range->holds(number(pointer), n)) || (is_on_device ? !range : range && !range->is_of_host()))
    return nullptr;
  return range ? range->host(number(pointer)) : static_cast<std::byte*>(const_cast<void*>(pointer));
}
cudaError_t copy_rows(void* to, std::size_t pitch, const void* from, std::size_t from_pitch, std::size_t width,
                      std::size_t n_rows, cudaMemcpyKind kind, cudaStream_t stream) {
  if (broken != cudaSuccess || width == 0 || n_rows == 0) return well();
  std::byte* const target = bytes_at(to, (n_rows - 1) * pitch + width, kind != cudaMemcpyDeviceToHost);
  const std::byte* const source = bytes_at(from, (n_rows - 1) * from_pitch + width, kind != cudaMemcpyHostToDevice);
  if (target == nullptr || source == nullptr || (n_rows > 1 && width > std::min(pitch, from_pitch)))
    return give(cudaErrorInvalidValue,
                "a copy of " + std::to_string(width) + " bytes from " + hex(number(from)) + " to " + hex(number(to)));
  of(stream).push([=] {
    for (std::size_t row = 0; row < n_rows && broken == cudaSuccess; ++row)
      std::memmove(target + row * pitch, source + row * from_pitch, width);
  });
  return cudaSuccess;
}
cudaError_t released(const void* pointer) {
  return pointer == nullptr || memory::release(number(pointer))
             ? well()
             : give(cudaErrorInvalidValue, "no allocation begins at " + hex(number(pointer)));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// ---- What nvcc compiles into a program

void** __cudaRegisterFatBinary(void* wrapper) {
  // A header of 16 bytes with the length, then images: each a header with its length, and the bytes. Of kind 1 is PTX.
  const auto* at = *reinterpret_cast<const std::byte* const*>(static_cast<const std::byte*>(wrapper) + 8);
  const auto read = [&]<class T>(std::size_t offset, T) {
    T value;
    std::memcpy(&value, at + offset, sizeof value);
    return value;
  };
  auto* const best = new Image;
  const std::byte* const end = at + 16 + read(8, std::uint64_t{});
  for (at += 16; at < end; at += read(4, std::uint32_t{}) + read(8, std::uint64_t{})) {
    const std::string_view text(reinterpret_cast<const char*>(at) + read(4, std::uint32_t{}), read(8, std::uint64_t{}));
    const int architecture = read(28, std::int32_t{});
    if (read(0, std::uint16_t{}) == 1 && architecture <= 10 * settings().major && architecture > best->architecture)
      *best = {architecture, Module(text)};
  }
  return reinterpret_cast<void**>(best);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** image, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  functions[host].name = name, functions[host].image = *reinterpret_cast<const Image*>(image);
}
/// Programs name these in what nvcc makes for launches by <<<>>>, which none of them has.
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return give(cudaErrorNotSupported); }
unsigned __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { return give(cudaErrorNotSupported); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return give(cudaErrorNotSupported);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* handle, void** arguments) {
  return with_kernel(handle, [&](const Function& function, const Kernel& kernel) {
    const LaunchShape shape = shape_of(*config);
    Stream& stream = of(config->stream);
    check_launch(function, kernel, shape, stream.context.n_multiprocessors);
    std::vector<std::byte> parameters(kernel.parameter_bytes);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
      std::memcpy(&parameters[kernel.parameters[i].first], arguments[i], kernel.parameters[i].second);
    static std::atomic<unsigned> n_launched;
    stream.push([&kernel, shape, parameters] {
      if (broken != cudaSuccess) return;
      try {
        Grid grid(kernel, shape, parameters, settings().seed * 7919 + ++n_launched);
        grid.run(shape.is_cooperative ? count(shape.grid) / shape.cluster : 1 + grid.draw(4));
      } catch (const Fault& fault) {
        broken = give(cudaErrorLaunchFailure, fault.what());
      }
    });
    return cudaSuccess;
  });
}

// ---- Errors, devices, kernels

cudaError_t cudaGetLastError() {
  const cudaError_t status = std::exchange(last_error, cudaSuccess);
  return status != cudaSuccess ? status : broken.load();
}
const char* cudaGetErrorString(cudaError_t status) {
  static thread_local std::string text;
  text = status == cudaErrorMemoryAllocation ? "out of memory"
         : status == cudaErrorLaunchFailure  ? "unspecified launch failure"
                                             : "error " + std::to_string(status);
  return text.c_str();
}
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? (context_of_thread = nullptr, well()) : give(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return give(cudaErrorInvalidDevice);
  const std::map<int, int> known = {{cudaDevAttrMultiProcessorCount, settings().n_multiprocessors},
                                    {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(shared_of_block())},
                                    {cudaDevAttrL2CacheSize, 1 << 20},
                                    {cudaDevAttrComputeCapabilityMajor, settings().major}};
  const auto found = known.find(attribute);
  return found == known.end() ? give(cudaErrorInvalidValue, "device attribute " + std::to_string(attribute))
                              : (*value = found->second, cudaSuccess);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return give(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "GPU in software, as an %c100",
                settings().major >= 9 ? 'H' : 'A');
  properties->major = settings().major, properties->multiProcessorCount = settings().n_multiprocessors;
  properties->totalGlobalMem = memory::kBytesOfDevice, properties->sharedMemPerBlockOptin = shared_of_block();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return then(no_capture("cudaDeviceSynchronize"), [] { return well(); });
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *entry = dlsym(RTLD_DEFAULT, name);
  return *result = *entry != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* handle) {
  return with_kernel(handle, [&](const Function& function, const Kernel&) {
    return *attributes = {}, attributes->ptxVersion = function.image.architecture, cudaSuccess;
  });
}
cudaError_t cudaFuncSetAttribute(const void* handle, cudaFuncAttribute attribute, int value) {
  return with_kernel(handle, [&](Function& function, const Kernel&) {
    const bool is_shared = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (is_shared && value >= 0 && static_cast<unsigned>(value) <= shared_of_block())
      return function.most_dynamic_shared = static_cast<std::uint32_t>(value), cudaSuccess;
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed && settings().major >= 9)
      return function.most_cluster = value != 0 ? 16 : 8, cudaSuccess;
    return give(cudaErrorInvalidValue);
  });
}
cudaError_t cudaOccupancyMaxActiveClusters(int* n, const void* handle, const cudaLaunchConfig_t* config) {
  return with_kernel(handle, [&](const Function& function, const Kernel&) {
    const LaunchShape shape = shape_of(*config);
    if (shape.cluster > function.most_cluster) return give(cudaErrorInvalidClusterSize);
    return *n = n_resident(shape, current_context().n_multiprocessors), cudaSuccess;
  });
}

// ---- Memory

cudaError_t cudaMalloc(void** pointer, std::size_t n) {
  return then(no_capture("cudaMalloc"), [&] {
    const auto address = memory::allocate(n);
    return address ? (*pointer = reinterpret_cast<void*>(*address), cudaSuccess) : give(cudaErrorMemoryAllocation);
  });
}
cudaError_t cudaFree(void* pointer) {
  return then(no_capture("cudaFree"), [=] { return released(pointer); });
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  return *free = memory::n_free(), *all = memory::kBytesOfDevice, well();
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t n, unsigned) {
  return then(no_capture("cudaHostAlloc"), [&] { return memory::pin(*pointer = std::malloc(n), n), cudaSuccess; });
}
cudaError_t cudaFreeHost(void* pointer) {
  return then(no_capture("cudaFreeHost"),
              [=] { return then(released(pointer), [=] { return std::free(pointer), cudaSuccess; }); });
}
cudaError_t cudaHostRegister(void* pointer, std::size_t n, unsigned) { return memory::pin(pointer, n), well(); }
cudaError_t cudaHostUnregister(void* pointer) { return released(pointer); }
cudaError_t cudaHostGetDevicePointer(void** on_device, void* pointer, unsigned) {
  return memory::find(number(pointer)) ? (*on_device = pointer, well()) : give(cudaErrorInvalidValue);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t pitch, const void* from, std::size_t from_pitch, std::size_t width,
                              std::size_t n_rows, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_rows(to, pitch, from, from_pitch, width, n_rows, kind, stream);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_rows(to, n, from, n, n, 1, kind, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t n, cudaStream_t stream) {
  std::byte* const target = bytes_at(to, n, true);
  if (target == nullptr)
    return give(cudaErrorInvalidValue, std::to_string(n) + " bytes at " + hex(number(to)) + " are not there");
  return of(stream).push([=] { std::memset(target, value, n); }), well();
}

/// Programs name these too; there is no other device and no other process.
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return give(cudaErrorInvalidDevice); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return give(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return give(cudaErrorNotSupported); }
cudaError_t cudaIpcCloseMemHandle(void*) { return give(cudaErrorNotSupported); }

// ---- Streams, events, graphs

/// No stream waits for the default one: those that are made without a flag are less strict on a card.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new CUstream_st(current_context()), well();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (of(stream).capture)
    return give(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize of a stream that is captured");
  return well();
}
/// A stream that waits for what is being captured is captured from then on; the order of the records is one that all waits
/// allow. What was recorded otherwise has passed.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->capture && !event->capture->streams.empty()) {
    of(stream).capture = event->capture;
    event->capture->streams.push_back(&of(stream));
  }
  return well();
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return give(cudaErrorStreamCaptureUnsupported, "a capture of the default stream");
  if (mode != cudaStreamCaptureModeThreadLocal || current_capture || stream->capture) return give(cudaErrorIllegalState);
  current_capture = stream->capture = std::make_shared<Capture>(Capture{{}, {stream}});
  return well();
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const auto capture = current_capture;
  *graph = nullptr;
  if (!capture || capture->streams.front() != stream) return give(cudaErrorIllegalState);
  for (Stream* const one : std::exchange(capture->streams, {})) one->capture = nullptr;
  current_capture = nullptr;
  if (capture->is_broken) return give(cudaErrorStreamCaptureInvalidated);
  return *graph = new CUgraph_st{capture}, well();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return *executable = new CUgraphExec_st{{graph->capture}}, well();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return well(); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  of(stream).push([capture = executable->capture] {
    for (const Job& job : capture->jobs) job();
  });
  return well();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return *event = new CUevent_st{{}, (flags & cudaEventDisableTiming) == 0}, well();
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
/// Within a capture an event is a place in it, or, if it is external, recorded anew by every replay.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  event->capture = flags == cudaEventRecordExternal ? nullptr : of(stream).capture;
  if (!event->capture) of(stream).push([event] { event->time = std::chrono::steady_clock::now(); });
  return well();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
cudaError_t cudaEventQuery(cudaEvent_t) { return well(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return well(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (!from->has_time() || !to->has_time()) return give(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return well();
}

}  // extern "C"
#pragma GCC visibility pop
