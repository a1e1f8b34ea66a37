// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch that combines the states of units on several devices: it sends the states of its rows, in packets to
/// the windows of the devices, and then receives and merges those of all devices (section 5.3, Alg. 3). The protocol is in
/// peers.hpp.
#pragma once

#include "gpu/engine/combine.cuh"
#include "gpu/engine/params.hpp"
#include "gpu/engine/peers.hpp"
#include "gpu/platform/device.hpp"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Says when a wait gives up, because it has taken too long, another wait of this device has, or a rank has failed. Checked
/// in one of sixteen polls; the word of the host, which is far away, in one of 1024, about once in a millisecond.
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

/// Stores states of a row into the windows of all devices, the next device first and this one last. All threads of the block
/// call it, after a barrier after the writes of the states. A device without keys sends one packet a row.
/// @param element (subtree, c) -> element c of [2 + d_v] of a state @param first, n subtrees of the own range
template <class AnyPeers, class Element>
__device__ __forceinline__ void send_states(const AnyPeers& peers, const Element& element, int d_v, std::int64_t row,
                                            int first, int n) {
  const int n_packets = static_cast<int>(peers.n_packets), size = kValues + d_v;
  const bool is_empty = peers.range[peers.me].empty();
  const unsigned step = load_fresh(peers.steps + row) + 1;
  Packet* const* const windows = peers.window;
  const std::int64_t at = peers.offset(step, peers.me, row) + std::int64_t{first} * n_packets;
  for (int i = static_cast<int>(threadIdx.x); i < (is_empty ? 1 : n * n_packets); i += static_cast<int>(blockDim.x)) {
    const int subtree = first + i / n_packets, first_element = i % n_packets * 3;
    Packet packet{{0, 0, 0}, step};
    TREE_ATTN_UNROLL
    for (int c = 0; c < 3; ++c)
      if (!is_empty && first_element + c < size) packet.element[c] = element(subtree, first_element + c);
    for (int turn = 1; turn <= peers.n; ++turn) store_packet(windows[(peers.me + turn) % peers.n] + at + i, packet);
  }
}

/// Packets that a lane asks for at once, and states of a row that a block receives before it merges them.
inline constexpr int kPacketsAtOnce = 4, kReceived = 8;

/// Receives a state into shared memory [2 + d_v], by one warp. @param from its first packet in the own window
template <class AnyPeers>
__device__ __forceinline__ void receive_state(const AnyPeers& peers, const Packet* from, unsigned step, int source,
                                              std::int64_t row, int d_v, Shared<float> to) {
  const int n_packets = static_cast<int>(peers.n_packets), lane = static_cast<int>(threadIdx.x % kWarp);
  TREE_ATTN_LOOP
  for (int first = lane; first < n_packets; first += kPacketsAtOnce * kWarp) {
    const Packet* at[kPacketsAtOnce];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kPacketsAtOnce; ++i) at[i] = from + (first + i * kWarp < n_packets ? first + i * kWarp : first);
    Packet packets[kPacketsAtOnce];
    receive_packets(peers, at, packets, step, source, row);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kPacketsAtOnce; ++i) {
      const int packet = first + i * kWarp;
      TREE_ATTN_UNROLL
      for (int c = 0; c < 3; ++c)
        if (packet < n_packets && 3 * packet + c < kValues + d_v) to[3 * packet + c] = packets[i].element[c];
    }
  }
}

/// The subtrees of all devices, in the order of their ranges.
class Sources {
 public:
  template <class AnyPeers>
  __device__ __forceinline__ explicit Sources(const AnyPeers& peers) : rest_(peers.range[0]) {}
  int device = 0, subtree = 0;  ///< a subtree of a device's range; of an empty range there is none, and one packet
  /// The leaf that it begins with.
  __device__ __forceinline__ Count slot() const { return Count(leaf_at(rest_.begin)); }
  /// Goes on to the next. @returns whether there is one
  template <class AnyPeers>
  __device__ __forceinline__ bool advance(const AnyPeers& peers) {
    if (!rest_.empty()) rest_.begin = first_subtree(rest_.begin, rest_.end).end(), ++subtree;
    if (!rest_.empty()) return true;
    if (device + 1 == peers.n) return false;
    rest_ = peers.range[++device], subtree = 0;
    return true;
  }

 private:
  KeyRange rest_;
};

