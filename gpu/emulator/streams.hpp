// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief All streams of the process, and what is remembered of operations until all others know them.
#pragma once

#include "gpu/emulator/queue.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace tree_attn::emulated::runtime {

/// An operation that has run, as long as one may still run that does not know it.
struct Trace {
  std::string name;
  int stream = 0;
  StreamClock clock;
  std::span<const std::byte> host;  ///< of the operation
  Footprint footprint;
};

/// All streams of the process.
struct Streams {
  std::mutex mutex;
  std::vector<Queue*> queues;  ///< those that are not default ones, oldest first
  std::vector<std::uint32_t> n_of = std::vector<std::uint32_t>(kMaxDevices);  ///< operations of each number so far
  std::vector<int> free_numbers;
  StreamClock host;  ///< what the host has waited for
  StreamClock default_streams[kMaxDevices];
  std::vector<std::shared_ptr<Trace>> traces;
};
/// Never destroyed: buffers of static storage end after it.
Streams& streams();

/// Number of operations of a stream that a clock knows.
std::uint32_t at(const StreamClock& clock, int stream);
/// Joins into a clock the operations that another one knows.
void join(StreamClock& clock, const StreamClock& other);

/// Gives an operation that is queued now its clock. @pre the lock is held, as for all that follow
void advance_clock(Streams& all, Queue& queue, const Mark* after);
/// Forgets operations that all others know: those that are queued, and through the host those that will be.
void forget_known(Streams& all);
/// @throws DeviceError if an operation meets another that it does not know, and that does not know it
void check_races(const Streams& all, const Trace& own);

/// Runs until a queue has passed a mark: what that needs first, and, where nothing can go on, whatever may run.
/// @pre the lock is not held @throws DeviceError, after which all that this host thread has queued is lost
/// @param waits whether to wait for what is outside the emulator @returns whether the queue has passed the mark
bool run_until(Queue& queue, std::uint64_t mark, bool waits = true);

/// Waits of this host thread for streams of its own that had not done what it asked for. Questions and waits between which
/// it queues nothing are one: a program that polls.
std::int64_t waits_of_thread();

}  // namespace tree_attn::emulated::runtime
