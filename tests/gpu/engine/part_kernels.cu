// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of part_kernels.hpp.
#include "tree_attn/tests/gpu/engine/part_kernels.hpp"

#include "tree_attn/gpu/backend/session.hpp"
#include "tree_attn/gpu/engine/equal_runs.cuh"
#include "tree_attn/gpu/engine/join.cuh"
#include "tree_attn/gpu/engine/pipelines.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

using Joiner = SubWarp<float, 8, 1>;
static_assert(Joiner::kLanes * Joiner::kElements == kJoinDim);

/// Threads of the block that joins: as many groups as there may be, and one more.
constexpr int kSlices = StateSlice<Joiner>::kSlices, kJoinEntry = kSlices * SliceStates<Joiner>::kFloats;
constexpr unsigned kJoinThreads = kSlices * ((1 << kLogJoinGroups) + 1);

__global__ void join(const float* states, KeyRange range, int n_parts, int n_entries, float* forests, std::int64_t n_floats,
                     float* out, int* n_roots) {
  Arena arena;
  const int n_scratch = kJoinFloats + n_entries * kJoinEntry;
  const Scratch scratch{arena.take<float>(n_scratch), n_scratch};
  const int lane = static_cast<int>(threadIdx.x) % Joiner::kLanes,
            thread_group = static_cast<int>(threadIdx.x) / Joiner::kLanes;
  for (int i = thread_group; i < n_parts; i += static_cast<int>(kJoinThreads) / Joiner::kLanes) {
    const KeyRange part = split_range(range, i, n_parts);
    const GroupForest<Joiner> forest(forests + i * n_floats, lane);
    int depth = 0;
    for (std::int64_t position = part.begin; position < part.end; ++position) {
      const float* const from = states + (position - range.begin) * state_size(kJoinDim);
      LaneState<Joiner::kElements> state;
      state.shift = load_once(from + kShift), state.sum = load_once(from + kSum);
      for (int c = 0; c < Joiner::kElements; ++c) state.n[c] = load_once(from + kValues + Joiner::component(lane, c));
      Subtree subtree{0, position};
      for (; (subtree.index & 1) == 1 && subtree.parent().begin() >= part.begin; subtree = subtree.parent()) {
        LaneState<Joiner::kElements> left;
        forest.load(--depth, left);
        merge(left, state);
        state = left;
      }
      forest.store(depth++, state);
    }
  }
  __syncthreads();
  join_splits<Joiner, 0>(scratch, 1, forests, n_floats, range, n_parts, [&](const auto& slice, const auto& roots) {
    if (slice.component(0) == 0) *n_roots = roots.size();
    // Each of them, and their fold.
    for (int i = 0; i <= roots.size(); ++i) {
      StateSlice<Joiner>::State state;
      i < roots.size() ? roots.load(i, state) : roots.fold(0, i, state);
      float* const to = out + i * state_size(kJoinDim);
      if (slice.component(0) == 0) to[kShift] = state.shift, to[kSum] = state.sum;
      for (int c = 0; c < StateSlice<Joiner>::kElements; ++c) to[kValues + slice.component(c)] = state.n[c];
    }
  });
}

__global__ void scan(const Count* counts, Count n, Count n_items, Count* out) {
  const auto of = [counts](Count i) { return load_once(counts + i); };
  const Count sum = WarpScan::sum(n, of);
  if (threadIdx.x % 2 == 1) out[0] = sum;
  FoundEntry before;
  for (Count item = 0; item < n_items; ++item) {
    const FoundEntry found = WarpScan::find(n, item, of, item % 2 == 0 ? FoundEntry{} : before);
    if (item % 5 == 0) before = found;
    if (threadIdx.x == item % kWarp) out[1 + 2 * item] = found.entry, out[2 + 2 * item] = found.first;
  }
}

/// Counts how often the leaves of a batch entry are asked for.
struct CountedParams : DecodeParams {
  unsigned* n_asked = nullptr;

  __device__ KeyRange leaves_by_entry(std::int64_t entry) const {
    atomicAdd(n_asked, 1u);
    return DecodeParams::leaves_by_entry(entry);
  }
};

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& elements) {
  DeviceBuffer<T> buffer(static_cast<std::int64_t>(elements.size()));
  buffer.upload(elements);
  return buffer;
}

__global__ void write_word(unsigned* word) { store_fresh(word, 1u); }
__global__ void read_word(const unsigned* word) { load_fresh(word); }

