// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The host thread that waits for a stream runs it: what it needs, and, as the seed has it, what else may run.
#include "gpu/platform/emulator/queue.hpp"

#include "gpu/platform/device_error.hpp"
#include "gpu/platform/emulator/failure.hpp"
#include "gpu/platform/emulator/global_memory.hpp"
#include "gpu/platform/emulator/random.hpp"
#include "gpu/platform/emulator/sanitizer.hpp"
#include "gpu/platform/emulator/under_way.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

namespace tree_attn::emulated::runtime {
namespace {

/// An operation that has run, as long as one may still run that does not know it.
struct Trace {
  std::string name;
  int stream = 0;
  StreamClock clock;
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

/// An operation that has begun, and not ended: a launch, of which this host thread runs a share.
struct Begun {
  std::shared_ptr<Queue> queue;
  std::shared_ptr<Trace> trace;
  std::unique_ptr<UnderWay> launch;
};

/// What a host thread has begun. It may go on with it in a later wait.
struct Host {
  Host() = default;
  ~Host() {
    const Unwatched unwatched;
    begun.clear();
  }
  Runner runner{Runner::kHost};
  std::list<Begun> begun;
};
Host& host() {
  static thread_local Host own;
  return own;
}

thread_local int the_current_device = 0;
std::atomic<bool> peers[kMaxDevices][kMaxDevices];

Streams& streams() {
  static Streams* const all = new Streams;  // never destroyed: buffers of static storage end after it
  return *all;
}

/// What a destructor could not throw.
thread_local std::exception_ptr kept_error;
thread_local int n_captured = 0;

std::uint32_t at(const StreamClock& clock, int stream) {
  return static_cast<std::size_t>(stream) < clock.size() ? clock[static_cast<std::size_t>(stream)] : 0;
}

void join(StreamClock& clock, const StreamClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

std::string named(const char* word, const Line& line) { return std::string(word) + " at " + to_string(line); }

void throw_kept_error() {
  if (kept_error) std::rethrow_exception(std::exchange(kept_error, nullptr));
}

void check_host(const char* word) {
  if (running_coordinates != nullptr) throw DeviceError(std::string(word) + ": called from a kernel");
  throw_kept_error();
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

/// Forgets operations that all others know: those that are queued, and through the host those that will be.
void forget_known(Streams& all) {
  std::erase_if(all.traces, [&](const auto& trace) {
    const std::uint32_t time = at(trace->clock, trace->stream);
    return at(all.host, trace->stream) >= time && std::all_of(all.queues.begin(), all.queues.end(), [&](const Queue* queue) {
             return std::all_of(queue->operations.begin(), queue->operations.end(),
                                [&](const auto& queued) { return at(queued.clock, trace->stream) >= time; });
           });
  });
}

/// @throws DeviceError if an operation meets another that it does not know, and that does not know it
void check_races(const Streams& all, const Trace& own) {
  for (const auto& other : all.traces) {
    if (at(own.clock, other->stream) >= at(other->clock, other->stream)) continue;
    if (at(other->clock, own.stream) >= at(own.clock, own.stream)) continue;
    const std::string how = own.footprint.conflict(other->footprint, other->name);
    if (!how.empty()) throw DeviceError("race between streams: " + own.name + " " + how + ", and no event orders the two");
  }
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
  queue.is_busy = true;
  const Queue::Queued& first = queue.operations.front();
  Begun& begun = host().begun.emplace_back(Begun{queue.shared_from_this(), nullptr, nullptr});
  if (!all.queues.empty() && !first.operation.after) {
    begun.trace = std::make_shared<Trace>();
    begun.trace->name = first.operation.name, begun.trace->stream = queue.number, begun.trace->clock = first.clock;
  }
  lock.unlock();
  Footprint* const seen = begun.trace ? &begun.trace->footprint : nullptr;
  acquire(&queue);
  if (first.operation.after) acquire(first.operation.after->queue.get());
  if (first.operation.act) first.operation.act(seen);
  if (const LaunchCall* const call = first.operation.launch.get())
    begun.launch = std::make_unique<UnderWay>(call->config, call->how, call->run_thread, queue.launches, seen, queue.device);
}

constexpr const char* kDeadlock = "deadlock: all that could run wait for each other:";

/// Ends what this host thread has begun. @throws DeviceError with who waits where
[[noreturn]] void give_up(const std::string& why) {
  std::string text = why;
  for (Begun& one : host().begun) {
    if (one.launch == nullptr) continue;
    if (host().begun.size() > 1) text += "\n  " + one.queue->operations.front().operation.name + ":";
    text += one.launch->give_up();
  }
  throw DeviceError(text);
}

/// Goes on with what has begun. @returns whether anything has changed
bool advance_all(Streams& all) {
  bool changed = false;
  std::list<Begun>& begun = host().begun;
  for (auto one = begun.begin(); one != begun.end();) {
    if (one->launch && one->launch->advance()) changed = true;
    if (one->launch && one->launch->is_stuck()) give_up(kDeadlock);
    if (one->launch && !one->launch->has_ended()) {
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

/// Whether no helper of what has begun finds anything to do.
bool helpers_are_idle() {
  return std::all_of(host().begun.begin(), host().begun.end(),
                     [](const Begun& one) { return one.launch == nullptr || one.launch->helpers_are_idle(); });
}

/// What may begin now: what `queue` needs; if that is not to be had, or if the seed says so, any of this
/// host thread. @param nothing_else can go on
Queue* choose(const Streams& all, Queue& queue, bool nothing_else) {
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
  // The dice depend on what these streams have done, and on nothing that came before them.
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
  if (ready.empty() || !(any || nothing_else)) return nullptr;
  return seed == 0 ? ready.front() : ready[random.below(static_cast<std::uint32_t>(ready.size()))];
}

/// Runs until a queue has come to a place: what that needs first, and, where nothing can go on, whatever may run.
void run_until(Queue& queue, std::uint64_t place) {
  Streams& all = streams();
  Runner& runner = host().runner;
  const auto ends_at = std::chrono::steady_clock::now() + settings().deadline;
  try {
    for (int n_idle = 0;;) {
      const std::uint64_t looked = runner.look();
      bool changed = advance_all(all);
      // Only then are other streams to begin, and only then may all be stuck.
      const bool nothing_else = !changed && helpers_are_idle();
      {
        std::unique_lock lock(all.mutex);
        if (queue.n_done >= place) break;
        if (Queue* const next = changed ? nullptr : choose(all, queue, nothing_else)) {
          begin_first(all, *next, lock);
          changed = true;
        }
      }
      if (changed) {
        Runner::changed(), runner.is_busy(), n_idle = 0;
        continue;
      }
      if (nothing_else && runner.is_stuck(looked)) give_up(kDeadlock);
      if (std::chrono::steady_clock::now() > ends_at) give_up("the launch has run into its deadline:");
      pause(n_idle++);
    }
  } catch (...) {
    drop_all(all);
    Runner::changed(), runner.is_busy();
    throw;
  }
  Runner::changed(), runner.is_busy();
  acquire(&queue);
}

}  // namespace

int current_device() { return the_current_device; }
void set_device(int device) {
  check_host("set_device");
  if (device < 0 || device >= std::min(settings().n_devices, kMaxDevices)) {
    throw DeviceError("set_device: device " + std::to_string(device) + "; the emulator has " +
                      std::to_string(settings().n_devices));
  }
  the_current_device = device;
}
bool has_peer_access(int device, int other) { return peers[device][other]; }
void enable_peer_access(int device, int other) { peers[device][other] = true; }

Queue& queue_of(Queue* queue) {
  if (queue != nullptr) return *queue;
  static thread_local std::shared_ptr<Queue> own[kMaxDevices];
  std::shared_ptr<Queue>& of_device = own[current_device()];
  if (of_device == nullptr) {
    of_device = std::make_shared<Queue>();
    of_device->owner = std::this_thread::get_id();
    of_device->device = of_device->number = current_device();
  }
  return *of_device;
}

std::shared_ptr<Queue> make_queue() {
  check_host("a stream");
  const Unwatched unwatched;
  auto queue = std::make_shared<Queue>();
  queue->owner = std::this_thread::get_id();
  queue->device = current_device();
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  if (all.free_numbers.empty()) {
    all.free_numbers.push_back(static_cast<int>(all.n_of.size()));
    all.n_of.push_back(0);
  }
  queue->number = all.free_numbers.back();
  all.free_numbers.pop_back();
  all.queues.push_back(queue.get());
  return queue;
}

void end_queue(Queue& queue) noexcept {
  const Unwatched unwatched;
  try {
    run_until(queue, queue.n_queued);
  } catch (...) {
    if (!kept_error) kept_error = std::current_exception();
  }
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  std::erase(all.queues, &queue);
  all.free_numbers.push_back(queue.number);
}

void enqueue(Queue& queue, Operation operation) {
  if (queue.is_captured) {
    queue.captured.push_back(std::move(operation));
    return;
  }
  Streams& all = streams();
  const bool is_default = queue.number < kMaxDevices;
  {
    const std::lock_guard lock(all.mutex);
    join(queue.clock, all.host);
    if (is_default) join(queue.clock, all.default_streams[queue.number]);
    if (operation.after) join(queue.clock, operation.after->clock);
    const auto number = static_cast<std::size_t>(queue.number);
    if (queue.clock.size() <= number) queue.clock.resize(number + 1);
    queue.clock[number] = ++all.n_of[number];
    if (is_default) all.default_streams[queue.number] = queue.clock;
    queue.operations.push_back({std::move(operation), queue.clock});
    ++queue.n_queued;
  }
  if (is_default) run_until(queue, queue.n_queued);
}

void synchronise(Queue& queue, const Line& line) {
  check_host("synchronise");
  if (queue.is_captured) fail(line, "synchronise: the stream is being captured");
  const Unwatched unwatched;
  run_until(queue, queue.n_queued);
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  join(all.host, queue.clock);
  forget_known(all);
}

void synchronise_all() {
  check_host("a copy to the host");
  refuse_in_capture("a copy that blocks");
  const Unwatched unwatched;
  Streams& all = streams();
  std::vector<std::shared_ptr<Queue>> own;
  {
    const std::lock_guard lock(all.mutex);
    for (Queue* queue : all.queues) {
      if (queue->owner == std::this_thread::get_id()) own.push_back(queue->shared_from_this());
    }
  }
  for (const auto& queue : own) run_until(*queue, queue->n_queued);
  const std::lock_guard lock(all.mutex);
  for (const auto& queue : own) join(all.host, queue->clock);
  for (const StreamClock& clock : all.default_streams) join(all.host, clock);
  forget_known(all);
}

void synchronise_all_quietly() noexcept {
  try {
    if (n_captured == 0 && running_coordinates == nullptr) synchronise_all();
  } catch (...) {
    if (!kept_error) kept_error = std::current_exception();
  }
}

Mark mark(Queue& queue, const Line& line) {
  check_host("an event");
  if (queue.is_captured) fail(line, "an event on a stream that is being captured: the emulator captures one stream");
  const Unwatched unwatched;
  const std::lock_guard lock(streams().mutex);
  return {queue.shared_from_this(), queue.n_queued, queue.clock};
}

void hold(Queue& queue, const Mark& mark, const Line& line) {
  check_host("an event");
  if (queue.is_captured) fail(line, "an event on a stream that is being captured: the emulator captures one stream");
  if (mark.queue == nullptr) return;
  const Unwatched unwatched;
  enqueue(queue, {.name = named("an event", line), .after = std::make_shared<Mark>(mark)});
}

void begin_capture(Queue& queue, const Line& line) {
  check_host("a capture");
  if (queue.number < kMaxDevices) fail(line, "a capture: the default stream cannot be captured");
  if (queue.is_captured) fail(line, "a capture: the stream is being captured already");
  queue.is_captured = true;
  ++n_captured;
}

std::vector<Operation> end_capture(Queue& queue) {
  queue.is_captured = false;
  --n_captured;
  return std::exchange(queue.captured, {});
}

void replay(Queue& queue, const std::vector<Operation>& operations, const Line& line) {
  check_host("a replay");
  if (queue.is_captured) fail(line, "a replay: the stream is being captured");
  const Unwatched unwatched;
  for (const Operation& operation : operations) {
    Operation again = operation;
    again.name += ", replayed at " + to_string(line);
    enqueue(queue, std::move(again));
  }
}

void refuse_in_capture(const char* word) {
  if (n_captured > 0) throw DeviceError(std::string(word) + " while this host thread captures a stream");
}

void forget_footprints(std::uintptr_t buffer) noexcept {
  const Unwatched unwatched;
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  for (const auto& trace : all.traces) trace->footprint.forget(buffer);
}

bool queue_launch(Queue& queue, const Launch& config, std::function<void()> run_thread) {
  check_host("launch");
  const Settings how = settings();
  check(config, how);
  if (queue.device != current_device()) {
    throw DeviceError("launch: on a stream of device " + std::to_string(queue.device) + " while device " +
                      std::to_string(current_device()) + " is current");
  }
  const Unwatched unwatched;
  const bool is_captured = queue.is_captured;
  enqueue(queue, {.name = named("launch", config.line),
                  .launch = std::make_shared<LaunchCall>(LaunchCall{config, how, std::move(run_thread)})});
  return !is_captured;
}

void queue_copy(Queue& queue, const char* word, Rows to, Rows from, std::size_t n_bytes, std::size_t n_rows,
                std::function<void()> count, const Line& line) {
  check_host(word);
  const Unwatched unwatched;
  enqueue(queue, {.name = named(word, line), .act = [=, count = std::move(count)](Footprint* seen) {
                    for (std::size_t i = 0; i < n_rows; ++i) {
                      std::byte *const target = to.first + i * to.pitch, *const source = from.first + i * from.pitch;
                      if (seen != nullptr && to.is_device) note_copy(*seen, target, n_bytes, Reach::kWrite, word, line);
                      if (seen != nullptr && from.is_device) note_copy(*seen, source, n_bytes, Reach::kRead, word, line);
                      note_read(source, n_bytes);
                      note_write(target, n_bytes);
                      std::memcpy(target, source, n_bytes);
                    }
                    count();
                  }});
}

void queue_fill(Queue& queue, std::byte* to, unsigned char byte, std::size_t n_bytes, const Line& line) {
  check_host("fill");
  const Unwatched unwatched;
  enqueue(queue, {.name = named("fill", line), .act = [=](Footprint* seen) {
                    if (seen != nullptr) note_copy(*seen, to, n_bytes, Reach::kWrite, "fill", line);
                    note_write(to, n_bytes);
                    std::memset(to, byte, n_bytes);
                  }});
}

}  // namespace tree_attn::emulated::runtime
