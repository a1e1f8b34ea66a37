// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads and sums of a warp of rung 3 of the ladder over the 64 keys of a leaf, as JSON for
/// docs/tools/kernel_figures.py: the kernel runs under the emulator, and its loads, exchanges and sums are noted.
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace tree_attn::emulated {
namespace {

/// Values are above this number and keys below it, so that each tells which row it is from.
constexpr float kFirstValue = 1000;
constexpr int kRow = 128, kLane = 5, kLeaf = 64;  // elements of F32; the lane that is noted; keys

/// Events of the lane, in order: K and V load a vector of a row, x exchanges the sum of a key, + adds a value to its own.
struct Event {
  char what;
  int row;
  bool operator==(const Event&) const = default;
};
std::vector<Event> events;
/// First component of the vector that a lane loads of row 0, and the lanes whose products it has after each exchange of key
/// 0.
int first_of_lane[32];
unsigned held[32], held_after[5];
int n_exchanges = 0;  // of the lane
const float* keys = nullptr;
const float* values = nullptr;

Bytes16 watched_load(const void* from) {
  const float* const at = static_cast<const float*>(from);
  const bool is_key = at >= keys && at < keys + kLeaf * kRow;
  const std::int64_t element = at - (is_key ? keys : values);
  if (is_key && element < kRow) first_of_lane[threadIdx.x] = static_cast<int>(element);
  if (threadIdx.x == kLane) events.push_back({is_key ? 'K' : 'V', static_cast<int>(element / kRow)});
  return load16_global(from);
}
float watched_exchange(unsigned mask, float value, int flip) {
  unsigned& mine = held[threadIdx.x];
  if (flip == 1) mine = 1u << threadIdx.x;
  mine |= __shfl_xor_sync(mask, mine, flip);
  if (threadIdx.x == kLane) {
    if (n_exchanges < 5) held_after[n_exchanges] = mine;
    events.push_back({'x', n_exchanges++ / 5});
  }
  return __shfl_xor_sync(mask, value, flip);
}
float watched_sum(float a, float b, float c) {
  if (threadIdx.x == kLane && b >= kFirstValue) {
    const Event event{'+', static_cast<int>(b - kFirstValue)};
    if (events.back() != event) events.push_back(event);  // four components, one after the other
  }
  return fused_multiply_add(a, b, c);
}

}  // namespace
}  // namespace tree_attn::emulated

// The kernel's own source uses them.
#define load16_global watched_load
#define __shfl_xor_sync watched_exchange
#define fused_multiply_add watched_sum
#define kVectors kWatchedVectors
#include "gpu/ladder/03_vectors.cu"

namespace tree_attn::emulated {

void print_warp_leaf();
void print_warp_leaf() {
  DeviceBuffer<float> q(kRow), k(kLeaf * kRow), v(kLeaf * kRow), out(kRow), lse(1);
  DeviceBuffer<std::int64_t> lengths(1);
  std::vector<float> of_keys(kLeaf * kRow), of_values(kLeaf * kRow);
  for (int i = 0; i < kLeaf * kRow; ++i) {
    of_keys[static_cast<std::size_t>(i)] = 0.01f * static_cast<float>(i / kRow % 7);
    of_values[static_cast<std::size_t>(i)] = kFirstValue + static_cast<float>(i / kRow);
  }
  q.upload(std::vector<float>(kRow, 1)), k.upload(of_keys), v.upload(of_values),
      lengths.upload(std::vector<std::int64_t>{kLeaf});
  keys = k.data(), values = v.data();
  DecodeParams params;
  params.q = {q.data(), {kRow, kRow, kRow}};
  params.k = {k.data(), {kLeaf * kRow, kLeaf * kRow, kRow}};
  params.v = {v.data(), {kLeaf * kRow, kLeaf * kRow, kRow}};
  params.lengths = lengths.data(), params.d_h = kRow, params.d_v = kRow, params.end = kLeaf;
  const LaunchPlan plan = kWatchedVectors.plan(params, DType::F32, {});
  DeviceBuffer<float> floats(plan.n_floats);
  kWatchedVectors.run(params, DType::F32, {.out = out.data(), .lse = lse.data()}, plan, {.floats = floats.data()}, Stream{});
  std::printf("  \"warp_leaf\": {\"lane\": %d, \"first\": [", kLane);
  for (int lane = 0; lane < 32; ++lane) std::printf("%s%d", lane == 0 ? "" : ", ", first_of_lane[lane]);
  std::printf("], \"held\": [");
  for (int i = 0; i < 5; ++i) std::printf("%s%u", i == 0 ? "" : ", ", held_after[i]);
  std::printf("], \"events\": [");
  for (std::size_t i = 0; i < events.size(); ++i)
    std::printf("%s[\"%c\", %d]", i == 0 ? "" : ", ", events[i].what, events[i].row);
  std::printf("]},\n");
}

}  // namespace tree_attn::emulated