/// The element at a row and column of a leaf in shared memory, box after box.
__device__ float element_of(Shared<Bytes16> leaf, int row, int column) {
  const Shared<Bytes16> box = leaf + column / kBoxColumns * kBoxVectors;
  float elements[8];
  widen<Half>(load16(box + (row * kRowVectors + swizzled_unit(row, column % kBoxColumns / 8))), elements);
  return elements[column % 8];
}

struct Ranges {
  KeyRange range[4];
  int n;
};

template <RowCopy kCopy>
__global__ void tile_ring(DecodeParams params, Ranges ranges, TileRingOptions options,
                          const __grid_constant__ typename TileRing<MmaTile<Half, kTileDim, 4>, kCopy>::Maps maps,
                          float* out) {
  using Ring = TileRing<MmaTile<Half, kTileDim, 4>, kCopy>;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (!Ring::kHasMaps) {
#else
  {
#endif
    Arena arena;
    const int n_stages = Ring::n_stages(maps);
    const Shared<Barrier> full = arena.take<Barrier>(n_stages);
    const int lane = static_cast<int>(threadIdx.x);
    Ring ring(arena.take<Bytes16>(n_stages * Ring::kStageVectors, kBoxAlignment), full, maps, lane);
    for (int i = 0; i < ranges.n; ++i) {
      const ContiguousLeaves leaves(ranges.range[i], params.in_use(0));
      const bool copies = options.aligned && !options.only_finite;
      if (copies)
        ring.template begin<true>(params, 0, leaves);
      else
        ring.template begin<false>(params, 0, leaves, options.only_finite);
      for (int leaf = 0; leaf < leaves.n_leaves(); ++leaf) {
        const LeafKeys keys(leaves, leaf * static_cast<int>(kLeafKeys));
        for (int which = 0; which < 2; ++which) {
          for (int tile = 0; tile < Ring::kTiles; ++tile) {
            const Shared<Bytes16> boxes = ring.next();
            if (copies && which == 1 && !keys.are_all()) ring.clear(boxes, keys);
            constexpr int kPairs = Ring::kTileBoxes * kBoxColumns;
            for (int j = lane; j < kTileRows * kPairs; j += kWarp)
              out[j / kPairs * kTileDim + tile * kPairs + j % kPairs] = element_of(boxes, j / kPairs, j % kPairs);
            if (copies)
              ring.template release<true>(params, leaf, which * Ring::kTiles + tile);
            else
              ring.template release<false>(params, leaf, which * Ring::kTiles + tile);
          }
          out += kTileRows * kTileDim;
        }
      }
    }
    copy_async_wait<0>();
  }
}

}  // namespace

std::vector<float> join_splits_on_device(const std::vector<float>& states, KeyRange range, int n_parts, int n_entries) {
  constexpr int kMostRoots = 64;
  const std::int64_t n_floats = GroupForest<Joiner>::n_floats(range.size());
  const DeviceBuffer<float> in = on_device(states), forests(n_floats * n_parts),
                            out((kMostRoots + 1) * state_size(kJoinDim));
  const DeviceBuffer<int> n_roots(1);
  const auto n_scratch = static_cast<std::size_t>(kJoinFloats + n_entries * kJoinEntry);
  launch(join, {.block = {kJoinThreads}, .shared_bytes = n_scratch * sizeof(float)}, Stream{}, in.data(), range, n_parts,
         n_entries, forests.data(), n_floats, out.data(), n_roots.data());
  std::vector<float> roots = out.download();
  roots.resize(static_cast<std::size_t>((n_roots.download()[0] + 1) * state_size(kJoinDim)));
  return roots;
}

std::vector<Count> scan_on_device(const std::vector<Count>& counts) {
  const DeviceBuffer<Count> in = on_device(counts);
  const Count n = static_cast<Count>(counts.size()), n_items = SerialScan::sum(n, [&](Count i) { return counts[i]; });
  const DeviceBuffer<Count> out(1 + 2 * std::int64_t{n_items});
  launch(scan, {.block = {kWarp}}, Stream{}, in.data(), n, n_items, out.data());
  return out.download();
}

