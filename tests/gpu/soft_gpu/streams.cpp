// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The threads of streams, and the order that events and captures give to what is queued.
#include "tree_attn/tests/gpu/soft_gpu/streams.hpp"

#include "tree_attn/tests/gpu/soft_gpu/machine.hpp"

#include <algorithm>
#include <set>

namespace tree_attn::soft_gpu {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<Stream*> streams;
  std::vector<std::shared_ptr<Capture>> captures;
};
Registry& registry() {
  static Registry* const only = new Registry;  // streams end with the process, whenever that is
  return *only;
}

thread_local Context* context_of_thread = nullptr;

}  // namespace

Context& primary_context() {
  static auto* const only = [] {
    auto* const made = new Context{settings().n_multiprocessors, false, nullptr};
    made->default_stream = std::make_unique<Stream>(*made);
    return made;
  }();
  return *only;
}
Context& current_context() { return context_of_thread != nullptr ? *context_of_thread : primary_context(); }
void set_context(Context& context) { context_of_thread = &context; }

Stream::Stream(Context& of) : context(of) {
  const std::lock_guard lock(registry().mutex);
  registry().streams.insert(this);
}
Stream::~Stream() {
  std::unique_lock own(mutex_);
  ends_ = true;
  own.unlock();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(registry().mutex);
  registry().streams.erase(this);
}

void Stream::push(Job job) {
  if (capture) return capture->jobs.push_back(std::move(job));
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
}
void Stream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !jobs_.empty() || ends_; });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front(), is_busy_ = true;
    lock.unlock();
    job();
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}
void Stream::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !is_busy_; });
}
void wait_for_streams(const Context& context) {
  std::vector<Stream*> own;
  {
    const std::lock_guard lock(registry().mutex);
    for (Stream* const stream : registry().streams)
      if (&stream->context == &context) own.push_back(stream);
  }
  for (Stream* const stream : own) stream->wait();
}

void record(const std::shared_ptr<Event>& event, Stream& stream, bool in_graph) {
  if (stream.capture && !in_graph) {
    event->capture = stream.capture;
    return;
  }
  event->capture = nullptr;
  const auto number = [event] {
    const std::lock_guard lock(event->mutex);
    return ++event->n_recorded;
  };
  const auto pass = [event](std::uint64_t recorded) {
    const std::lock_guard lock(event->mutex);
    event->n_passed = std::max(event->n_passed, recorded), event->time = std::chrono::steady_clock::now();
    event->changed.notify_all();
  };
  if (in_graph && stream.capture) return stream.push([=] { pass(number()); });
  stream.push([=, recorded = number()] { pass(recorded); });
}
void hold(const std::shared_ptr<Event>& event, Stream& stream) {
  // A stream that waits for what is being captured is captured from then on; the order of the records is one that all waits
  // allow.
  if (event->capture && event->capture->origin != nullptr) {
    stream.capture = event->capture;
    return;
  }
  stream.push([event, number = event->recorded()] { event->wait(number); });
}

bool breaks_capture() {
  const std::lock_guard lock(registry().mutex);
  bool breaks = false;
  for (const auto& capture : registry().captures) {
    if (capture->is_global || capture->thread == std::this_thread::get_id()) capture->is_broken = breaks = true;
  }
  return breaks;
}
bool begin_capture(Stream& stream, bool is_global) {
  const std::lock_guard lock(registry().mutex);
  if (stream.capture) return false;
  stream.capture = std::make_shared<Capture>(Capture{{}, &stream, std::this_thread::get_id(), is_global, false});
  registry().captures.push_back(stream.capture);
  return true;
}
std::shared_ptr<Capture> end_capture(Stream& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture || capture->origin != &stream) return nullptr;
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().captures, capture);
  for (Stream* const one : registry().streams)
    if (one->capture == capture) one->capture = nullptr;
  capture->origin = nullptr;
  return capture;
}

}  // namespace tree_attn::soft_gpu
