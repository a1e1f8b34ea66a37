// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Three devices that exchange states as the one-shot kernel does, with its protocol (gpu/engine/peers.hpp) and
/// without its decode. One device has no keys, and one reads as late as the protocol allows.
#include "gpu/engine/one_shot.cuh"

#include "gpu/platform/launch.hpp"
#include "tests/gpu/emulator/seeded_bugs/seeded_bugs.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kRanks = 3, kLanes = 32, kSteps = 4, kFit = 2, kRowsOfBlock = 2, kRows = kFit * kRowsOfBlock;
constexpr int kDim = 4, kSize = kValues + kDim, kSubtrees[kRanks] = {1, 2, 0};
constexpr std::array<KeyRange, kRanks> kRanges{KeyRange{0, 64}, {64, 192}, {192, 192}};
/// Rank 1 reads the states of a step only when those of the next one have come from rank 0.
constexpr int kAhead = 0, kLate = 1;
/// Steps before the first one, so that the third one is step 0.
constexpr unsigned kStepsBefore = 0xFFFFFFFD;

float element_of(int rank, int step, int subtree, int row, int c) {
  return static_cast<float>((rank + 1) * 1000 + step * 100 + subtree * 50 + row * 10 + c);
}

/// A window with one half.
struct OneHalf : Peers {
  __device__ std::int64_t offset(unsigned, int device, std::int64_t row) const { return Peers::offset(0, device, row); }
};

/// @param states of this step [subtrees][n_rows][2 + d_v] @param nothing zeros in place of them
/// @param[out] out sums over all ranks and subtrees of this step [n_rows][2 + d_v]
template <class AnyPeers>
__global__ void one_shot(Bug bug, AnyPeers peers, const float* states, const float* nothing, float* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t first_row = std::int64_t{blockIdx.x} * kRowsOfBlock;
  const auto send = [&](std::int64_t row) {
    if (bug == Bug::kSilentEmptyRank && peers.range[peers.me].empty()) return;
    const auto element_of = [&](const float* from) {
      return [from, row](int subtree, int c) { return load_fresh(from + (subtree * kRows + row) * kSize + c); };
    };
    const int n = peers.n_slots(peers.me);
    if (bug == Bug::kPacketInPieces) send_states(peers, element_of(nothing), kDim, row, 0, n);
    send_states(peers, element_of(states), kDim, row, 0, n);
  };
  const auto receive = [&](std::int64_t row) {
    const unsigned step = load_fresh(peers.steps + row) + 1;
    if (peers.me == kLate && step != kStepsBefore + kSteps && bug != Bug::kWaitBeforeLastSend)
      receive_packet(peers, peers.window[kLate] + peers.offset(step + 1, kAhead, row), step + 1, kAhead, row);
    float sum[kSize] = {};
    for (int source = 0; source < peers.n; ++source) {
      const Packet* const from = peers.window[peers.me] + peers.offset(step, source, row);
      const bool is_empty = peers.range[source].empty();
      if (is_empty && bug == Bug::kSilentEmptyRank) continue;
      for (int i = 0; i < (is_empty ? 1 : peers.n_slots(source) * static_cast<int>(peers.n_packets)); ++i) {
        const Packet packet =
            bug == Bug::kNoWaitForPacket ? load_packet(from + i) : receive_packet(peers, from + i, step, source, row);
        for (int c = 0; c < 3; ++c) sum[i % peers.n_packets * 3 + c] += is_empty ? 0 : packet.element[c];
      }
    }
    for (int c = 0; c < kSize; ++c) store_fresh(out + row * kSize + c, sum[c]);
    if (bug != Bug::kStepNotAdvanced) store_fresh(peers.steps + row, step);
  };

  if (bug != Bug::kSendBeforeWait) wait_for_previous_launch();
  if (bug == Bug::kWaitBeforeLastSend) {
    for (int r = 0; r < kRowsOfBlock; ++r) {
      const std::int64_t row = first_row + (peers.me == kLate ? kRowsOfBlock - 1 - r : r);
      send(row);
      __syncwarp();
      if (lane == 0) receive(row);
      __syncwarp();
    }
    return;
  }
  for (int r = 0; r < kRowsOfBlock; ++r) send(first_row + r);
  __syncwarp();
  if (bug == Bug::kSendBeforeWait) wait_for_previous_launch();
  if (lane != 0) return;
  for (int r = 0; r < kRowsOfBlock; ++r) receive(first_row + r);
}

