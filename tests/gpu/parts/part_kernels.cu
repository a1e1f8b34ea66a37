// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of part_kernels.hpp.
#include "tests/gpu/parts/part_kernels.hpp"

#include "gpu/parts/join.cuh"
#include "gpu/parts/lane_ring.cuh"
#include "gpu/parts/mma_tile.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

using Joiner = SubWarp<float, 8, 1>;
static_assert(Joiner::kLanes * Joiner::kElements == kJoinDim);

/// Threads of the block that joins: one for each part that is listed at once.
constexpr unsigned kJoinThreads = kListedParts;

__global__ void join(const float* states, KeyRange range, int n_parts, int n_entries, float* forests, std::int64_t n_floats,
                     float* out) {
  Arena arena;
  const int n_scratch = kListFloats + n_entries * WorkerForest<Joiner>::kEntry;
  const Scratch scratch{arena.take<float>(n_scratch), n_scratch};
  const auto self = WorkerThread::of<Joiner>(static_cast<int>(threadIdx.x), kJoinThreads);
  for (int i = self.worker; i < n_parts; i += self.n_workers) {
    const KeyRange part = split_range(range, i, n_parts);
    WorkerForest<Joiner> forest(forests + i * n_floats, self.lane, part.begin);
    for (std::int64_t position = part.begin; position < part.end; ++position) {
      const float* const from = states + (position - range.begin) * state_size(kJoinDim);
      LaneState<Joiner::kElements> state;
      state.shift = load_once(from + kShift), state.sum = load_once(from + kSum);
      for (int c = 0; c < Joiner::kElements; ++c) state.n[c] = load_once(from + kValues + Joiner::component(self.lane, c));
      forest.push({0, position}, state);
    }
  }
  __syncthreads();
  join_splits<Joiner>(scratch, forests, n_floats, range, n_parts, self, [&](int, const auto& forest) {
    LaneState<Joiner::kElements> state;
    forest.fold(0, forest.depth(), state);
    if (self.lane == 0) out[kShift] = state.shift, out[kSum] = state.sum;
    for (int c = 0; c < Joiner::kElements; ++c) out[kValues + Joiner::component(self.lane, c)] = state.n[c];
  });
}

using Ringed = SubWarp<float, 8, 1>;
static_assert(kRingRows == kKeysPerStep && Ringed::kLanes * Ringed::kElements == kRingDim);

__global__ void lane_ring(DecodeParams params, const float* keys, const float* values, int stride, unsigned valid,
                          bool aligned, float* out) {
  Arena arena;
  LaneRing<Ringed> ring(arena.take<Bytes16>(2 * LaneRing<Ringed>::kVectors * kWarp));
  const int thread = static_cast<int>(threadIdx.x), lane = thread % Ringed::kLanes;
  for (int stage = 0; stage < 2; ++stage) {
    const int from = stage * kRingRows * stride;
    ring.start(params, keys + from, values + from, valid, lane, aligned, stage);
    copy_async_commit();
  }
  copy_async_wait<0>();
  for (int i = 0; i < 2 * 2 * kRingRows; ++i) {
    const int stage = i / (2 * kRingRows), row = i % kRingRows;
    float elements[4];
    widen<float>(i / kRingRows % 2 == 0 ? ring.key(stage, row, 0) : ring.value(stage, row, 0), elements);
    // All sub-warps read the same rows; each writes a quarter of them.
    if (i % (kWarp / Ringed::kLanes) != thread / Ringed::kLanes) continue;
    for (int c = 0; c < 4; ++c) out[i * kRingDim + Ringed::component(lane, c)] = elements[c];
  }
}

using Tile = MmaTile<Half, kTileDim, 1>;
static_assert(kTileRows == kItem);

