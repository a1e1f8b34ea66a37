// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CUDA side of streams, events and graphs: see gpu/platform/launch.hpp.
#pragma once

#include "gpu/types/device_error.hpp"
#include "gpu/types/device_traffic.hpp"

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <type_traits>

namespace tree_attn::cuda {

/// Source line of a call, which the emulator reports and a GPU does not.
struct Line {
  static Line current() { return {}; }
};

/// Queue of launches and copies. A default one is the default stream.
using Stream = cudaStream_t;

/// @throws DeviceError with the call and what CUDA says of it
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next to ask takes it for its own
  throw DeviceError(std::string(call) + ": " + cudaGetErrorString(status));
}

/// Counts of the host's allocations, copies and launches.
inline DeviceTraffic& traffic() {
  static DeviceTraffic counts;
  return counts;
}

/// Waits until all that is queued has run. @throws DeviceError of an operation that failed
inline void synchronise(Stream stream, const Line& = {}) { check(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }

/// A stream of its own, which the default stream does not wait for. Its end waits for what is queued.
class OwnedStream {
 public:
  OwnedStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  ~OwnedStream() { finish(), cudaStreamDestroy(stream_); }
  /// Waits for what is queued, where nothing may be thrown.
  void finish() noexcept { cudaStreamSynchronize(stream_); }
  operator Stream() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

/// A stream as a library such as NCCL takes it.
class LibraryStream {
 public:
  explicit LibraryStream(Stream stream) : stream_(stream) {}
  void* handle() { return stream_; }
  /// The stream of a handle; null: the default stream.
  static Stream of(void* handle) { return static_cast<Stream>(handle); }
  /// Returns whether that stream is being captured.
  static bool is_captured(void* handle) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(of(handle), &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

 private:
  Stream stream_;
};

/// A mark in a stream that other streams can wait for.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  /// Records the event after everything queued on the stream so far.
  void record(Stream stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Records the event in a stream that is being captured: every replay records the event anew when it is queued.
  void record_in_graph(Stream stream) {
    check(cudaEventRecordWithFlags(event_, stream, cudaEventRecordExternal), "cudaEventRecordWithFlags");
  }
  /// Orders everything queued on the stream from now on after the event. An event that was never recorded orders nothing.
  void hold(Stream stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  /// Tests whether the stream has passed the event; one that was never recorded is passed.
  bool has_passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status != cudaErrorNotReady) check(status, "cudaEventQuery");
    return status == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Ends the capture of a stream, if it is being captured, and drops what was recorded.
inline void drop_capture(Stream stream) noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();  // of a stream that is not being captured any more
}

/// Operations that are recorded once and queued again as a whole, with the arguments that they were recorded with. The end
/// of a graph does not wait for replays that are under way.
class Graph {
 public:
  Graph() = default;
  /// @param queue queues the operations on the stream; none of them runs
  template <class Queue>
  Graph(Stream stream, const Queue& queue) {
    const Counts before = Counts::now();
    const std::int64_t launched = n_launches_of_thread;
    // Other host threads may take memory meanwhile, and a library may queue from a thread of its own.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      queue();
    } catch (...) {
      drop_capture(stream);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t exec = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
    exec_.reset(exec);
    // Or the first replay would do it, while kernels of other ranks wait for its kernel.
    check(cudaGraphUpload(exec, stream), "cudaGraphUpload");
    // Nothing has run: what was counted counts in every replay.
    const Counts after = Counts::now();
    copied_ = {after.uploads - before.uploads, after.uploaded - before.uploaded, after.downloaded - before.downloaded,
               after.launches - before.launches};
    copied_.count(-1), traffic().n_launches -= copied_.launches, n_launches_of_thread = launched;
  }
  void replay(Stream stream) {
    if (exec_ == nullptr) return;
    check(cudaGraphLaunch(exec_.get(), stream), "cudaGraphLaunch");
    copied_.count(1), ++traffic().n_replays, ++n_launches_of_thread;
  }

 private:
  /// Copies and launches of one replay.
  struct Counts {
    std::int64_t uploads = 0, uploaded = 0, downloaded = 0, launches = 0;
    static Counts now() {
      return {traffic().n_uploads, traffic().bytes_uploaded, traffic().bytes_downloaded, traffic().n_launches};
    }
    void count(std::int64_t times) const {
      traffic().n_uploads += times * uploads, traffic().bytes_uploaded += times * uploaded;
      traffic().bytes_downloaded += times * downloaded;
    }
  };

  struct Destroy {
    void operator()(cudaGraphExec_t exec) const { cudaGraphExecDestroy(exec); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy> exec_;
  Counts copied_;
};

}  // namespace tree_attn::cuda
