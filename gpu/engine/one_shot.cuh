// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The epilogue of the library kernel on several devices: it sends the states of a query tile when they are joined,
/// in packets to the windows of the devices, and after its last work range receives and merges those of all devices
/// (section 5.3, Alg. 3). The protocol is in peers.hpp.
#pragma once

#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/params.hpp"
#include "gpu/engine/peers.hpp"
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

/// Stores the states of neighbouring rows into the windows of all devices, the next device first and this one last. All
/// threads of the block call it, after a barrier after the writes of `states`.
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
    for (int turn = 1; turn <= peers.n; ++turn) store_packet(peers.window[(peers.me + turn) % peers.n] + at, packet);
  }
}

/// One slice of a state in the own window, once its packets have arrived.
/// @param subtree of the source's range
template <IsThreadGroup ThreadGroup, class AnyPeers>
__device__ __forceinline__ typename StateSlice<ThreadGroup>::State receive_slice(const AnyPeers& peers,
                                                                                 const StateSlice<ThreadGroup>& slice,
                                                                                 unsigned step, int source, int subtree,
                                                                                 std::int64_t row, int d_v) {
  // The first packet has the shift and the sum; then that of each component.
  constexpr int kElements = StateSlice<ThreadGroup>::kElements;
  const auto element = [&slice](int c) { return kValues + slice.component(c); };
  const Packet* from[1 + kElements];
  from[0] = peers.window[peers.me] + peers.offset(step, source, row) + subtree * peers.n_packets;
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) from[1 + c] = from[0] + (slice.component(c) < d_v ? element(c) / 3 : 0);
  Packet packets[1 + kElements];
  receive_packets(peers, from, packets, step, source, row);
  typename StateSlice<ThreadGroup>::State state{packets[0].element[kShift], packets[0].element[kSum], {}};
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) {
    const int k = element(c) % 3;
    const auto& [first, second, third] = packets[1 + c].element;
    if (slice.component(c) < d_v) state.n[c] = k == 0 ? first : k == 1 ? second : third;
  }
  return state;
}

/// Consecutive rows.
struct RowRange {
  std::int64_t first;
  int n;
};
/// The rows of a tile, n_rows if the group has so many.
template <class Params>
__device__ __forceinline__ RowRange rows_of(const Params& params, QueryTile tile, int n_rows) {
  return {tile.kv_head * params.group + tile.first_row, rows_in_use(params, tile.first_row, n_rows)};
}

/// Receives the states of a thread group's rows from all devices, merges them in the order of their ranges and finishes the
/// rows. All threads of the block call it; none of them uses the scratch memory any more.
template <IsThreadGroup ThreadGroup, class AnyPeers, class Params>
__device__ __forceinline__ void receive_states(const AnyPeers& peers, const Params& params, const DeviceOutput& output,
                                               QueryTile tile, Scratch scratch) {
  const RowRange rows = rows_of(params, tile, ThreadGroup::kRows);

  // A device without keys has no states. Its packets say that it has come this far.
  for (int source = 0; source < peers.n; ++source) {
    if (!peers.range[source].empty()) continue;
    for (int r = static_cast<int>(threadIdx.x); r < rows.n; r += static_cast<int>(blockDim.x)) {
      const std::int64_t row = rows.first + r;
      const unsigned step = load_fresh(peers.steps + row) + 1;
      receive_packet(peers, peers.window[peers.me] + peers.offset(step, source, row), step, source, row);
    }
  }

  // Devices are joined as the splits of one device are.
  join_parts<ThreadGroup>(
      scratch, rows.n, peers.range_of_all(), peers.n, [&peers](int source) { return peers.range[source]; },
      [&](const StateSlice<ThreadGroup>& slice, int source) {
        return [&, slice, source](int subtree) {
          const std::int64_t row = rows.first + slice.row();
          const unsigned step = load_fresh(peers.steps + row) + 1;
          return receive_slice(peers, slice, step, source, subtree, row, params.d_v);
        };
      },
      [&](const StateSlice<ThreadGroup>& slice, const JoinedRoots<ThreadGroup>& roots) {
        write_output<ThreadGroup>(params, output, tile.kv_head, tile.first_row, slice, roots, {});
      });
  __syncthreads();
}

/// The epilogue of the library kernel on several devices. Its members are those of WriteEpilogue, which describes them.
/// @tparam AnyPeers Peers, or what has its own receive_packets()
template <class AnyPeers>
struct PeersEpilogue {
  AnyPeers peers;
  DeviceOutput own;     ///< states of the own range
  DeviceOutput result;  ///< finished rows

  /// The query tiles [begin, end) that the block has joined: they are neighbours, since it shares only the first and the
  /// last of its query tiles with other blocks.
  using Tiles = Shared<int>;
  __device__ __forceinline__ static Tiles take(Arena& arena) {
    const Tiles tiles = arena.take<int>(2);
    if (threadIdx.x == 0) tiles[0] = 0, tiles[1] = 0;
    return tiles;
  }
  __device__ __forceinline__ const DeviceOutput& output() const { return own; }

  template <class Params>
  __device__ __forceinline__ void tile_joined(const Params& params, const WorkRange& work, int log_rows,
                                              const Tiles& tiles) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const int begin = tiles[0], end = tiles[1];
      if (begin == end) tiles[0] = static_cast<int>(work.query_tile);
      tiles[1] = static_cast<int>(work.query_tile) + 1;
    }
    const RowRange rows = rows_of(params, {work.kv_head, work.first_row}, 1 << log_rows);
    send_states(peers, own.states, params.d_v, rows.first, rows.n);
  }
  template <IsThreadGroup ThreadGroup, class Params>
  __device__ __forceinline__ void block_done(const Params& params, int log_rows, Scratch scratch, const Tiles& tiles) const {
    __syncthreads();
    const int begin = tiles[0], end = tiles[1];
    TREE_ATTN_LOOP
    for (int i = begin; i < end; ++i) {
      const QueryTile tile = QueryTile::of(params, i, log_rows);
      const RowRange rows = rows_of(params, tile, 1 << log_rows);
      TREE_ATTN_LOOP
      for (int r = 0; r < rows.n; r += ThreadGroup::kRows)
        receive_states<ThreadGroup>(peers, params, result, {tile.kv_head, tile.first_row + r}, scratch);
      if (static_cast<int>(threadIdx.x) < rows.n) {
        unsigned* const steps = peers.steps + rows.first + threadIdx.x;
        store_fresh(steps, load_fresh(steps) + 1);
      }
    }
  }
};

/// That of the library.
using OneShotEpilogue = PeersEpilogue<Peers>;

/// The library kernel with the exchange as its epilogue: one launch from keys to the output of all devices. All blocks must
/// fit the device at once.
/// @param counters one per query tile
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    one_shot(typename Pipeline::Params params, const __grid_constant__ OneShotEpilogue epilogue,
             const __grid_constant__ typename Pipeline::Arguments arguments, EqualRunsWorkspace forests,
             unsigned* counters) {
  equal_runs_block<Pipeline>(params, epilogue, arguments, forests, counters);
}

/// Launches what plan_equal_runs() has planned, for every shape of one stored type, in the contiguous order of leaves.
template <class T>
void run_one_shot(const DecodeParams& params, const OneShotEpilogue& epilogue, const LaunchPlan& plan,
                  const Workspace& workspace, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
