// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.12: packets between two devices.
///
/// Hint: The half of a window is step % 2, so that a step does not overwrite the one before it. A packet has arrived
/// when it has the number of this step; send all before the first wait.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// out_i = own_i + theirs_i, i < n. `to` is the window of the other device, `from` that of this one, each [2][(n + 2) / 3]
/// packets; the half of a step is step % 2. Send all, then receive. Words: Packet{{a, b, c}, step}, store_packet(),
/// load_packet(), wait_until(ready), load_once(), store_fresh().
inline __global__ void exchange(const float* own, int n, Packet* to, const Packet* from, unsigned step, float* out) {
  const int n_packets = (n + 2) / 3, half = static_cast<int>(step % 2) * n_packets;
  for (int i = static_cast<int>(threadIdx.x); i < n_packets; i += 32) {
    Packet packet{{}, step};
    for (int c = 0; c < 3 && 3 * i + c < n; ++c) packet.element[c] = load_once(own + 3 * i + c);
    store_packet(to + half + i, packet);
  }
  for (int i = static_cast<int>(threadIdx.x); i < n_packets; i += 32) {
    Packet packet;
    wait_until([&] { return (packet = load_packet(from + half + i)).step == step; });
    for (int c = 0; c < 3 && 3 * i + c < n; ++c)
      store_fresh(out + 3 * i + c, load_once(own + 3 * i + c) + packet.element[c]);
  }
}
