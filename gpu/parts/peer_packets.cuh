// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Packets of states to the windows of other devices, and from the own one (section 5.3). The protocol is in
/// peers.hpp.
#pragma once

#include "gpu/parts/decode_params.hpp"
#include "gpu/parts/peers.hpp"
#include "gpu/platform/device.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Whether a wait gives up, because it has taken too long, another wait of this device has, or a rank has failed. Checked in
/// one of sixteen polls; the word of the host, which is far away, in one of 1024, about once in a millisecond.
class Patience {
 public:
  __device__ __forceinline__ bool is_over(const Peers& peers, unsigned step, int source, std::int64_t row) {
    if ((++n_polls_ & 0xF) != 0) return false;
    if (load_acquire(&peers.gave_up->n) != 0) return true;
    const bool peer_failed = (n_polls_ & 0x3FF) == 0 && peers.failed != nullptr && load_acquire(peers.failed) != 0;
    const std::uint64_t now = nanoseconds();
    if (since_ == 0) since_ = now;
    if (!peer_failed && (peers.limit_ns == 0 || now - since_ < peers.limit_ns)) return false;
    if (atomic_inc_acq_rel(&peers.gave_up->n, 0xFFFFFFFF) == 0) {
      store_fresh(&peers.gave_up->peer_failed, peer_failed ? 1u : 0u);
      store_fresh(&peers.gave_up->step, step);
      store_fresh(&peers.gave_up->source, static_cast<unsigned>(source));
      store_fresh(&peers.gave_up->row, static_cast<unsigned>(row));
    }
    return true;
  }

 private:
  unsigned n_polls_ = 0;
  std::uint64_t since_ = 0;
};

/// Waits for packets of a step in the own window, and asks for all of them at the same time. If the wait gives up, they are
/// unspecified.
template <int kPackets, class AnyPeers>
__device__ __forceinline__ void receive_packets(const AnyPeers& peers, const Packet* const (&from)[kPackets],
                                                Packet (&packets)[kPackets], unsigned step, int source, std::int64_t row) {
  Patience patience;
  wait_until([&] {
    bool are_there = true;
    TREE_ATTN_UNROLL
    for (int i = 0; i < kPackets; ++i) packets[i] = load_packet(from[i]);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kPackets; ++i) are_there = are_there && packets[i].step == step;
    return are_there || patience.is_over(peers, step, source, row);
  });
}
template <class AnyPeers>
__device__ __forceinline__ Packet receive_packet(const AnyPeers& peers, const Packet* from, unsigned step, int source,
                                                 std::int64_t row) {
  Packet packet[1];
  receive_packets<1>(peers, {from}, packet, step, source, row);
  return packet[0];
}

/// Stores the states of neighbouring rows into the windows of all devices, the next device first and this one last, or of
/// their owners. All threads of the block call it, after a barrier after the writes of `states`.
/// @param states [subtrees of the own range][peers.n_rows][2 + d_v] @param d_v length of a value vector
template <class AnyPeers>
__device__ __forceinline__ void send_states(const AnyPeers& peers, const float* states, int d_v, std::int64_t first_row,
                                            int n_rows) {
  const int n_packets = static_cast<int>(peers.n_packets), size = kValues + d_v;
  const bool is_empty = peers.range[peers.me].empty();
  const int n_of_row = is_empty ? 1 : peers.n_slots(peers.me) * n_packets;
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * n_of_row; i += static_cast<int>(blockDim.x)) {
    const int in_row = i % n_of_row, subtree = in_row / n_packets, first = in_row % n_packets * 3;
    const std::int64_t row = first_row + i / n_of_row;
    const float* const from = states + (subtree * peers.n_rows + row) * size;
    Packet packet{{0, 0, 0}, load_fresh(peers.steps + row) + 1};
    TREE_ATTN_UNROLL
    for (int c = 0; c < 3; ++c) {
      if (!is_empty && first + c < size) packet.element[c] = load_fresh(from + first + c);
    }
    const std::int64_t at = peers.offset(packet.step, peers.me, row) + in_row;
    if (peers.has_owners) {
      store_packet(peers.window[peers.owner(row)] + at, packet);
      continue;
    }
    for (int turn = 1; turn <= peers.n; ++turn) store_packet(peers.window[(peers.me + turn) % peers.n] + at, packet);
  }
}

/// Float c of a packet of a row that its owner sends: of z and then lse, or of its states of the node. Null past the end.
inline __device__ float* element_of_row(const Peers& peers, const DeviceOutput& result, int d_v, std::int64_t row,
                                        int packet, int c) {
  if (result.states == nullptr) {
    const int j = 3 * packet + c;
    return j < d_v ? result.out + row * d_v + j : j == d_v ? result.lse + row : nullptr;
  }
  const int n_packets = static_cast<int>(peers.n_packets), size = kValues + d_v;
  const int subtree = packet / n_packets, j = packet % n_packets * 3 + c;
  return j < size ? result.states + (subtree * peers.n_rows + row) * size + j : nullptr;
}

/// Stores those of neighbouring rows that this device owns, finished or as states of the node, into the windows of all
/// others, unless it has given up a wait: then they are neither. All threads of the block call it, after a barrier after the
/// writes of the rows.
inline __device__ void send_rows(const Peers& peers, const DeviceOutput& result, int d_v, std::int64_t first_row,
                                 int n_rows) {
  const int n_packets = static_cast<int>(peers.n_result);
  if (load_acquire(&peers.gave_up->n) != 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * n_packets; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = first_row + i / n_packets;
    const int in_row = i % n_packets;
    if (!peers.merges(row)) continue;
    Packet packet{{0, 0, 0}, load_fresh(peers.steps + row) + 1};
    TREE_ATTN_UNROLL
    for (int c = 0; c < 3; ++c) {
      const float* const from = element_of_row(peers, result, d_v, row, in_row, c);
      if (from != nullptr) packet.element[c] = load_fresh(from);
    }
    const std::int64_t at = peers.result_offset(row) + in_row;
    for (int turn = 1; turn < peers.n; ++turn) store_packet(peers.window[(peers.me + turn) % peers.n] + at, packet);
  }
}

/// Receives those of the neighbouring rows that others own.
inline __device__ void receive_rows(const Peers& peers, const DeviceOutput& result, int d_v, std::int64_t first_row,
                                    int n_rows) {
  const int n_packets = static_cast<int>(peers.n_result);
  for (int i = static_cast<int>(threadIdx.x); i < n_rows * n_packets; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = first_row + i / n_packets;
    const int in_row = i % n_packets;
    if (peers.merges(row)) continue;
    const unsigned step = load_fresh(peers.steps + row) + 1;
    const Packet* const from = peers.window[peers.me] + peers.result_offset(row) + in_row;
    const Packet packet = receive_packet(peers, from, step, peers.owner(row), row);
    TREE_ATTN_UNROLL
    for (int c = 0; c < 3; ++c) {
      float* const to = element_of_row(peers, result, d_v, row, in_row, c);
      if (to != nullptr) store_fresh(to, packet.element[c]);
    }
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