/// Floats of a state that is sent, or received, in shared memory.
TREE_ATTN_HOST_DEVICE constexpr int state_floats(int d_v) { return (kValues + d_v + 3) / 4 * 4; }
/// States of a slice that may wait while the states of all devices are merged: one for each bit of a slot, and one more.
TREE_ATTN_HOST_DEVICE inline int most_waiting(const Peers& peers) {
  int n = 2;
  for (std::int64_t last = leaf_at(peers.range_of_all().end); last > 0; last >>= 1) ++n;
  return n;
}
/// 16-byte vectors of shared memory in which states wait: of the units of a row, by warp, or of all devices, by slice.
TREE_ATTN_HOST_DEVICE inline int waiting_vectors(const Peers& peers, const UnitMemory& memory, int n_warps, int d_v) {
  const int of_units = n_warps * memory.n_parked * kParkedState,
            of_devices = slices_of(d_v) * most_waiting(peers) * kParkedState;
  return of_units > of_devices ? of_units : of_devices;
}
inline std::size_t exchange_bytes(const Peers& peers, const UnitMemory& memory, int n_warps, int d_v) {
  return static_cast<std::size_t>(waiting_vectors(peers, memory, n_warps, d_v)) * sizeof(Bytes16) + 128 +
         static_cast<std::size_t>(kReceived * state_floats(d_v)) * sizeof(float);
}

/// Notes of exchange_states(), which tests take; the library takes none.
struct NoNotes {
  __device__ __forceinline__ void combined() const {}
  __device__ __forceinline__ void sent() const {}
  __device__ __forceinline__ void merged() const {}
};

/// A block of exchange_states().
/// @tparam Tile as combine() has it @tparam AnyPeers Peers, or what has its own receive_packets()
/// @param notes what a block notes, once each
/// @paper{alg_3, Alg. 3}
template <class Tile, class AnyPeers, class Notes>
__device__ __forceinline__ void exchange_block(const DecodeParams& params, const UnitMemory& memory, const AnyPeers& peers,
                                               const DeviceOutput& result, const Notes& notes) {
  Arena arena;
  const int lane = static_cast<int>(threadIdx.x % kWarp), warp = warp_uniform(static_cast<int>(threadIdx.x / kWarp)),
            n_warps = static_cast<int>(blockDim.x / kWarp), d_v = params.d_v, size = state_floats(d_v),
            n_slices = slices_of(d_v), n_waiting = most_waiting(peers);
  const Shared<Bytes16> shared = arena.take<Bytes16>(waiting_vectors(peers, memory, n_warps, d_v));
  const Shared<float> states = arena.take<float>(kReceived * size);
  wait_for_previous_launch();

  // Combine and send all rows of this block, before any wait.
  const KeyRange own = peers.range[peers.me];
  const int n_subtrees_of_own = own.empty() ? 1 : peers.n_slots(peers.me);
  const Division all(params, memory.rule, memory.log_rows, WarpScan{});
  TREE_ATTN_LOOP
  for (Count row = blockIdx.x; row < peers.n_rows; row += gridDim.x) {
    const RowOfBlock of(params, all, row);
    TREE_ATTN_LOOP
    for (int i = 0; i < n_subtrees_of_own; ++i) {
      const CombinedSubtree combined = own.empty() ? CombinedSubtree{} : CombinedSubtree::covering(own, i);
      TREE_ATTN_LOOP
      for (int slice = 0; slice < n_slices; ++slice) {
        SliceState state;
        const int component = slice * kSlice + 4 * lane;
        combine_subtree<Tile>(params, of, row, memory, combined, component, shared, state);
        if (warp == 0) {
          if (component == 0) states[kShift] = state.shift, states[kSum] = state.sum;
          TREE_ATTN_UNROLL
          for (int c = 0; c < 4; ++c)
            if (component + c < d_v) states[kValues + component + c] = state.n[c];
        }
        __syncthreads();
      }
      if (row == blockIdx.x && i == 0) notes.combined();
      send_states(
          peers, [&](int, int c) { return float(states[c]); }, d_v, row, i, 1);
      __syncthreads();
    }
  }
  notes.sent();

  // Receive the states of all devices, and merge them as a binary counter: each warp a slice.
  TREE_ATTN_LOOP
  for (Count row = blockIdx.x; row < peers.n_rows; row += gridDim.x) {
    const unsigned step = load_fresh(peers.steps + row) + 1;
    const ParkedStates parked(shared + (warp < n_slices ? warp : 0) * (n_waiting * kParkedState), lane);
    const int component = warp * kSlice + 4 * lane;
    SliceState state;
    set_empty(state);
    Count waits = 0, slot = 0;
    int n_parked = 0, n_merged = 0;
    Sources to_receive(peers), to_merge(peers);
    bool has_more = true;
    TREE_ATTN_LOOP
    while (has_more) {
      // As many as there is room for, each by one warp.
      int n = 0;
      TREE_ATTN_LOOP
      for (; has_more && n < kReceived; ++n) {
        const int source = to_receive.device;
        const Packet* const from =
            peers.window[peers.me] + peers.offset(step, source, row) + to_receive.subtree * peers.n_packets;
        if (n % n_warps == warp) {
          if (!peers.range[source].empty())
            receive_state(peers, from, step, source, row, d_v, states + n * size);
          else if (lane == 0)
            receive_packet(peers, from, step, source, row);
        }
        has_more = to_receive.advance(peers);
      }
      __syncthreads();
      TREE_ATTN_LOOP
      for (int i = 0; i < n; to_merge.advance(peers), ++i) {
        if (peers.range[to_merge.device].empty() || warp >= n_slices) continue;
        const Count next = to_merge.slot();
        if (n_merged++ > 0) park(parked, highest_bit(slot ^ next), waits, n_parked, state);
        slot = next;
        const Shared<float> from = states + i * size;
        state.shift = from[kShift], state.sum = from[kSum];
        TREE_ATTN_UNROLL
        for (int c = 0; c < 4; ++c) state.n[c] = component + c < d_v ? float(from[kValues + component + c]) : -0.0f;
      }
      __syncthreads();
    }
    merge_parked(parked, ~Count{0}, waits, n_parked, state);
    if (warp < n_slices) CombinedOutput{result, peers.n_rows, row, component, d_v}.write(0, state);
    if (threadIdx.x == 0) store_fresh(peers.steps + row, step);
  }
  notes.merged();
}