/// Memory of a rank on its device.
struct Rank {
  Rank() {
    gave_up.fill(0), window.fill(0), out.fill(0xFF);
    steps.upload(std::vector<unsigned>(kRows, kStepsBefore));
  }
  DeviceBuffer<float> states{(kSteps + 1) * 2 * kRows * kSize}, out{kSteps * kRows * kSize};
  DeviceBuffer<unsigned> steps{kRows};
  DeviceBuffer<GaveUp> gave_up{1, MemoryUse::Window};
  DeviceBuffer<Packet> window{2 * 4 * kRows * 2, MemoryUse::Window};
  OwnedStream stream;
};

}  // namespace

bool one_shot_is_right(Bug bug) {
  Settings three_devices = settings();
  three_devices.n_devices = kRanks, three_devices.n_multiprocessors = kFit;
  const SettingsScope scope(three_devices);
  const struct Back {
    ~Back() { set_device(0); }
  } back;
  std::optional<Rank> ranks[kRanks];
  std::vector<float> expected(kSteps * kRows * kSize);
  for (int i = 0; i < kRanks; ++i) {
    set_device(i);
    for (int other = 0; other < kRanks; ++other) {
      if (other != i) enable_peer_access(other);
    }
    std::vector<float> states((kSteps + 1) * 2 * kRows * kSize);
    for (int t = 0; t < kSteps; ++t) {
      for (int subtree = 0; subtree < kSubtrees[i]; ++subtree) {
        for (int row = 0; row < kRows; ++row) {
          for (int c = 0; c < kSize; ++c) {
            const float x = element_of(i, t, subtree, row, c);
            states[static_cast<std::size_t>(((t * 2 + subtree) * kRows + row) * kSize + c)] = x;
            expected[static_cast<std::size_t>((t * kRows + row) * kSize + c)] += x;
          }
        }
      }
    }
    ranks[i].emplace();
    ranks[i]->states.upload(states);
  }
  for (int i = 0; i < kRanks; ++i) {
    set_device(i);
    Peers peers = Peers::of(kRanges, i, kRows, kDim);
    for (int other = 0; other < kRanks; ++other) peers.window[other] = ranks[other]->window.data();
    peers.steps = ranks[i]->steps.data(), peers.gave_up = ranks[i]->gave_up.data();
    OneHalf one_half;
    static_cast<Peers&>(one_half) = peers;
    const Launch config{.grid = {kFit}, .block = {kLanes}, .overlaps = true, .is_cooperative = true};
    for (int t = 0; t < kSteps; ++t) {
      const float *const states = ranks[i]->states.data() + t * 2 * kRows * kSize, *const nothing =
                                                                                       ranks[i]->states.data() +
                                                                                       kSteps * 2 * kRows * kSize;
      float* const out = ranks[i]->out.data() + t * kRows * kSize;
      if (bug == Bug::kOneHalf) {
        launch(one_shot<OneHalf>, config, ranks[i]->stream, bug, one_half, states, nothing, out);
      } else {
        launch(one_shot<Peers>, config, ranks[i]->stream, bug, peers, states, nothing, out);
      }
    }
  }
  bool is_right = true;
  for (int i = 0; i < kRanks; ++i) {
    set_device(i);
    synchronise(ranks[i]->stream);
  }
  for (int i = 0; i < kRanks; ++i) is_right = is_right && ranks[i]->out.download() == expected;
  return is_right;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
