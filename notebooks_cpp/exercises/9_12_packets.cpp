// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Exercise 9.12: packets between two devices.
///
/// Expected: Two devices add their vectors, step after step, without the host and without a fence: 16 bytes arrive as a
/// whole, three numbers and their step. A device that runs ahead must not overwrite what the other has not read yet, so a
/// window has two halves.
///
/// Run: ./run exercise 9.12
#include "notebooks_cpp/exercises/puzzle.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

using namespace tree_attn::exercise;

constexpr unsigned kSteps = 4;

/// Data that device d sends: its window, and the newest step.
struct Sent {
  const Packet *begin, *end;
  std::atomic<unsigned> step;
};
inline Sent sent[2];

/// Notes what is sent.
inline void noted_store(Packet* to, const Packet& packet) {
  store_packet(to, packet);
  for (Sent& each : sent)
    if (to >= each.begin && to < each.end) each.step = packet.step;
}
/// Device 1 is late: it reads packets of a step only when one of the next has come from device 0.
inline Packet late_load(const Packet* from) {
  const auto is_of_next = [](const Packet& packet) { return load_packet(&packet).step > sent[1].step; };
  if (from >= sent[0].begin && from < sent[0].end)
    wait_until([&] { return sent[1].step == kSteps || std::any_of(sent[0].begin, sent[0].end, is_of_next); });
  return load_packet(from);
}
#define store_packet noted_store
#define load_packet late_load

#ifdef TREE_ATTN_SOLUTION
#include "notebooks_cpp/exercises/solutions/9_12_packets.hpp"
#else

// Change from here ...
/// out_i = own_i + theirs_i, i < n. `to` is the window of the other device, `from` that of this one, each [2][(n + 2) / 3]
/// packets; the half of a step is step % 2. Send all, then receive. Words: Packet{{a, b, c}, step}, store_packet(),
/// load_packet(), wait_until(ready), load_once(), store_fresh().
inline __global__ void exchange(const float* own, int n, Packet* to, const Packet* from, unsigned step, float* out) {
  // Waits for nothing.
  (void)to, (void)step;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32)
    store_fresh(out + i, load_once(own + i) + load_packet(from + i / 3).element[i % 3]);
}
// ... to here.

#endif

int main() {
  for (const int n : {1, 5, 130}) {
    under_seeds(
        6,
        [&] {
          Devices devices(2);
          std::vector<DeviceBuffer<float>> own, out;
          std::vector<DeviceBuffer<Packet>> windows;
          for (int d = 0; d < 2; ++d) {
            devices.use(d);
            own.push_back(on_device(numbers(int(kSteps) * n, 15 + unsigned(d))));
            out.emplace_back(int(kSteps) * n), windows.emplace_back(2 * ((n + 2) / 3), MemoryUse::Window);
            out[std::size_t(d)].fill(0xFF), windows[std::size_t(d)].fill(0), synchronise(Stream{});
          }
          for (std::size_t d = 0; d < 2; ++d) {
            sent[d].begin = windows[1 - d].data(), sent[d].end = sent[d].begin + windows[1 - d].size();
            sent[d].step = 0;
          }
          // All steps are queued at once: either device may run ahead as far as the packets let it.
          for (int d = 0; d < 2; ++d) {
            devices.use(d);
            for (unsigned step = 1; step <= kSteps; ++step)
              launch(exchange, {.block = {32}}, devices.stream(d), own[std::size_t(d)].data() + (step - 1) * unsigned(n), n,
                     windows[std::size_t(1 - d)].data(), windows[std::size_t(d)].data(), step,
                     out[std::size_t(d)].data() + (step - 1) * unsigned(n));
          }
          devices.wait();
          std::vector<float> want = numbers(int(kSteps) * n, 15);
          const std::vector<float> other = numbers(int(kSteps) * n, 16);
          for (std::size_t i = 0; i < want.size(); ++i) want[i] += other[i];
          for (std::size_t d = 0; d < 2; ++d)
            expect_equal(
                out[d].download(), want,
                std::to_string(kSteps) + " steps of " + std::to_string(n) + " numbers on device " + std::to_string(d));
        },
        2);
  }
  return result();
}