/// Combines the units of the shard and exchanges the states of all devices.
/// @tparam Tile ReplacingTile of the thread group of the walks
/// - Grid: as many blocks as there are rows and the device holds at once, each with the rows that are as many apart.
/// - Block: as combine() has, and a warp for each slice.
/// - Reads: states of units, lengths, the own window; queries, keys and values as combine() does.
/// - Writes: the windows of all devices, finished rows, counters of steps.
/// @paper{alg_3, Alg. 3}
template <class Tile>
__global__ void __launch_bounds__(kMostCombining* kWarp)
    exchange_states(const __grid_constant__ DecodeParams params, const __grid_constant__ UnitMemory memory,
                    const __grid_constant__ Peers peers, DeviceOutput result) {
  exchange_block<Tile>(params, memory, peers, result, NoNotes{});
}
/// Its launch.
inline Launch launch_of_exchange(const DecodeParams& params, const UnitMemory& memory, const LaunchPlan& plan,
                                 const Peers& peers) {
  int n_warps = plan.n_combining;
  while (n_warps * kSlice < params.d_v) n_warps *= 2;
  return {.grid = {static_cast<unsigned>(std::min<std::int64_t>(peers.n_rows, device().n_multiprocessors))},
          .block = {static_cast<unsigned>(n_warps * kWarp)},
          .shared_bytes = kKernelBytes + exchange_bytes(peers, memory, n_warps, params.d_v),
          .continues = true,
          .is_cooperative = true};
}

/// Launches it, of one stored type. @throws DeviceError if the launch fails
template <class T>
void run_exchange(const DecodeParams& params, const UnitMemory& memory, const Peers& peers, const DeviceOutput& result,
                  const LaunchPlan& plan, Stream stream);

/// Launches what plan_equal_runs() planned, in the contiguous order of leaves, and the exchange of its states: as many
/// blocks as the device holds at once. Blocks wait for other devices, which wait for blocks of this launch, so it is
/// cooperative. It does not overlap the walks: CUDA does not say that a cooperative launch may.
/// @param result finished rows
void run_one_shot(const DecodeParams& params, DType dtype, const Peers& peers, const DeviceOutput& result,
                  const LaunchPlan& plan, const Workspace& workspace, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
