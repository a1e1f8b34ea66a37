// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of the library kernel on several devices: it sends the states of a query tile when they are joined, and
/// after its last work range receives and merges those of all devices (section 5.3, Alg. 3). The protocol is in
/// peers.hpp.
#pragma once

#include "gpu/parts/equal_runs.cuh"
#include "gpu/parts/peer_packets.cuh"
#include "gpu/parts/peers.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The element of a state that a component of a column is.
template <IsWorker Worker>
__device__ __forceinline__ int element(const Column<Worker>& column, int c) {
  return kValues + column.component(c);
}

/// One column of a state in the own window, once its packets have arrived.
/// @param subtree of the source's range
template <IsWorker Worker, class AnyPeers>
__device__ __forceinline__ typename Column<Worker>::State receive_column(const AnyPeers& peers, const Column<Worker>& column,
                                                                         unsigned step, int source, int subtree,
                                                                         std::int64_t row, int d_v) {
  // The first packet has the shift and the sum; then that of each component.
  constexpr int kElements = Column<Worker>::kElements;
  const Packet* from[1 + kElements];
  from[0] = peers.window[peers.me] + peers.offset(step, source, row) + subtree * peers.n_packets;
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) from[1 + c] = from[0] + (column.component(c) < d_v ? element(column, c) / 3 : 0);
  Packet packets[1 + kElements];
  receive_packets(peers, from, packets, step, source, row);
  typename Column<Worker>::State state{packets[0].element[kShift], packets[0].element[kSum], {}};
  TREE_ATTN_UNROLL
  for (int c = 0; c < kElements; ++c) {
    const int k = element(column, c) % 3;
    const auto& [first, second, third] = packets[1 + c].element;
    if (column.component(c) < d_v) state.n[c] = k == 0 ? first : k == 1 ? second : third;
  }
  return state;
}

/// Consecutive rows.
struct RowRange {
  std::int64_t first;
  int n;
};
/// The rows of a query tile.
template <IsWorker Worker, class Params>
__device__ __forceinline__ RowRange rows_of(const Params& params, std::int64_t kv_head, std::int64_t first_row) {
  return {kv_head * params.group + first_row, rows_in_use<Worker>(params, first_row)};
}

/// Writes one column of the states of the node, one for every subtree of its range.
template <IsWorker Worker, class Params>
__device__ __forceinline__ void write_node(const Params& params, float* states, std::int64_t row,
                                           const Column<Worker>& column, const JoinedRoots<Worker>& roots) {
  TREE_ATTN_LOOP
  for (int i = 0; i < roots.size(); ++i) {
    typename Column<Worker>::State state;
    roots.load(i, state);
    float* const to = states + (i * params.n_rows() + row) * state_size(params.d_v);
    if (column.component(0) == 0) store_fresh(to + kShift, state.shift), store_fresh(to + kSum, state.sum);
    TREE_ATTN_UNROLL
    for (int c = 0; c < Column<Worker>::kElements; ++c) {
      if (column.component(c) < params.d_v) store_fresh(to + element(column, c), state.n[c]);
    }
  }
}

/// Receives the states of a query tile from all devices, merges them in the order of their ranges and finishes the rows, or
/// leaves the states of the node; of the rows that this device owns, if rows have owners. All threads of the block call it;
/// none of them uses the scratch memory any more.
template <IsWorker Worker, class AnyPeers, class Params>
__device__ __forceinline__ void receive_states(const AnyPeers& peers, const Params& params, const DeviceOutput& output,
                                               QueryTile tile, Scratch scratch) {
  const RowRange rows = rows_of<Worker>(params, tile.kv_head, tile.first_row);

  // A device without keys has no states. Its packets say that it has come this far.
  for (int source = 0; source < peers.n; ++source) {
    if (!peers.range[source].empty()) continue;
    for (int r = static_cast<int>(threadIdx.x); r < rows.n; r += static_cast<int>(blockDim.x)) {
      const std::int64_t row = rows.first + r;
      if (!peers.merges(row)) continue;
      const unsigned step = load_fresh(peers.steps + row) + 1;
      receive_packet(peers, peers.window[peers.me] + peers.offset(step, source, row), step, source, row);
    }
  }

  // Devices are joined as the splits of one device are.
  join_parts<Worker>(
      scratch, rows.n, peers.range_of_all(), peers.n, [&peers](int source) { return peers.range[source]; },
      [&](const Column<Worker>& column, int source, int subtree, const auto& states, int place) {
        typename Column<Worker>::State state;
        set_empty(state);
        const std::int64_t row = rows.first + column.row();
        if (peers.merges(row)) {
          const unsigned step = load_fresh(peers.steps + row) + 1;
          state = receive_column(peers, column, step, source, subtree, row, params.d_v);
        }
        states.store(place, state);
      },
      [&](const Column<Worker>& column, const JoinedRoots<Worker>& roots) {
        if (!peers.merges(rows.first + column.row())) return;
        if (output.states != nullptr)
          write_node<Worker>(params, output.states, rows.first + column.row(), column, roots);
        else
          write_output<Worker>(params, output, tile.kv_head, tile.first_row, column, roots, {});
      });
  __syncthreads();
}