unsigned n_asked_on_device(std::int64_t batch, int n_blocks) {
  using Pipeline = SubWarpPipeline<Joiner, CountedParams>;
  DeviceBuffer<float> elements(batch * kJoinDim), out(batch * kJoinDim), lse(batch);
  const DeviceBuffer<std::int64_t> lengths = on_device(std::vector<std::int64_t>(static_cast<std::size_t>(batch), 1));
  const DeviceBuffer<unsigned> n_asked = on_device(std::vector<unsigned>{0});
  elements.fill(0);
  CountedParams params;
  params.q = params.k = params.v = {elements.data(), {kJoinDim, kJoinDim, kJoinDim}};
  params.lengths = lengths.data();
  params.batch = batch, params.d_h = params.d_v = kJoinDim, params.end = 1;
  params.n_asked = n_asked.data();
  const BlockSize block = fit_block<Pipeline>(params);
  LaunchPlan plan;
  plan.n_threads = block.n_threads, plan.n_stages = block.n_stages, plan.n_blocks = n_blocks;
  plan.shared_bytes = kEqualRunsBytes + block.n_bytes;
  plan.n_floats = n_blocks * equal_runs_workspace<Pipeline>(params, plan, nullptr).n_floats();
  plan.n_counters = batch;
  const DeviceWorkspace workspace(plan);
  launch_runs<Pipeline>(equal_runs<Pipeline>, {}, params, WriteEpilogue{{.out = out.data(), .lse = lse.data()}}, plan,
                        workspace.get(), Stream{});
  return n_asked.download()[0] / static_cast<unsigned>(block.n_threads);
}

void queue_write(unsigned* word) { launch(write_word, {}, Stream{}, word); }
void queue_early_read(const unsigned* word) { launch(read_word, {.overlaps = device().major >= 9}, Stream{}, word); }

bool copies_listed_rows(const ListedParams& params, DType dtype) {
  bool copies = false;
  with_type(dtype, [&](auto type) {
    with_pipeline<decltype(type)>(
        params, [&](auto pipeline) { copies = decltype(pipeline)::type::arguments(params, {.n_stages = 2}).aligned; });
  });
  return copies;
}

void run_listed(const ListedParams& params, DType dtype, const DeviceOutput& output) {
  const LaunchPlan plan = plan_equal_runs(params, dtype, {});
  const DeviceWorkspace workspace(plan);
  run_equal_runs(params, dtype, output, plan, workspace.get(), Stream{});
}

std::vector<float> tile_ring_on_device(const std::vector<std::uint16_t>& k, const std::vector<std::uint16_t>& v, int d_h,
                                       int d_v, std::int64_t begin, std::int64_t length, const std::vector<KeyRange>& ranges,
                                       int n_leaves, const TileRingOptions& options) {
  const DeviceBuffer<std::uint16_t> keys = on_device(k), values = on_device(v);
  const DeviceBuffer<std::int64_t> lengths = on_device(std::vector<std::int64_t>{length});
  const DeviceBuffer<float> out(std::int64_t{n_leaves} * 2 * kTileRows * kTileDim);
  const auto n = static_cast<std::int64_t>(k.size()) / d_h;
  DecodeParams params;
  params.k = {keys.data(), {n * d_h, n * d_h, d_h}}, params.v = {values.data(), {n * d_v, n * d_v, d_v}};
  params.lengths = lengths.data();
  params.d_h = d_h, params.d_v = d_v;
  params.begin = begin, params.end = begin + n;
  Ranges on_stack{};
  for (const KeyRange& range : ranges) on_stack.range[on_stack.n++] = range;
  const auto run = [&]<RowCopy kCopy>(std::integral_constant<RowCopy, kCopy>) {
    using Tile = MmaTile<Half, kTileDim, 4>;
    using Ring = TileRing<Tile, kCopy>;
    const auto arguments = MmaPipeline<Tile, kCopy>::arguments(params, {.n_stages = options.n_stages});
    if (options.aligned && !arguments.aligned) throw DeviceError("rows cannot be copied");
    const auto n_vectors = static_cast<std::size_t>(Ring::kStages * Ring::kStageVectors);
    launch(tile_ring<kCopy>, {.block = {kWarp}, .shared_bytes = kBoxAlignment + n_vectors * sizeof(Bytes16)}, Stream{},
           params, on_stack, options, arguments.maps, out.data());
  };
  if (options.by_tensor_maps)
    run(std::integral_constant<RowCopy, RowCopy::TensorMap>{});
  else
    run(std::integral_constant<RowCopy, RowCopy::Async>{});
  return out.download();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
