// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two devices that send each other numbers in one launch a step, as ranks do with their states; and a stream of its
/// own that adds up what has come.
#include "tree_attn/gpu/platform/device.hpp"
#include "tree_attn/gpu/platform/launch.hpp"
#include "tree_attn/tests/gpu/platform/seeded_bugs/kernels.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kRanks = 2, kLanes = 32, kSteps = 2, kFit = 2, kMostBlocks = kFit + 1;

/// A window: what the blocks of the other device send, and words that say that it is there. Steps take turns with its two
/// halves, so that no block overwrites what another has not read.
struct Window {
  Packet* elements = nullptr;  ///< [2][kMostBlocks][kLanes], one number in each
  unsigned* words = nullptr;   ///< [2][kMostBlocks]
};

/// What a lane of a rank sends.
__device__ inline float element_of(int rank, unsigned step, unsigned block, unsigned lane) {
  return static_cast<float>(rank * 1000 + static_cast<int>(step * 100 + block * 50 + lane));
}

/// @param[out] out [kLanes] sums over what all blocks of the other rank have sent to each of these blocks
__global__ void exchange(Bug bug, int rank, unsigned step, Window other, Window own, float* out) {
  const unsigned lane = threadIdx.x, half = step % 2 * kMostBlocks;
  store_packet(other.elements + (half + blockIdx.x) * kLanes + lane, {{element_of(rank, step, blockIdx.x, lane)}, 0});
  // After a shuffle all lanes have stored, and a release of one of them says nothing of the others' stores.
  if (bug == Bug::kNoSyncwarpBeforeSignal)
    __shfl_sync(0xFFFFFFFF, lane, 0);
  else
    __syncwarp();
  const bool is_silent = bug == Bug::kNeverSignalled && rank == 1 && step == kSteps && blockIdx.x == 1;
  if (lane == 0 && !is_silent) {
    unsigned* const word = other.words + half + blockIdx.x;
    if (bug == Bug::kRelaxedSignal) {
      store_fresh(word, step);
    } else {
      store_release(word, step);
    }
  }
  if (lane == 0 && bug != Bug::kNoWaitForPeer) {
    for (unsigned block = 0; block < gridDim.x; ++block)
      wait_until([&] { return load_acquire(own.words + half + block) == step; });
  }
  __syncwarp();
  float sum = 0;
  for (unsigned block = 0; block < gridDim.x; ++block)
    sum += load_fresh(own.elements[(half + block) * kLanes + lane].element);
  store_fresh(out + (step * kMostBlocks + blockIdx.x) * kLanes + lane, sum);
}

__global__ void add_up(const float* sums, unsigned n_blocks, float* out) {
  float sum = 0;
  for (unsigned step = 1; step <= kSteps; ++step) {
    for (unsigned block = 0; block < n_blocks; ++block)
      sum += load_fresh(sums + (step * kMostBlocks + block) * kLanes + threadIdx.x);
  }
  store_fresh(out + threadIdx.x, sum);
}

/// What a rank has on its device.
struct Rank {
  explicit Rank(MemoryUse use) : elements(2 * kMostBlocks * kLanes, use), words(2 * kMostBlocks, MemoryUse::Window) {
    elements.fill(0), words.fill(0);
    synchronise(Stream{});
  }
  Window window() const { return {elements.data(), words.data()}; }

  DeviceBuffer<Packet> elements;
  DeviceBuffer<unsigned> words;
  DeviceBuffer<float> sums{(kSteps + 1) * kMostBlocks * kLanes}, out{kLanes};
  OwnedStream stream, adds;
};

}  // namespace

bool exchange_is_right(Bug bug) {
  Settings two_devices = settings();
  two_devices.n_devices = kRanks, two_devices.n_multiprocessors = kFit;
  const SettingsScope scope(two_devices);
  const unsigned n_blocks = bug == Bug::kMoreBlocksThanFit ? kMostBlocks : kFit;
  const struct Back {
    ~Back() { set_device(0); }
  } back;
  std::optional<Rank> ranks[kRanks];
  for (int i = 0; i < kRanks; ++i) {
    set_device(i);
    enable_peer_access(1 - i);
    ranks[i].emplace(bug == Bug::kFarStoreOutsideWindow && i == 0 ? MemoryUse::Persistent : MemoryUse::Window);
  }
  for (int i = 0; i < kRanks; ++i) {
    set_device(i);
    Rank& rank = *ranks[i];
    for (unsigned step = 1; step <= kSteps; ++step) {
      launch(exchange, {.grid = {n_blocks}, .block = {kLanes}, .is_cooperative = bug != Bug::kMoreBlocksThanFit},
             rank.stream, bug, i, step, ranks[1 - i]->window(), rank.window(), rank.sums.data());
    }
    Event event;
    event.record(rank.stream);
    if (bug != Bug::kMissingEvent) event.hold(rank.adds);
    launch(add_up, {.block = {kLanes}}, rank.adds, rank.sums.data(), n_blocks, rank.out.data());
  }

  bool is_right = true;
  for (int i = 0; i < kRanks; ++i) {
    const std::vector<float> got = ranks[i]->out.download();
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      float want = 0;
      for (unsigned step = 1; step <= kSteps; ++step) {
        for (unsigned block = 0; block < n_blocks; ++block)
          want += static_cast<float>(n_blocks) * element_of(1 - i, step, block, lane);
      }
      is_right = is_right && got[lane] == want;
    }
  }
  return is_right;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
