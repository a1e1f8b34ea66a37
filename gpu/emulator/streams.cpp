// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Vector clocks over streams (Lamport 1978, Fidge 1988, Mattern 1989), and the races that they show.
#include "gpu/emulator/streams.hpp"

#include "gpu/types/device_error.hpp"

#include <algorithm>

namespace tree_attn::emulated::runtime {

Streams& streams() {
  static Streams* const all = new Streams;
  return *all;
}

std::uint32_t at(const StreamClock& clock, int stream) {
  return static_cast<std::size_t>(stream) < clock.size() ? clock[static_cast<std::size_t>(stream)] : 0;
}

void join(StreamClock& clock, const StreamClock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void advance_clock(Streams& all, Queue& queue, const Mark* after) {
  const bool is_default = queue.number < kMaxDevices;
  join(queue.clock, all.host);
  if (is_default) join(queue.clock, all.default_streams[queue.number]);
  if (after != nullptr) join(queue.clock, after->clock);
  const auto number = static_cast<std::size_t>(queue.number);
  if (queue.clock.size() <= number) queue.clock.resize(number + 1);
  queue.clock[number] = ++all.n_of[number];
  if (is_default) all.default_streams[queue.number] = queue.clock;
}

void forget_known(Streams& all) {
  std::erase_if(all.traces, [&](const auto& trace) {
    const std::uint32_t time = at(trace->clock, trace->stream);
    return at(all.host, trace->stream) >= time && std::all_of(all.queues.begin(), all.queues.end(), [&](const Queue* queue) {
             return std::all_of(queue->operations.begin(), queue->operations.end(),
                                [&](const auto& queued) { return at(queued.clock, trace->stream) >= time; });
           });
  });
}

void check_races(const Streams& all, const Trace& own) {
  for (const auto& other : all.traces) {
    if (at(own.clock, other->stream) >= at(other->clock, other->stream)) continue;
    if (at(other->clock, own.stream) >= at(own.clock, own.stream)) continue;
    const std::string how = own.footprint.conflict(other->footprint, other->name);
    if (!how.empty()) throw DeviceError("race between streams: " + own.name + " " + how + ", and no event orders the two");
  }
}

}  // namespace tree_attn::emulated::runtime
