// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of part_kernels.hpp.
#include "tests/gpu/engine/part_kernels.hpp"

#include "gpu/backend/session.hpp"
#include "gpu/engine/equal_runs.cuh"
#include "gpu/engine/pipelines.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

using Warp = ScalarWarp<float, 128>;
using State = LaneState<Warp::kElements>;

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& elements) {
  DeviceBuffer<T> buffer(static_cast<std::int64_t>(elements.size()));
  buffer.upload(elements);
  return buffer;
}

Launch warps(std::int64_t n) { return {.grid = {static_cast<unsigned>(n)}, .block = {kWarp}}; }

__device__ void load_state(const float* from, int lane, State& state) {
  state.shift = load_once(from + kShift), state.sum = load_once(from + kSum);
  for (int c = 0; c < Warp::kElements; ++c) {
    const int component = Warp::component(lane, c);
    state.n[c] = component < kStateDim ? load_once(from + kValues + component) : -0.0f;
  }
}

__device__ void store_state(float* to, int lane, const State& state) {
  if (lane == 0) to[kShift] = state.shift, to[kSum] = state.sum;
  for (int c = 0; c < Warp::kElements; ++c) {
    if (Warp::component(lane, c) < kStateDim) to[kValues + Warp::component(lane, c)] = state.n[c];
  }
}

__global__ void merge_kernel(const float* left, const float* right, float* out) {
  const std::int64_t at = blockIdx.x * state_size(kStateDim);
  const int lane = static_cast<int>(threadIdx.x);
  State a, b;
  load_state(left + at, lane, a);
  load_state(right + at, lane, b);
  merge(a, b);
  store_state(out + at, lane, a);
}

/// Values of eight keys, in global memory.
struct Values {
  const float* first;
  __device__ Four<float> operator()(int i, int component) const {
    return load_once(reinterpret_cast<const Four<float>*>(first + i * kStateDim + component));
  }
};

/// One leaf per block.
__global__ void leaf_kernel(const float* scores, const float* values, float* out) {
  const int lane = static_cast<int>(threadIdx.x);
  Arena arena;
  const Shared<float> w = arena.take<float>(kLeafKeys);
  float shift = -std::numeric_limits<float>::infinity();
  for (int a = lane; a < kLeafKeys; a += kWarp) {
    const float s = load_once(scores + blockIdx.x * kLeafKeys + a);
    shift = std::fmax(shift, key_shift(s)), w[a] = s;
  }
  State leaf;
  LeafSums<Warp::kElements> sums;
  const bool all_seen = weigh_leaf(w, shift, leaf);
  for (int step = 0; step < kStepsPerLeaf; ++step) {
    const Values rows{values + (blockIdx.x * kLeafKeys + step * kKeysPerStep) * kStateDim};
    sum_of_eight<Warp>(w + step * kKeysPerStep, rows, kStateDim, all_seen, leaf.n);
    sums.add(step, leaf.n);
  }
  store_state(out + blockIdx.x * state_size(kStateDim), lane, leaf);
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

/// Counts how often the slots of a batch entry are asked for.
struct CountedParams : DecodeParams {
  unsigned* n_asked = nullptr;

  __device__ UsedSlots used_slots(std::int64_t entry) const {
    atomicAdd(n_asked, 1u);
    return DecodeParams::used_slots(entry);
  }
};

/// Calls act(i) for the elements of this thread.
template <class Act>
__device__ void for_own(std::int64_t n, const Act& act) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) act(i);
}
__global__ void finish_kernel(const float* states, std::int64_t n, float* out) {
  for_own(n, [&](std::int64_t i) {
    out[2 * i] = finish_lse(states + 3 * i), out[2 * i + 1] = finish_value(states + 3 * i, states[3 * i + kValues]);
  });
}
__global__ void exp2_kernel(const float* x, float scale, float shift, std::int64_t n, float* out) {
  for_own(n, [&](std::int64_t i) { out[i] = exp2_of_sum(x[i], scale, kToWhole - shift); });
}
template <class T>
__global__ void widen_kernel(std::int64_t n, float* out) {
  for_own(n, [&](std::int64_t i) { out[i] = widen(T{static_cast<std::uint16_t>(i)}); });
}
template <class T>
__global__ void narrow_kernel(const float* in, std::int64_t n, std::uint16_t* out) {
  for_own(n, [&](std::int64_t i) { out[i] = narrow<T>(in[i]).bits; });
}

