// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Internal: streams as queues of operations that the waiting host thread runs, and the order of operations.
///
/// Vector clocks have an entry for each stream. An operation comes after those before it on its stream, those that the host
/// had waited for when it was queued, and those that an event makes it wait for. Two operations that nothing orders may run
/// at the same time on a device, so their footprints must not meet. All host threads count as one: what one of them has
/// waited for comes before what any of them queues. So races between host threads are not found, and none is reported that
/// a lock prevents.
#pragma once

#include "gpu/emulator/footprint.hpp"
#include "gpu/emulator/grid.hpp"
#include "gpu/emulator/outside.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace tree_attn::emulated::runtime {

struct Queue;

/// For every stream, how many of its first operations come before.
using StreamClock = std::vector<std::uint32_t>;

/// A mark in a queue: all operations queued before it.
struct Mark {
  std::shared_ptr<Queue> queue;
  std::uint64_t n = 0;
  StreamClock clock;
};

/// A kernel and how it is launched.
struct LaunchCall {
  Launch config;
  Settings how;
  std::function<void()> run_thread;
};

/// One thing that a stream is asked to do: a launch, a copy or fill, a wait for another stream, or what a library outside
/// the emulator queues.
struct Operation {
  std::string name;  ///< the function of launch.hpp, and the line of its call
  std::shared_ptr<const LaunchCall> launch{};
  std::function<void(Footprint* seen)> act{};
  std::shared_ptr<const Mark> after{};
  std::function<OutsideAdvance()> begin_until{};  ///< called when it is queued, and in every replay: makes `until`
  OutsideAdvance until{};  ///< called again and again from when the operation begins; it ends when this returns true
  std::shared_ptr<Mark> records{};    ///< written when it is queued, and in every replay
  std::span<const std::byte> host{};  ///< memory of the host that it copies from or to
};

/// A stream.
struct Queue : std::enable_shared_from_this<Queue> {
  struct Queued {
    Operation operation;
    StreamClock clock;  ///< with its own number
  };
  int device = 0;
  int number = 0;         ///< in the clocks; below kMaxDevices: the default stream of that device
  std::thread::id owner;  ///< the host thread that made it
  StreamClock clock;      ///< of what is queued last
  std::deque<Queued> operations;
  std::uint64_t n_queued = 0, n_done = 0;
  bool is_busy = false;  ///< a host thread runs the first of them
  bool is_captured = false;
  std::vector<Operation> captured;
  LaunchHistory launches;  ///< of this stream
};

/// The device that this host thread allocates on, and whose default stream is the default one.
int current_device();
/// @throws DeviceError if there is none
void set_device(int device);
/// See emulated::has_context().
std::atomic<bool>& has_context(int device);
/// The current device is used.
inline void make_context() { has_context(current_device()).store(true, std::memory_order_relaxed); }
/// Tests, or allows from now on, access by kernels of a device to windows of another.
bool has_peer_access(int device, int other);
void enable_peer_access(int device, int other);

/// The queue of a stream; null stands for the default one of this host thread and its device.
Queue& queue_of(Queue* queue);
std::shared_ptr<Queue> make_queue();
/// Runs what is queued. An error is kept, and thrown by the next call that may throw.
void finish_queue(Queue& queue) noexcept;
/// Finishes a queue at its end, called once by its owner: no call waits for it from then on.
void end_queue(Queue& queue) noexcept;

/// Queues an operation, or records it. On the default stream it runs at once. @throws DeviceError
void enqueue(Queue& queue, Operation operation);
/// Runs all queues of this host thread: what a blocking copy to the host, and the end of a buffer, wait for.
void synchronise_all();
/// Runs all queues where nothing may be thrown: an error is kept.
void synchronise_all_quietly() noexcept;

/// From here on the queue records what it is given.
void begin_capture(Queue& queue, const Line& line);
/// Up to here. @returns what was recorded; nothing if the queue does not record
std::vector<Operation> end_capture(Queue& queue);
/// @throws DeviceError if this host thread captures a stream: the call would be lost, or run once and not in every replay
void refuse_in_capture(const char* word);

/// The host writes its own memory. @throws DeviceError if a copy from there or to there may still run
void check_host_write(std::span<const std::byte> bytes, const Line& line);
/// A buffer is freed: its address may be given to another.
void forget_footprints(std::uintptr_t buffer) noexcept;

/// Queues a kernel. @param run_thread what every thread of the grid runs @returns false if it was recorded only
bool queue_launch(Queue& queue, const Launch& config, std::function<void()> run_thread);

}  // namespace tree_attn::emulated::runtime
