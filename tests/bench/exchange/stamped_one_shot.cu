// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernel of `one-shot` with stamps around the members of its epilogue, and one for every state that it receives.
#include "tests/bench/exchange/stamped_one_shot.hpp"

#include "gpu/engine/one_shot.cuh"

#include <algorithm>
#include <type_traits>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The library's, which receive_slice() finds by its argument; then one thread notes the time of a state: that which takes
/// its shift, its sum and its first element, and no other does so from the first packet.
template <int kPackets>
__device__ __forceinline__ void receive_packets(const StampedPeers& peers, const Packet* const (&from)[kPackets],
                                                Packet (&packets)[kPackets], unsigned step, int source, std::int64_t row) {
  receive_packets<kPackets, Peers>(peers, from, packets, step, source, row);
  bool is_first = true;
  if constexpr (kPackets > 2) is_first = from[1] == from[0] && from[2] != from[0];
  if (is_first) peers.arrivals[(from[0] - peers.window[peers.me]) / peers.n_packets] = nanoseconds();
}

namespace {

struct StampedEpilogue : PeersEpilogue<StampedPeers> {
  std::uint64_t* stamps;

  __device__ __forceinline__ void stamp(ExchangeStage stage) const {
    __syncthreads();
    if (threadIdx.x == 0) stamps[blockIdx.x * kExchangeStages + stage] = nanoseconds();
  }
  template <class Params>
  __device__ __forceinline__ void tile_joined(const Params& params, const WorkRange& work, int log_rows,
                                              const Tiles& tiles) const {
    stamp(kJoined);
    PeersEpilogue::tile_joined(params, work, log_rows, tiles);
    stamp(kSent);
  }
  template <IsThreadGroup ThreadGroup, class Params>
  __device__ __forceinline__ void block_done(const Params& params, int log_rows, Scratch scratch, const Tiles& tiles) const {
    PeersEpilogue::block_done<ThreadGroup>(params, log_rows, scratch, tiles);
    stamp(kMerged);
  }
};

template <IsPipeline Pipeline>
__global__ void __launch_bounds__(Pipeline::kThreads, 1)
    stamped_one_shot(typename Pipeline::Params params, const __grid_constant__ StampedEpilogue epilogue,
                     const __grid_constant__ typename Pipeline::Arguments arguments, EqualRunsWorkspace forests,
                     unsigned* counters) {
  equal_runs_block<Pipeline>(params, epilogue, arguments, forests, counters);
}

/// Calls f with the pipeline that the library kernel has for such a shape; others are not compiled again.
template <class F>
void with_timed_pipeline(const DecodeParams& params, const F& f) {
  const int longest = std::max(params.d_h, params.d_v);
  if (longest > 128) throw DeviceError("stamps of the exchange are for rows of up to 128 elements");
  if (longest > 64) return with_mma_pipeline<MmaTile<BFloat16, 128, 8>>(f);
  with_mma_pipeline<MmaTile<BFloat16, 64, 8>>(f);
}

}  // namespace

LaunchPlan plan_stamped_one_shot(const DecodeParams& params) { return plan_equal_runs<BFloat16>(params, LaunchOptions{}); }

void run_stamped_one_shot(const DecodeParams& params, const StampedPeers& peers, const DeviceOutput& own,
                          const DeviceOutput& result, const LaunchPlan& plan, const Workspace& workspace,
                          std::uint64_t* stamps, Stream stream) {
  with_timed_pipeline(params, [&](auto pipeline) {
    using Pipeline = typename decltype(pipeline)::type;
    launch_runs<Pipeline>(stamped_one_shot<Pipeline>, {.is_cooperative = true}, params,
                          StampedEpilogue{{peers, own, result}, stamps}, plan, workspace, stream);
  });
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
