// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The join of states as a launch of its own, alone: what it takes beside the joins at the end of the library kernels
/// (section 5, Alg. 3).
///
/// Run: time_join
/// A first kernel leaves one state for each *unit*, an aligned subtree of the keys of a row; the second joins the units of a
/// row in the order of the tree, which over equal units is a perfect one: places without a unit are empty. It is a dependent
/// launch, and has one block per row of 128 components, so all multiprocessors join. Its output must have the bits of
/// merge() on the host. Prints, for numbers of rows and units, the seconds that it adds to the first kernel in a graph, as a
/// dependent launch and as a plain one; and, by stamps of single launches, when it has waited and when it has written,
/// counted from the end of the last block of the first kernel.
#include "gpu/engine/forest.cuh"
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/program.hpp"

#include <cstring>
#include <vector>

namespace tree_attn::cuda {
namespace {

/// Components of a row and of a lane; floats of a state in memory: shift, sum, two of padding, components.
constexpr int kComponents = 128, kOfLane = kComponents / kWarp, kStateFloats = 4 + kComponents;
constexpr int kJoinWarps = 8, kAtOnce = 8;  ///< warps of a block, and states that a lane has loaded at a time
constexpr int kLevels = 7;                  ///< subtrees of kAtOnce units that wait in a warp: up to 4,096 units a row

using State = LaneState<kOfLane>;

/// States of units [0, n_units) of some rows: [unit][row][kStateFloats].
struct UnitStates {
  float* memory;
  int n_rows, n_units;
  __device__ float* at(int unit, int row) const {
    return memory + (static_cast<std::int64_t>(unit) * n_rows + row) * kStateFloats;
  }
};

/// An element of a state that is made up: the shift (c = -2), the sum (-1), or component c.
TREE_ATTN_HOST_DEVICE inline float made_up(int unit, int row, int c) {
  const int mixed = (unit * 73 + row * 31 + (c + 2) * 17) % 64;
  return c == -2   ? static_cast<float>(mixed / 4 - 8)
         : c == -1 ? 1 + static_cast<float>(mixed) / 64
                   : static_cast<float>(mixed - 32) / 32;
}

/// Writes all states, a warp each in turn. @param ends of the blocks
__global__ void __launch_bounds__(128) store_units(UnitStates units, std::uint64_t* ends) {
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, n_warps = static_cast<int>(gridDim.x * blockDim.x) / kWarp;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp; i < units.n_units * units.n_rows;
       i += n_warps) {
    const int unit = i / units.n_rows, row = i % units.n_rows;
    State state{made_up(unit, row, -2), made_up(unit, row, -1), {}};
    for (int c = 0; c < kOfLane; ++c) state.n[c] = made_up(unit, row, kOfLane * lane + c);
    float* const to = units.at(unit, row);
    if (lane == 0) store_fresh16(to, state_vector(state, 0));
    store_fresh16(to + 4 + kOfLane * lane, state_vector(state, 1));
  }
  __syncthreads();
  if (threadIdx.x == 0) ends[blockIdx.x] = nanoseconds();
}

/// Adjacent pairs of kAtOnce states, and of their parents, up to one.
__device__ __forceinline__ void merge_all(State (&states)[kAtOnce]) {
  TREE_ATTN_UNROLL
  for (int distance = 1; distance < kAtOnce; distance *= 2) TREE_ATTN_UNROLL
  for (int i = 0; i < kAtOnce; i += 2 * distance) merge(states[i], states[i + distance]);
}

/// Vectors of a waiting state of a warp in shared memory: one per lane, and one more for shift and sum.
constexpr int kVectorsOfWaiting = kWarp + 1;
__device__ __forceinline__ State waiting(Shared<Bytes16> at, int lane) {
  State state;
  set_state_vector(state, 0, load16(at + kWarp)), set_state_vector(state, 1, load16(at + lane));
  return state;
}
__device__ __forceinline__ void let_wait(Shared<Bytes16> at, int lane, const State& state) {
  store16(at + lane, state_vector(state, 1));
  if (lane == 0) store16(at + kWarp, state_vector(state, 0));
}

/// Grid: rows; block: kJoinWarps warps, each with an equal part of the places of the tree.
/// @param log_units places of the tree, as a power of two; at least kJoinWarps * kAtOnce
/// @param[out] stamps of each block: it has waited, it has written
__global__ void __launch_bounds__(kJoinWarps* kWarp)
    combine(UnitStates units, int log_units, float* out, float* lse, std::uint64_t* stamps) {
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            row = static_cast<int>(blockIdx.x), n_places = (1 << log_units) / kJoinWarps;
  Arena arena;
  const Shared<Bytes16> memory = arena.take<Bytes16>(kJoinWarps * kLevels * kVectorsOfWaiting);
  const auto place = [&](int of_warp, int level) { return memory + (of_warp * kLevels + level) * kVectorsOfWaiting; };
  wait_for_previous_launch();
  if (threadIdx.x == 0) stamps[2 * row] = nanoseconds();

  // Each warp: kAtOnce units, then the subtrees on their left that they complete, as in a binary counter.
  State state;
  TREE_ATTN_LOOP
  for (int first = 0; first < n_places; first += kAtOnce) {
    State states[kAtOnce];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = warp * n_places + first + i;
      set_empty(states[i]);
      if (unit < units.n_units) {
        set_state_vector(states[i], 0, load_fresh16(units.at(unit, row)));
        set_state_vector(states[i], 1, load_fresh16(units.at(unit, row) + 4 + kOfLane * lane));
      }
    }
    merge_all(states);
    state = states[0];
    int level = 0;
    TREE_ATTN_LOOP
    for (int before = first / kAtOnce; (before & 1) != 0; before >>= 1, ++level) {
      State left = waiting(place(warp, level), lane);
      merge(left, state);
      state = left;
    }
    __syncwarp();
    let_wait(place(warp, level), lane, state);
    __syncwarp();
  }

