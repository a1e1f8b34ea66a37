// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulated side of streams, events and graphs: see gpu/platform/launch.hpp.
///
/// A stream is a queue, and nothing in it runs before the host waits: every operation is as late as it may be. Seed 0 runs
/// what the wait needs and no more; other seeds also run operations of other streams, in any order that events allow. An
/// operation that reads what another stream has not written yet therefore finds NaN, and the clocks of queue.hpp report it
/// even if it does not.
#pragma once

#include "gpu/emulator/outside.hpp"
#include "gpu/emulator/queue.hpp"
#include "gpu/types/device_traffic.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace tree_attn::emulated {

/// Counts of the host's allocations, copies and launches.
inline DeviceTraffic& traffic() {
  static DeviceTraffic counts;
  return counts;
}

/// Queue of launches and copies. A default one is the default stream: the host waits for each of its operations.
struct Stream {
  runtime::Queue* queue = nullptr;
};

/// Waits until all that is queued has run. @throws DeviceError of an operation that failed; the rest is dropped
void synchronise(Stream stream, const Line& line = Line::current());

/// A stream of its own, which the default stream does not wait for. Its end waits for what is queued.
class OwnedStream {
 public:
  OwnedStream() : queue_(runtime::make_queue()) {}
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  ~OwnedStream() { runtime::end_queue(*queue_); }
  /// Waits for what is queued, where nothing may be thrown: an error is thrown by the next call that may.
  void finish() noexcept { runtime::finish_queue(*queue_); }
  operator Stream() const { return {queue_.get()}; }

 private:
  std::shared_ptr<runtime::Queue> queue_;
};

/// A stream as a library outside the emulator takes it.
class LibraryStream final : public OutsideStream {
 public:
  explicit LibraryStream(Stream stream) : stream_(stream) {}
  void* handle() { return static_cast<OutsideStream*>(this); }
  void queue(const char* name, std::vector<OutsideAccess> accesses, std::function<OutsideAdvance()> begin) override;
  bool is_captured() const override { return runtime::queue_of(stream_.queue).is_captured; }
  /// The stream of a handle; null: the default stream.
  static Stream of(void* handle) {
    return handle == nullptr ? Stream{} : static_cast<LibraryStream*>(static_cast<OutsideStream*>(handle))->stream_;
  }
  /// Returns whether that stream is being captured.
  static bool is_captured(void* handle) { return runtime::queue_of(of(handle).queue).is_captured; }

 private:
  Stream stream_;
};

/// A mark in a stream that other streams can wait for: in one of the device that is current when the event is made.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// Records the event after everything queued on the stream so far.
  void record(Stream stream, const Line& line = Line::current());
  /// Records the event in a stream that is being captured: every replay records the event anew when it is queued.
  void record_in_graph(Stream stream, const Line& line = Line::current());
  /// Orders everything queued on the stream from now on after the event. An event that was never recorded orders nothing.
  void hold(Stream stream, const Line& line = Line::current()) const;
  /// Tests whether the stream has passed the event; one that was never recorded is passed. Operations that can run, run
  /// meanwhile.
  bool has_passed(const Line& line = Line::current()) const;

 private:
  int device_ = runtime::current_device();
  std::shared_ptr<runtime::Mark> mark_ = std::make_shared<runtime::Mark>();
};

/// Ends the capture of a stream, if it is being captured, and drops what was recorded.
inline void drop_capture(Stream stream) noexcept { runtime::end_capture(runtime::queue_of(stream.queue)); }

/// Operations that are recorded once and queued again as a whole, with the arguments that they were recorded with. The end
/// of a graph does not wait for replays that are under way.
class Graph {
 public:
  Graph() = default;
  /// @param queue queues the operations on the stream; none of them runs
  template <class Queue>
  Graph(Stream stream, const Queue& queue, const Line& line = Line::current()) {
    runtime::Queue& of = runtime::queue_of(stream.queue);
    runtime::begin_capture(of, line);
    try {
      queue();
    } catch (...) {
      drop_capture(stream);
      throw;
    }
    operations_ = runtime::end_capture(of);
  }
  void replay(Stream stream, const Line& line = Line::current());

 private:
  std::vector<runtime::Operation> operations_;
};

}  // namespace tree_attn::emulated
