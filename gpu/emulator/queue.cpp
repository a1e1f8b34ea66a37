// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Calls of the host on streams: operations queued or recorded, marks, waits.
#include "gpu/emulator/queue.hpp"

#include "gpu/emulator/global_memory.hpp"
#include "gpu/emulator/launch.hpp"
#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/streams.hpp"
#include "gpu/types/device_error.hpp"

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

/// Error that a destructor could not throw.
thread_local std::exception_ptr kept_error;
thread_local int n_captured = 0;
thread_local std::int64_t n_waits = 0;
thread_local bool has_waited = false;  ///< since it has queued something

std::string named(const char* word, const Line& line) { return std::string(word) + " at " + to_string(line); }

void throw_kept_error() {
  if (kept_error) std::rethrow_exception(std::exchange(kept_error, nullptr));
}

void check_host(const char* word) {
  if (running_coordinates != nullptr) throw DeviceError(std::string(word) + ": called from a kernel");
  throw_kept_error();
}
void check_event(const Queue& queue, const Line& line) {
  check_host("an event");
  if (queue.is_captured) fail(line, "an event on a stream that is being captured: the emulator captures one stream");
}

/// Counts a wait for the first n operations of a queue, unless they are done but for orders that hold.
void count_wait(const Queue& queue, std::uint64_t n) {
  const std::lock_guard lock(streams().mutex);
  const auto first = queue.operations.begin();
  const auto n_left =
      std::min(static_cast<std::ptrdiff_t>(std::max(n, queue.n_done) - queue.n_done), std::ssize(queue.operations));
  const bool is_done = std::all_of(first, first + n_left, [](const Queue::Queued& queued) {
    const Operation& each = queued.operation;
    const Mark* const after = each.after.get();
    return !each.launch && !each.act && !each.until && (after == nullptr || after->queue->n_done >= after->n);
  });
  if (!is_done && !std::exchange(has_waited, true)) ++n_waits;
}

/// The host has waited for what a clock knows.
void host_has_waited_for(const StreamClock& clock) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  join(all.host, clock);
  forget_known(all);
}

}  // namespace

std::int64_t waits_of_thread() { return n_waits; }

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

void finish_queue(Queue& queue) noexcept {
  const Unwatched unwatched;
  try {
    run_until(queue, queue.n_queued);
  } catch (...) {
    if (!kept_error) kept_error = std::current_exception();
  }
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  join(all.host, queue.clock);
}

void end_queue(Queue& queue) noexcept {
  finish_queue(queue);
  const Unwatched unwatched;
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
  has_waited = false;
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
  for (const auto& queue : own) count_wait(*queue, queue->n_queued), run_until(*queue, queue->n_queued);
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

}  // namespace runtime

using namespace runtime;

void synchronise(Stream stream, const Line& line) {
  check_host("synchronise");
  Queue& queue = queue_of(stream.queue);
  if (queue.is_captured) fail(line, "synchronise: the stream is being captured");
  const Unwatched unwatched;
  count_wait(queue, queue.n_queued);
  run_until(queue, queue.n_queued);
  host_has_waited_for(queue.clock);
}

void LibraryStream::queue(const char* name, std::vector<OutsideAccess> accesses, std::function<OutsideAdvance()> begin) {
  check_host(name);
  const Unwatched unwatched;
  const Line line = Line::current();
  const auto access = [=, accesses = std::move(accesses)](Footprint* seen) {
    Footprint unseen;
    for (const auto& [memory, n_bytes, writes] : accesses) {
      auto* const at = static_cast<std::byte*>(memory);
      note_copy(seen != nullptr ? *seen : unseen, at, n_bytes, writes ? Reach::kWrite : Reach::kRead, name, line);
      if (writes)
        note_write(at, n_bytes);
      else
        note_read(at, n_bytes);
    }
  };
  enqueue(queue_of(stream_.queue), {.name = named(name, line), .act = access, .begin_until = std::move(begin)});
}

void Event::record(Stream stream, const Line& line) {
  Queue& queue = queue_of(stream.queue);
  check_event(queue, line);
  if (queue.device != device_)
    fail(line, "an event of device " + std::to_string(device_) + " on a stream of device " + std::to_string(queue.device));
  const Unwatched unwatched;
  const std::lock_guard lock(streams().mutex);
  *mark_ = {queue.shared_from_this(), queue.n_queued, queue.clock};
}