__global__ void tile_ring(DecodeParams params, KeyRange range, bool aligned, int n_items, float* out) {
  Arena arena;
  const int lane = static_cast<int>(threadIdx.x);
  TileRing<Tile> ring(params, 0, range, aligned, arena.take<Bytes16>(TileRing<Tile>::kVectors), lane);
  constexpr int kVectorsPerRow = kTileDim / 8;
  for (int item = 0; item < n_items; ++item) {
    const Shared<Bytes16> rows = ring.next();
    for (int i = lane; i < kTileRows * kVectorsPerRow; i += kWarp) {
      float elements[8];
      widen<Half>(load16(rows + (i / kVectorsPerRow * Tile::kPitch + i % kVectorsPerRow)), elements);
      for (int c = 0; c < 8; ++c) out[(item * kTileRows * kVectorsPerRow + i) * 8 + c] = elements[c];
    }
  }
  copy_async_wait<0>();
}

template <class T>
__global__ void split(const float* weights, std::uint32_t* out) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  std::uint32_t parts[kParts];
  split_weights(T{}, load_once(weights + 2 * i), load_once(weights + 2 * i + 1), parts);
  for (int part = 0; part < kParts; ++part) out[kParts * i + part] = parts[part];
}

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& elements) {
  DeviceBuffer<T> buffer(static_cast<std::int64_t>(elements.size()));
  buffer.upload(elements);
  return buffer;
}

}  // namespace

std::vector<float> join_splits_on_device(const std::vector<float>& states, KeyRange range, int n_parts, int n_entries) {
  const std::int64_t n_floats = WorkerForest<Joiner>::n_floats(range.size());
  const DeviceBuffer<float> in = on_device(states), forests(n_floats * n_parts), out(state_size(kJoinDim));
  const auto n_scratch = static_cast<std::size_t>(kListFloats + n_entries * WorkerForest<Joiner>::kEntry);
  launch(join, {.block = {kJoinThreads}, .shared_bytes = n_scratch * sizeof(float)}, Stream{}, in.data(), range, n_parts,
         n_entries, forests.data(), n_floats, out.data());
  return out.download();
}

std::vector<float> lane_ring_on_device(const std::vector<float>& keys, const std::vector<float>& values, int stride, int d_h,
                                       int d_v, unsigned valid, bool aligned) {
  const DeviceBuffer<float> k = on_device(keys), v = on_device(values), out(2 * 2 * kRingRows * kRingDim);
  DecodeParams params;
  params.k.stride[2] = params.v.stride[2] = stride;
  params.d_h = d_h, params.d_v = d_v;
  launch(lane_ring, {.block = {kWarp}, .shared_bytes = LaneRing<Ringed>::n_bytes(2, kWarp)}, Stream{}, params, k.data(),
         v.data(), stride, valid, aligned, out.data());
  return out.download();
}

std::vector<float> tile_ring_on_device(const std::vector<std::uint16_t>& k, const std::vector<std::uint16_t>& v, int d_h,
                                       int d_v, std::int64_t begin, std::int64_t length, KeyRange range, int n_items,
                                       bool aligned) {
  const DeviceBuffer<std::uint16_t> keys = on_device(k), values = on_device(v);
  const DeviceBuffer<std::int64_t> lengths = on_device(std::vector<std::int64_t>{length});
  const DeviceBuffer<float> out(std::int64_t{n_items} * kTileRows * kTileDim);
  DecodeParams params;
  params.k = {keys.data(), {0, 0, d_h}}, params.v = {values.data(), {0, 0, d_v}};
  params.lengths = lengths.data();
  params.d_h = d_h, params.d_v = d_v;
  params.begin = begin, params.end = begin + keys.size() / d_h;
  launch(tile_ring, {.block = {kWarp}, .shared_bytes = TileRing<Tile>::kVectors * sizeof(Bytes16)}, Stream{}, params, range,
         aligned, n_items, out.data());
  return out.download();
}

std::vector<std::uint32_t> split_weights_on_device(bool is_bf16, const std::vector<float>& weights) {
  const auto n = static_cast<unsigned>(weights.size() / 2);
  const DeviceBuffer<float> in = on_device(weights);
  const DeviceBuffer<std::uint32_t> out(std::int64_t{n} * kParts);
  launch(is_bf16 ? split<BFloat16> : split<Half>, {.grid = {n}, .block = {1}}, Stream{}, in.data(), out.data());
  return out.download();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
