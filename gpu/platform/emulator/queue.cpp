// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the host asks of streams: operations queued or recorded, marks, waits.
#include "tree_attn/gpu/platform/emulator/queue.hpp"

#include "tree_attn/gpu/platform/device_error.hpp"
#include "tree_attn/gpu/platform/emulator/global_memory.hpp"
#include "tree_attn/gpu/platform/emulator/launch.hpp"
#include "tree_attn/gpu/platform/emulator/sanitizer.hpp"
#include "tree_attn/gpu/platform/emulator/streams.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

namespace tree_attn::emulated {
namespace runtime {
namespace {

thread_local int the_current_device = 0;
std::atomic<bool> peers[kMaxDevices][kMaxDevices];

/// What a destructor could not throw.
thread_local std::exception_ptr kept_error;
thread_local int n_captured = 0;

std::string named(const char* word, const Line& line) { return std::string(word) + " at " + to_string(line); }

void throw_kept_error() {
  if (kept_error) std::rethrow_exception(std::exchange(kept_error, nullptr));
}

void check_host(const char* word) {
  if (running_coordinates != nullptr) throw DeviceError(std::string(word) + ": called from a kernel");
  throw_kept_error();
}

}  // namespace

int current_device() { return the_current_device; }
void set_device(int device) {
  check_host("set_device");
  if (device < 0 || device >= std::min<int>(settings().n_devices, kMaxDevices)) {
    throw DeviceError("set_device: device " + std::to_string(device) + "; the emulator has " +
                      std::to_string(settings().n_devices));
  }
  the_current_device = device;
  make_context();
}
std::atomic<bool>& has_context(int device) {
  static std::atomic<bool> of_device[kMaxDevices];
  return of_device[device];
}
bool has_peer_access(int device, int other) { return peers[device][other]; }
void enable_peer_access(int device, int other) { peers[device][other] = true; }

Queue& queue_of(Queue* queue) {
  if (queue != nullptr) return *queue;
  make_context();
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
  make_context();
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
  join(all.host, queue.clock);
  // Destruction may run twice; the number is released only once.
  if (std::erase(all.queues, &queue) > 0) all.free_numbers.push_back(queue.number);
}

void enqueue(Queue& queue, Operation operation) {
  if (queue.is_captured) {
    queue.captured.push_back(std::move(operation));
    return;
  }
  Streams& all = streams();
  const bool is_default = queue.number < kMaxDevices;
  // A queued operation does not own the resources of its graph.
  if (operation.begin_until) operation.until = std::exchange(operation.begin_until, {})();
  {
    const std::lock_guard lock(all.mutex);
    advance_clock(all, queue, operation.after.get());
    ++queue.n_queued;
    if (operation.records) *operation.records = {queue.shared_from_this(), queue.n_queued, queue.clock};
    queue.operations.push_back({std::move(operation), queue.clock});
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

bool has_passed(const Mark& mark, const Line& line) {
  check_host("an event");
  if (mark.queue == nullptr) return true;
  if (mark.queue->is_captured) fail(line, "an event on a stream that is being captured: the emulator captures one stream");
  const Unwatched unwatched;
  if (!run_until(*mark.queue, mark.n, false)) return false;
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  join(all.host, mark.clock);
  forget_known(all);
  return true;
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

void record_in_graph(Queue& queue, std::shared_ptr<Mark> mark, const Line& line) {
  check_host("an event");
  if (!queue.is_captured) fail(line, "an event of a graph: the stream is not being captured");
  enqueue(queue, {.name = named("an event", line), .records = std::move(mark)});
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
  if (!std::exchange(queue.is_captured, false)) return {};
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

void check_host_write(std::span<const std::byte> bytes, const Line& line) {
  check_host("a write of the host");
  const Unwatched unwatched;
  const auto check = [&](const std::string& name, std::span<const std::byte> copied) {
    if (copied.data() >= bytes.data() + bytes.size() || bytes.data() >= copied.data() + copied.size()) return;
    fail(line, "the host writes memory of " + name + ", and has not waited for it");
  };
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  for (const Queue* queue : all.queues) {
    for (const Queue::Queued& queued : queue->operations) check(queued.operation.name, queued.operation.host);
  }
  // Those that have run, because something else has waited for them.
  for (const auto& trace : all.traces) {
    if (at(all.host, trace->stream) < at(trace->clock, trace->stream)) check(trace->name, trace->host);
  }
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
  const auto host = [=](const Rows& rows) {
    return rows.is_device ? std::span<const std::byte>() : std::span(rows.first, (n_rows - 1) * rows.pitch + n_bytes);
  };
  enqueue(queue, {.name = named(word, line),
                  .act =
                      [=, count = std::move(count)](Footprint* seen) {
                        for (std::size_t i = 0; i < n_rows; ++i) {
                          std::byte *const target = to.first + i * to.pitch, *const source = from.first + i * from.pitch;
                          if (seen != nullptr && to.is_device) note_copy(*seen, target, n_bytes, Reach::kWrite, word, line);
                          if (seen != nullptr && from.is_device) note_copy(*seen, source, n_bytes, Reach::kRead, word, line);
                          note_read(source, n_bytes);
                          note_write(target, n_bytes);
                          std::memcpy(target, source, n_bytes);
                        }
                        count();
                      },
                  .host = from.is_device ? host(to) : host(from)});
}

void enqueue_outside(Queue& queue, const char* word, std::vector<OutsideAccess> accesses,
                     std::function<OutsideAdvance()> begin, const Line& line) {
  check_host(word);
  const Unwatched unwatched;
  enqueue(queue, {.name = named(word, line),
                  .act =
                      [=, accesses = std::move(accesses)](Footprint* seen) {
                        Footprint unseen;
                        for (const OutsideAccess& access : accesses) {
                          auto* const at = static_cast<std::byte*>(access.at);
                          const Reach reach = access.writes ? Reach::kWrite : Reach::kRead;
                          note_copy(seen != nullptr ? *seen : unseen, at, access.n_bytes, reach, word, line);
                          if (access.writes)
                            note_write(at, access.n_bytes);
                          else
                            note_read(at, access.n_bytes);
                        }
                      },
                  .begin_until = std::move(begin)});
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

}  // namespace runtime

void use_device(int device) {
  settings().n_devices.raise_to(std::min(device + 1, kMaxDevices));
  settings().n_hosts.raise_to(device + 1);
  set_device(device % kMaxDevices);
}

}  // namespace tree_attn::emulated