void Event::record_in_graph(Stream stream, const Line& line) {
  check_host("an event");
  Queue& queue = queue_of(stream.queue);
  if (!queue.is_captured) fail(line, "an event of a graph: the stream is not being captured");
  enqueue(queue, {.name = named("an event", line), .records = mark_});
}

void Event::hold(Stream stream, const Line& line) const {
  Queue& queue = queue_of(stream.queue);
  check_event(queue, line);
  if (mark_->queue == nullptr) return;
  const Unwatched unwatched;
  enqueue(queue, {.name = named("an event", line), .after = std::make_shared<Mark>(*mark_)});
}

bool Event::has_passed(const Line& line) const {
  if (mark_->queue == nullptr) return true;
  check_event(*mark_->queue, line);
  const Unwatched unwatched;
  count_wait(*mark_->queue, mark_->n);
  // What can run runs; nothing outside the emulator is waited for.
  if (!run_until(*mark_->queue, mark_->n, false)) return false;
  host_has_waited_for(mark_->clock);
  return true;
}

void Graph::replay(Stream stream, const Line& line) {
  check_host("a replay");
  Queue& queue = queue_of(stream.queue);
  if (queue.is_captured) fail(line, "a replay: the stream is being captured");
  const Unwatched unwatched;
  for (Operation again : operations_) {
    again.name += ", replayed at " + to_string(line);
    enqueue(queue, std::move(again));
  }
  ++traffic().n_replays, ++n_launches_of_thread;
}

void copy_rows(Stream stream, CopyKind kind, void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t n_bytes, std::size_t n_rows, const Line& line) {
  const bool is_up = kind == CopyKind::Upload, is_down = kind == CopyKind::Download;
  const char* const word = is_up ? "upload" : is_down ? "download" : "copy";
  check_host(word);
  const Unwatched unwatched;
  const auto host = [=](const void* first, std::size_t pitch) {
    return std::span(static_cast<const std::byte*>(first), (n_rows - 1) * pitch + n_bytes);
  };
  const auto act = [=](Footprint* seen) {
    for (std::size_t i = 0; i < n_rows; ++i) {
      std::byte* const target = static_cast<std::byte*>(to) + i * to_pitch;
      const std::byte* const source = static_cast<const std::byte*>(from) + i * from_pitch;
      if (seen != nullptr && !is_down) note_copy(*seen, target, n_bytes, Reach::kWrite, word, line);
      if (seen != nullptr && !is_up) note_copy(*seen, source, n_bytes, Reach::kRead, word, line);
      note_read(source, n_bytes);
      note_write(target, n_bytes);
      std::memcpy(target, source, n_bytes);
    }
    const auto n_copied = static_cast<std::int64_t>(n_rows * n_bytes);
    if (is_up) ++traffic().n_uploads, traffic().bytes_uploaded += n_copied;
    if (is_down) traffic().bytes_downloaded += n_copied;
  };
  enqueue(queue_of(stream.queue), {.name = named(word, line),
                                   .act = act,
                                   .host = is_up     ? host(from, from_pitch)
                                           : is_down ? host(to, to_pitch)
                                                     : std::span<const std::byte>()});
}

void fill_bytes(Stream stream, void* to, unsigned char byte, std::size_t n_bytes, const Line& line) {
  check_host("fill");
  const Unwatched unwatched;
  const auto act = [=](Footprint* seen) {
    if (seen != nullptr) note_copy(*seen, static_cast<std::byte*>(to), n_bytes, Reach::kWrite, "fill", line);
    note_write(to, n_bytes);
    std::memset(to, byte, n_bytes);
  };
  enqueue(queue_of(stream.queue), {.name = named("fill", line), .act = act});
}

void use_device(int device) {
  settings().n_devices.raise_to(std::min(device + 1, kMaxDevices));
  settings().n_hosts.raise_to(device + 1);
  runtime::set_device(device % kMaxDevices);
}

}  // namespace tree_attn::emulated
