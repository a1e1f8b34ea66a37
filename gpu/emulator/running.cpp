// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The host thread that waits for a stream runs it: what it needs, and, as the seed has it, what else may run.
#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/random.hpp"
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/streams.hpp"
#include "gpu/emulator/under_way.hpp"
#include "gpu/types/device_error.hpp"

#include <algorithm>
#include <chrono>
#include <list>
#include <thread>
#include <utility>

namespace tree_attn::emulated::runtime {
namespace {

/// An operation that has begun, and not ended: a launch, or one that waits for something outside the emulator.
struct Begun {
  std::shared_ptr<Queue> queue;
  std::shared_ptr<Trace> trace{};
  std::unique_ptr<UnderWay> launch{};
  std::function<bool()> until{};
};

/// Operations that a host thread has begun. It may go on with them in a later wait.
struct Host {
  Host() { adopt_host_thread(fiber); }
  ~Host() {
    const Unwatched unwatched;
    begun.clear();
  }
  Fiber fiber;  ///< of the host thread itself
  std::list<Begun> begun;
};
Host& host() {
  static thread_local Host own;
  return own;
}

bool is_ready(const Queue& queue) {
  if (queue.is_busy || queue.operations.empty()) return false;
  const Mark* const after = queue.operations.front().operation.after.get();
  return after == nullptr || after->queue->n_done >= after->n;
}

/// The queue that has to go on for this one to go on; null if another host thread is at it.
Queue* needed(Queue& queue) {
  Queue* next = &queue;
  while (!is_ready(*next)) {
    if (next->is_busy) return nullptr;
    next = next->operations.front().operation.after->queue.get();
  }
  return next;
}

/// After an error a device does nothing more: what this host thread has begun and queued is lost.
void drop_all(Streams& all) {
  std::list<Begun> begun = std::exchange(host().begun, {});
  for (Begun& one : begun) one.launch.reset();
  const std::lock_guard lock(all.mutex);
  const auto drop = [](Queue& queue) {
    queue.operations.clear();
    queue.n_done = queue.n_queued;
    queue.is_busy = false;
  };
  for (const Begun& one : begun) drop(*one.queue);
  for (Queue* queue : all.queues) {
    if (queue->owner == std::this_thread::get_id() && !queue->is_busy) drop(*queue);
  }
  all.traces.clear();
}

/// Begins the first operation of a queue; all but launches end here. @pre the lock is held, and the operation is ready
void begin_first(Streams& all, Queue& queue, std::unique_lock<std::mutex>& lock) {
  const Queue::Queued& first = queue.operations.front();
  Begun& begun = host().begun.emplace_back(Begun{.queue = queue.shared_from_this()});
  queue.is_busy = true;  // only now: drop_all() resets it for what has begun
  if (!all.queues.empty() && !first.operation.after) {
    begun.trace = std::make_shared<Trace>();
    begun.trace->name = first.operation.name, begun.trace->stream = queue.number, begun.trace->clock = first.clock;
    begun.trace->host = first.operation.host;
  }
  lock.unlock();
  Footprint* const seen = begun.trace ? &begun.trace->footprint : nullptr;
  acquire(&queue);
  if (first.operation.after) acquire(first.operation.after->queue.get());
  if (first.operation.act) first.operation.act(seen);
  begun.until = first.operation.until;
  if (const LaunchCall* const call = first.operation.launch.get())
    begun.launch = std::make_unique<UnderWay>(*call, queue.launches, seen, queue.device);
}

/// Ends the launches of this host thread. @throws DeviceError that names the waiting threads and their lines
[[noreturn]] void give_up(const std::string& why) {
  std::string text = why;
  for (Begun& one : host().begun) {
    if (one.launch == nullptr) continue;
    if (host().begun.size() > 1) text += "\n  " + one.queue->operations.front().operation.name + ":";
    text += one.launch->waits();
  }
  throw DeviceError(text);
}

/// Goes on with what has begun. @returns whether anything has changed
bool advance_all(Streams& all) {
  bool changed = false;
  std::list<Begun>& begun = host().begun;
  for (auto one = begun.begin(); one != begun.end();) {
    if (one->launch && one->launch->advance()) changed = true;
    if ((one->launch && !one->launch->has_ended()) || (one->until && !one->until())) {
      ++one;
      continue;
    }
    if (one->launch) one->launch->end();
    one->launch.reset();
    release(one->queue.get());
    const std::lock_guard lock(all.mutex);
    if (one->trace) check_races(all, *one->trace), all.traces.push_back(one->trace);
    one->queue->operations.pop_front();
    ++one->queue->n_done;
    one->queue->is_busy = false;
    one = begun.erase(one);
    changed = true;
  }
  return changed;
}

/// Tests whether an operation waits for an event outside the emulator.
bool waits_outside() {
  return std::any_of(host().begun.begin(), host().begun.end(), [](const Begun& one) { return one.until != nullptr; });
}

/// Tests whether the begun operations can never go on, now that nothing has changed: neither another host thread, nor
/// another process, nor a library can change anything. Otherwise the deadline ends the wait.
bool is_deadlock() { return !host().begun.empty() && settings().n_hosts == 1 && !others_may_store() && !waits_outside(); }

/// Lets other host threads run. @param n_idle consecutive polls without work
void pause(int n_idle) {
  if (n_idle < 64) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// The queue to run next, where nothing that has begun can go on: one that `queue` depends on or, if none is ready or the
/// seed says so, any queue of this host thread.
Queue* choose(const Streams& all, Queue& queue) {
  const auto may_begin = [](const Queue& one) {
    if (!is_ready(one)) return false;
    const LaunchCall* const call = one.operations.front().operation.launch.get();
    const Residency& device = residency_of(one.device);
    if (call == nullptr || device.n_waiting == 0) return true;
    const int n_blocks = call->config.is_cooperative ? static_cast<int>(n_blocks_of(call->config)) : call->config.cluster;
    return device.n_blocks + n_blocks <= call->how.n_multiprocessors;
  };
  Queue* const next = needed(queue);
  const std::uint64_t seed = settings().seed;
  // The random numbers depend on what these streams have done, and on nothing that came before them.
  std::uint64_t n_done = host().begun.size();
  for (const Queue* other : all.queues) n_done = 31 * n_done + other->n_done;
  Random random(seed + n_done);
  const bool any = seed != 0 && random.below(2) == 0;
  if (next != nullptr && may_begin(*next) && !any) return next;
  std::vector<Queue*> ready;
  for (Queue* other : all.queues) {
    if (other->owner == std::this_thread::get_id() && may_begin(*other)) ready.push_back(other);
  }
  if (next != nullptr && may_begin(*next) && ready.empty()) return next;
  if (ready.empty()) return nullptr;
  return seed == 0 ? ready.front() : ready[random.below(static_cast<std::uint32_t>(ready.size()))];
}

}  // namespace

bool run_until(Queue& queue, std::uint64_t mark, bool waits) {
  Streams& all = streams();
  const auto now = [] { return std::chrono::steady_clock::now(); };
  auto ends_at = now() + settings().deadline;
  try {
    for (int n_idle = 0;;) {
      bool changed = advance_all(all);
      {
        std::unique_lock lock(all.mutex);
        if (queue.n_done >= mark) break;
        if (Queue* const next = changed ? nullptr : choose(all, queue)) {
          begin_first(all, *next, lock);
          changed = true;
        }
      }
      if (changed) {
        n_idle = 0;
        ends_at = now() + settings().deadline;
        continue;
      }
      if (!waits && waits_outside()) break;
      if (is_deadlock()) give_up("deadlock: all that could run wait for each other:");
      if (now() > ends_at) give_up("the launch has run into its deadline:");
      pause(n_idle++);
    }
  } catch (...) {
    drop_all(all);
    throw;
  }
  acquire(&queue);
  const std::lock_guard lock(all.mutex);
  return queue.n_done >= mark;
}

}  // namespace tree_attn::emulated::runtime
