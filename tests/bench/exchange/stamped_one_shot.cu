// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The launch of `one-shot` that exchanges, with stamps, and one for every state that it receives.
#include "tests/bench/exchange/stamped_one_shot.hpp"

#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/one_shot.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {

/// The library's, which receive_state() finds by its argument; then the lane that receives the first packet of a state notes
/// the time.
template <int kPackets>
__device__ __forceinline__ void receive_packets(const StampedPeers& peers, const Packet* const (&from)[kPackets],
                                                Packet (&packets)[kPackets], unsigned step, int source, std::int64_t row) {
  receive_packets<kPackets, Peers>(peers, from, packets, step, source, row);
  const std::int64_t at = from[0] - peers.window[peers.me];
  if (at % peers.n_packets == 0) peers.arrivals[at / peers.n_packets] = nanoseconds();
}

namespace {

struct Stamps {
  std::uint64_t* stamps;

  __device__ __forceinline__ void stamp(ExchangeStage stage) const {
    __syncthreads();
    if (threadIdx.x == 0) stamps[blockIdx.x * kExchangeStages + stage] = nanoseconds();
  }
  __device__ __forceinline__ void combined() const { stamp(kCombined); }
  __device__ __forceinline__ void sent() const { stamp(kSent); }
  __device__ __forceinline__ void merged() const { stamp(kMerged); }
};

__global__ void __launch_bounds__(kMostCombining* kWarp)
    stamped_exchange(DecodeParams params, const __grid_constant__ UnitMemory memory,
                     const __grid_constant__ StampedPeers peers, DeviceOutput result, std::uint64_t* stamps) {
  exchange_block<NoTile>(params, memory, peers, result, Stamps{stamps});
}

}  // namespace

LaunchPlan plan_stamped_one_shot(const DecodeParams& params) { return plan_equal_runs<BFloat16>(params, LaunchOptions{}); }

void run_stamped_one_shot(const DecodeParams& params, const StampedPeers& peers, const DeviceOutput& result,
                          const LaunchPlan& plan, const Workspace& workspace, std::uint64_t* stamps, Stream stream) {
  const UnitMemory memory = run_units<BFloat16>(params, false, plan, workspace, stream);
  launch(stamped_exchange, launch_of_exchange(params, memory, plan, peers), stream, params, memory, peers, result, stamps);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