  // The first warp: what the warps have.
  __syncthreads();
  let_wait(place(warp, 0), lane, state);
  __syncthreads();
  if (warp > 0) return;
  State states[kAtOnce];
  static_assert(kAtOnce == kJoinWarps);
  TREE_ATTN_UNROLL
  for (int i = 0; i < kJoinWarps; ++i) states[i] = waiting(place(i, 0), lane);
  merge_all(states);
  const float shift_and_sum[] = {states[0].shift, states[0].sum};
  if (lane == 0) lse[row] = finish_lse(shift_and_sum);
  TREE_ATTN_UNROLL
  for (int c = 0; c < kOfLane; ++c)
    out[row * kComponents + kOfLane * lane + c] = finish_value(shift_and_sum, states[0].n[c]);
  if (lane == 0) stamps[2 * row + 1] = nanoseconds();
}

/// A row joined on the host: out, then lse.
std::vector<float> joined(int n_units, int n_places, int row) {
  std::vector<std::vector<float>> states;
  for (int unit = 0; unit < n_places; ++unit) {
    std::vector<float> state(kValues + kComponents, -0.0f);
    state[kShift] = -std::numeric_limits<float>::infinity(), state[kSum] = 0;
    for (int c = -2; c < kComponents && unit < n_units; ++c) state[static_cast<std::size_t>(c + 2)] = made_up(unit, row, c);
    states.push_back(std::move(state));
  }
  for (std::size_t distance = 1; distance < states.size(); distance *= 2)
    for (std::size_t i = 0; i < states.size(); i += 2 * distance)
      tree_attn::merge(states[i].data(), states[i + distance].data(), kComponents);
  std::vector<float> all(kComponents);
  for (int c = 0; c < kComponents; ++c)
    all[static_cast<std::size_t>(c)] = finish_value(states[0].data(), states[0][static_cast<std::size_t>(kValues + c)]);
  all.push_back(finish_lse(states[0].data()));
  return all;
}