/// The end of the library kernel on several devices. Its members are those of WriteEnd, which describes them.
/// @tparam AnyPeers Peers, or what has its own receive_packets()
template <class AnyPeers>
struct PeersEnd {
  AnyPeers peers;
  DeviceOutput own;     ///< states of the own range
  DeviceOutput result;  ///< finished rows; or states of the node's range, which are to be merged with those of other nodes

  static constexpr std::size_t kSharedBytes = 128;
  static_assert(kEqualRunsBytes + kSharedBytes <= kKernelBytes);
  /// The query tiles [begin, end) that the block has joined: they are neighbours, since it shares only the first and the
  /// last of its query tiles with other blocks.
  using Tiles = Shared<int>;
  __device__ __forceinline__ static Tiles take(Arena& arena) {
    const Tiles tiles = arena.take<int>(2);
    if (threadIdx.x == 0) tiles[0] = 0, tiles[1] = 0;
    return tiles;
  }
  __device__ __forceinline__ const DeviceOutput& output() const { return own; }

  template <IsWorker Worker, class Params>
  __device__ __forceinline__ void tile_joined(const Params& params, const WorkRange& work, const Tiles& tiles) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const int begin = tiles[0], end = tiles[1];
      if (begin == end) tiles[0] = static_cast<int>(work.query_tile);
      tiles[1] = static_cast<int>(work.query_tile) + 1;
    }
    const RowRange rows = rows_of<Worker>(params, work.kv_head, work.first_row);
    send_states(peers, own.states, params.d_v, rows.first, rows.n);
  }
  template <IsWorker Worker, class Params>
  __device__ __forceinline__ void block_done(const Params& params, Scratch scratch, const Tiles& tiles) const {
    __syncthreads();
    const int begin = tiles[0], end = tiles[1];
    TREE_ATTN_LOOP
    for (int i = begin; i < end; ++i) {
      const QueryTile tile = QueryTile::of<Worker>(params, i);
      receive_states<Worker>(peers, params, result, tile, scratch);
      const RowRange rows = rows_of<Worker>(params, tile.kv_head, tile.first_row);
      if (peers.has_owners) send_rows(peers, result, params.d_v, rows.first, rows.n);
    }

    // The rows of other owners, once all of the own ones are sent; then the step is done.
    TREE_ATTN_LOOP
    for (int i = begin; i < end; ++i) {
      const QueryTile tile = QueryTile::of<Worker>(params, i);
      const RowRange rows = rows_of<Worker>(params, tile.kv_head, tile.first_row);
      if (peers.has_owners) receive_rows(peers, result, params.d_v, rows.first, rows.n);
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < rows.n) {
        unsigned* const steps = peers.steps + rows.first + threadIdx.x;
        store_fresh(steps, load_fresh(steps) + 1);
      }
    }
  }
};

/// That of the library.
using OneShotEnd = PeersEnd<Peers>;

/// The library kernel with the exchange at its end: one launch from keys to the output of all devices. All blocks must fit
/// the device at once.
/// @param counters one per query tile
/// @paper{alg_3, Alg. 3}
template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    one_shot(typename Pipeline::Params params, const __grid_constant__ OneShotEnd end,
             const __grid_constant__ typename Pipeline::Arguments arguments, EqualRunsWorkspace forests,
             unsigned* counters) {
  equal_runs_block<Pipeline>(params, end, arguments, forests, counters);
}

/// Plans, or launches, for every shape of one stored type, in either order of leaves.
template <class T, class Params>
LaunchPlan plan_one_shot(const Params& params);
template <class T, class Params>
void run_one_shot(const Params& params, const OneShotEnd& end, const LaunchPlan& plan, const Workspace& workspace,
                  Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