__global__ void write_word(unsigned* word) { store_fresh(word, 1u); }
__global__ void read_word(const unsigned* word) { load_fresh(word); }

}  // namespace

std::vector<float> merge_on_device(const std::vector<float>& left, const std::vector<float>& right) {
  const DeviceBuffer<float> a = on_device(left), b = on_device(right), out(a.size());
  launch(merge_kernel, warps(a.size() / state_size(kStateDim)), Stream{}, a.data(), b.data(), out.data());
  return out.download();
}

std::vector<float> leaves_on_device(const std::vector<float>& scores, const std::vector<float>& values) {
  const std::int64_t n = static_cast<std::int64_t>(scores.size()) / kLeafKeys;
  const DeviceBuffer<float> s = on_device(scores), v = on_device(values), out(n * state_size(kStateDim));
  launch(leaf_kernel, {.grid = {static_cast<unsigned>(n)}, .block = {kWarp}, .shared_bytes = kLeafKeys * sizeof(float)},
         Stream{}, s.data(), v.data(), out.data());
  return out.download();
}

std::vector<float> combine_on_device(const std::vector<float>& states, KeyRange leaves, int log, int n_warps) {
  DecodeParams params;
  params.batch = params.kv_heads = params.group = 1, params.d_v = kStateDim;
  const DeviceBuffer<std::int64_t> lengths = on_device(std::vector<std::int64_t>{leaves.end * kLeafKeys});
  params.lengths = lengths.data();
  params.begin = leaves.begin * kLeafKeys, params.end = params.readable_end = leaves.end * kLeafKeys;
  LaunchPlan plan;
  plan.n_combining = n_warps;
  UnitMemory memory{.rule = {.least_log = log, .most_items = ~Count{0}, .n_blocks = 0}};
  memory.n_state = UnitMemory::kFirstComponent + kStateDim;
  // As a walk leaves them: two floats between shift and sum and the components.
  const std::int64_t size = state_size(kStateDim), n = static_cast<std::int64_t>(states.size()) / size;
  std::vector<float> units(static_cast<std::size_t>(n * memory.n_state));
  for (std::int64_t i = 0; i < n; ++i) {
    float* const to = units.data() + i * memory.n_state;
    to[0] = states[i * size + kShift], to[1] = states[i * size + kSum];
    std::copy_n(states.data() + i * size + kValues, kStateDim, to + UnitMemory::kFirstComponent);
  }
  const DeviceBuffer<float> in = on_device(units), out(params.n_subtrees_of_shard() * size);
  memory.floats = in.data();
  run_combine<float>(params, memory, {.states = out.data()}, plan, Stream{});
  return out.download();
}

std::vector<Count> scan_on_device(const std::vector<Count>& counts) {
  const DeviceBuffer<Count> in = on_device(counts);
  const Count n = static_cast<Count>(counts.size()), n_items = SerialScan::sum(n, [&](Count i) { return counts[i]; });
  const DeviceBuffer<Count> out(1 + 2 * std::int64_t{n_items});
  launch(scan, {.block = {kWarp}}, Stream{}, in.data(), n, n_items, out.data());
  return out.download();
}