/// @returns whether the output has other bits than the host has
bool time_join(int n_rows, int n_units, Stream stream) {
  int log_units = 6;
  while (1 << log_units < n_units) ++log_units;
  const int n_blocks = device().n_multiprocessors;
  DeviceBuffer<float> memory(static_cast<std::int64_t>(n_rows) * n_units * kStateFloats), out(n_rows * kComponents),
      lse(n_rows);
  DeviceBuffer<std::uint64_t> ends(n_blocks), stamps(2 * n_rows);
  const UnitStates units{memory.data(), n_rows, n_units};
  const auto store = [&] {
    launch(store_units, {.grid = {static_cast<unsigned>(n_blocks)}, .block = {128}}, stream, units, ends.data());
  };
  const auto join = [&](bool overlaps) {
    const Launch config{.grid = {static_cast<unsigned>(n_rows)},
                        .block = {kJoinWarps * kWarp},
                        .shared_bytes = std::size_t{kJoinWarps} * kLevels * kVectorsOfWaiting * sizeof(Bytes16) + 128,
                        .overlaps = overlaps};
    launch(combine, config, stream, units, log_units, out.data(), lse.data(), stamps.data());
  };
  memory.fill(0xFF), out.fill(0xFF), lse.fill(0xFF);
  check(cudaDeviceSynchronize(), "poisoning the states");

  // Stamps of launches alone, and the bits of the last.
  std::vector<double> waited, written;
  for (int i = 0; i < (is_rehearsal() ? 1 : 21); ++i) {
    launch(wait_for, {}, stream, 20'000LL);
    store(), join(true);
    check(cudaDeviceSynchronize(), "a join");
    const std::uint64_t end = std::ranges::max(ends.download());
    const std::vector<std::uint64_t> times = stamps.download();
    const auto last = [&](std::size_t which) {
      std::uint64_t latest = 0;
      for (std::size_t row = 0; row < times.size() / 2; ++row) latest = std::max(latest, times[2 * row + which]);
      return 1e-9 * static_cast<double>(static_cast<std::int64_t>(latest - end));
    };
    waited.push_back(last(0)), written.push_back(last(1));
  }
  const std::vector<float> values = out.download(), logs = lse.download();
  bool is_wrong = false;
  for (int row = 0; row < n_rows; ++row) {
    const std::vector<float> want = joined(n_units, 1 << log_units, row);
    is_wrong |= std::memcmp(want.data(), values.data() + row * kComponents, kComponents * sizeof(float)) != 0 ||
                std::memcmp(&want.back(), &logs[static_cast<std::size_t>(row)], sizeof(float)) != 0;
  }
  const auto seconds = [&](const auto& run) {
    return time_in_graph(
        stream, 1, [&](int) { run(); }, guess_of(stream, 1, [&](int) { run(); }), 0.1);
  };
  JsonLine line("join");
  line.add("rows", n_rows).add("units", n_units);
  if (is_wrong) {
    line.add("note", "WRONG: other bits than merge() on the host");
    return true;
  }
  const double first = seconds(store);
  line.add("store_seconds", first).add("dependent_seconds", seconds([&] { store(), join(true); }) - first);
  line.add("plain_seconds", seconds([&] { store(), join(false); }) - first);
  line.add("waited_seconds", median(waited)).add("written_seconds", median(written));
  return false;
}

int time_all(const Options&) {
  const OwnedStream stream;
  if (is_rehearsal()) return time_join(3, 5, stream) + time_join(2, 150, stream) > 0 ? 1 : 0;
  int n_wrong = 0;
  // One row a head; four, and 8 queries of each; rows of 512 components, as four of 128, of 16 heads and of 128.
  for (const int n_rows : {16, 32, 64, 256, 512})
    for (const int n_units : {8, 64, 256, 1024}) n_wrong += time_join(n_rows, n_units, stream);
  return n_wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) { return tree_attn::run_program(argc, argv, "time_join", tree_attn::cuda::time_all); }
