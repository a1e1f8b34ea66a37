// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A solution of exercise 9.13: two nodes of two devices: NCCL's two levels.
///
/// Hint: Stage 0: the half that the other device of the node finishes goes there. Stage 1: the sum of a node for its
/// half goes to the other node, and both add. Stage 2: the finished half goes back to the other device of the node.
#pragma once

#include "notebooks_cpp/exercises/puzzle.hpp"

/// out_i = (x0_i + x1_i) + (x2_i + x3_i), i < 2 h, h a multiple of 3. Device `me` is place me % 2 of node me / 2 and
/// finishes half me % 2. window[d] is that of device d, [3][h / 3] packets: stage 0 is from the other device of its node,
/// stage 1 from the other node, stage 2 from the other device of its node again. One warp. Words: Packet, store_packet(),
/// load_packet(), wait_until(), load_once(), store_fresh(), load_fresh().
inline __global__ void two_levels(int me, const float* own, int h, Windows window, float* out) {
  const int mate = me ^ 1, partner = me ^ 2, mine = me % 2 * h, theirs = h - mine;
  const auto send = [&](int to, int stage, const Packet& packet, int i) {
    store_packet(window.of[to] + stage * (h / 3) + i, packet);
  };
  const auto receive = [&](int stage, int i) {
    Packet packet;
    wait_until([&] { return (packet = load_packet(window.of[me] + stage * (h / 3) + i)).step == 1; });
    return packet;
  };
  // A lane has the same packets in every stage. An addition commutes in bits: only the grouping must be the same everywhere.
  for (int i = static_cast<int>(threadIdx.x); i < h / 3; i += 32) {
    Packet packet{{}, 1};
    for (int c = 0; c < 3; ++c) packet.element[c] = load_once(own + theirs + 3 * i + c);
    send(mate, 0, packet, i);
  }
  for (int i = static_cast<int>(threadIdx.x); i < h / 3; i += 32) {
    Packet packet = receive(0, i);
    for (int c = 0; c < 3; ++c) packet.element[c] += load_once(own + mine + 3 * i + c);
    send(partner, 1, packet, i);
    const Packet other = receive(1, i);
    for (int c = 0; c < 3; ++c) store_fresh(out + mine + 3 * i + c, packet.element[c] += other.element[c]);
    send(mate, 2, packet, i);
    const Packet finished = receive(2, i);
    for (int c = 0; c < 3; ++c) store_fresh(out + theirs + 3 * i + c, finished.element[c]);
  }
}
