// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streams, events and captures. What is queued is done before the call returns, so kernels that wait for each other
/// have to be launched by different host threads.
#pragma once

#include "tests/gpu/soft_gpu/machine.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tree_attn::soft_gpu {

using Job = std::function<void()>;
struct Stream;

/// Operations that are recorded instead of run. It forbids calls of its host thread alone.
struct Capture {
  std::vector<Job> jobs;
  std::vector<Stream*> streams;  ///< its origin, and those that have joined it; none once it has ended
  bool is_broken = false;        ///< by a call that is not allowed meanwhile
};
/// Capture that this host thread has begun and not ended.
inline thread_local std::shared_ptr<Capture> current_capture;

struct Context;
struct Stream {
  Context& context;
  std::shared_ptr<Capture> capture;
  std::mutex mutex;  ///< held while a job is done: host threads that share the stream take turns

  explicit Stream(Context& of) : context(of) {}
  /// Does a job; if the stream is being captured, records it.
  void push(const Job& job) {
    if (capture) return capture->jobs.push_back(job);
    const std::lock_guard lock(mutex);
    job();
  }
};

/// The device, or a part of it (a green context), with the stream that is used where none is named.
struct Context {
  int n_multiprocessors;
  bool is_part;
  Stream default_stream{*this};
};
/// The part that this host thread has chosen; nullptr: the whole device.
inline thread_local Context* context_of_thread = nullptr;
inline Context& current_context() {
  static Context* const whole = new Context{settings().n_multiprocessors, false};  // outlives what programs end with
  return context_of_thread != nullptr ? *context_of_thread : *whole;
}

/// A place in a stream.
struct Event {
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Capture> capture;  ///< that it was recorded in as a place
};

}  // namespace tree_attn::soft_gpu