unsigned n_asked_on_device(std::int64_t batch, int n_blocks) {
  using Pipeline = ScalarPipeline<Warp, CountedParams>;
  DeviceBuffer<float> elements(batch * kStateDim);
  const DeviceBuffer<std::int64_t> lengths = on_device(std::vector<std::int64_t>(static_cast<std::size_t>(batch), 1));
  const DeviceBuffer<unsigned> n_asked = on_device(std::vector<unsigned>{0});
  elements.fill(0);
  CountedParams params;
  params.q = params.k = params.v = {elements.data(), {kStateDim, kStateDim, kStateDim}};
  params.lengths = lengths.data();
  params.batch = batch, params.d_h = params.d_v = kStateDim, params.end = 1;
  params.n_asked = n_asked.data();
  const BlockSize block = fit_block<Pipeline>(params);
  LaunchPlan plan;
  plan.n_threads = block.n_threads, plan.n_stages = block.n_stages, plan.n_blocks = n_blocks;
  plan.shared_bytes = kKernelBytes + block.n_bytes;
  const UnitMemory without = unit_memory<Pipeline>(params, plan, true, nullptr);
  plan.n_floats = without.first_unit + most_items<Pipeline>(params, plan, without) * without.n_rows * without.n_state;
  const DeviceWorkspace workspace(plan);
  launch(decode_units<Pipeline>,
         {.grid = {static_cast<unsigned>(n_blocks)},
          .block = {static_cast<unsigned>(plan.n_threads)},
          .shared_bytes = plan.shared_bytes},
         Stream{}, params, unit_memory<Pipeline>(params, plan, true, workspace.get().floats),
         Pipeline::arguments(params, plan));
  return n_asked.download()[0] / kWarp;
}

UnitCounts count_units(DecodeParams params, DType dtype) {
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(params.batch), params.end);
  params.lengths = lengths.data();
  const LaunchPlan plan = plan_equal_runs<DecodeParams>(params, dtype, {});
  UnitCounts counts{.blocks = plan.n_blocks};
  with_type(dtype, [&](auto type) {
    with_pipeline<decltype(type)>(params, [&](auto pipeline) {
      using Pipeline = typename decltype(pipeline)::type;
      const UnitMemory memory = unit_memory<Pipeline>(params, plan, true, nullptr);
      const Division all(params, memory.rule, memory.log_rows);
      for (Count i = 0; i < params.batch; ++i) {
        counts.units += all.units(params, i).size();
        counts.cache_bytes += params.kv_heads * params.used_slots(i).size() *
                              bytes_of_leaf(params, kStoredBytes<typename Pipeline::ThreadGroup>);
      }
      counts.items = all.n_items(params, Count(params.batch));
      counts.state_bytes = counts.units * params.kv_heads * params.group * memory.n_state * std::int64_t{sizeof(float)};
    });
  });
  return counts;
}

std::vector<float> finish_on_device(const std::vector<float>& states) {
  const DeviceBuffer<float> in = on_device(states), out(in.size() / 3 * 2);
  launch(finish_kernel, {.grid = {64}, .block = {256}}, Stream{}, in.data(), in.size() / 3, out.data());
  return out.download();
}

std::vector<float> exp2_on_device(const std::vector<float>& x, float scale, float shift) {
  const DeviceBuffer<float> in = on_device(x), out(in.size());
  launch(exp2_kernel, {.grid = {4}, .block = {256}}, Stream{}, in.data(), scale, shift, in.size(), out.data());
  return out.download();
}

std::vector<float> widened_on_device(DType dtype) {
  const DeviceBuffer<float> out(1 << 16);
  void (*const kernel)(std::int64_t, float*) = dtype == DType::F16 ? widen_kernel<Half> : widen_kernel<BFloat16>;
  launch(kernel, {.grid = {64}, .block = {256}}, Stream{}, out.size(), out.data());
  return out.download();
}

std::vector<std::uint16_t> narrowed_on_device(DType dtype, const std::vector<float>& elements) {
  const DeviceBuffer<float> in = on_device(elements);
  const DeviceBuffer<std::uint16_t> out(in.size());
  void (*const kernel)(const float*, std::int64_t, std::uint16_t*) =
      dtype == DType::F16 ? narrow_kernel<Half> : narrow_kernel<BFloat16>;
  launch(kernel, {.grid = {64}, .block = {256}}, Stream{}, in.data(), in.size(), out.data());
  return out.download();
}

void queue_write(unsigned* word) { launch(write_word, {}, Stream{}, word); }
void queue_early_read(const unsigned* word) { launch(read_word, {.overlaps = device().major >= 9}, Stream{}, word); }

}  // namespace tree_attn::TREE_ATTN_PLATFORM
