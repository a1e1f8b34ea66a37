// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streams, events and captures: each stream has a thread, which does what is queued while the host goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tree_attn::soft_gpu {

using Job = std::function<void()>;
class Stream;

/// The device, or a part of it (a green context), with the stream that is used where none is named.
struct Context {
  int n_multiprocessors = 0;
  bool is_part = false;
  std::unique_ptr<Stream> default_stream;
};

/// That of this host thread: the whole device, or the part that set_context() has chosen.
Context& current_context();
void set_context(Context& context);
Context& primary_context();

/// What is recorded instead of being run.
struct Capture {
  std::vector<Job> jobs;
  Stream* origin = nullptr;
  std::thread::id thread;
  bool is_global = false;  ///< whether it forbids calls of other threads too
  bool is_broken = false;  ///< by a call that is not allowed meanwhile
};

class Stream {
 public:
  explicit Stream(Context& of);
  /// Does what is queued first.
  ~Stream();
  /// Queues a job; if the stream is being captured, records it.
  void push(Job job);
  /// Returns when all that has been queued is done.
  void wait();

  Context& context;
  std::shared_ptr<Capture> capture;

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool is_busy_ = false, ends_ = false;
  std::thread thread_;
};

/// A place in a stream, as often as it is recorded. Jobs keep what they need of it when it is destroyed.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t n_recorded = 0, n_passed = 0;
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<Capture> capture;  ///< that it was recorded in, while that goes on

  std::uint64_t recorded() {
    const std::lock_guard lock(mutex);
    return n_recorded;
  }
  void wait(std::uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return n_passed >= number; });
  }
};
/// Records an event; within a capture either as a place in it, or, `in_graph`, to be recorded anew by every replay.
void record(const std::shared_ptr<Event>& event, Stream& stream, bool in_graph);
/// What is queued on the stream from now on comes after an event.
void hold(const std::shared_ptr<Event>& event, Stream& stream);

/// Waits for all streams of a context.
void wait_for_streams(const Context& context);
/// Whether a capture forbids this thread what waits for a device or changes its memory; that breaks it.
bool breaks_capture();
/// Starts a capture and ends it. @returns nullptr if the stream is captured already, or not
bool begin_capture(Stream& stream, bool is_global);
std::shared_ptr<Capture> end_capture(Stream& stream);

}  // namespace tree_attn::soft_gpu
