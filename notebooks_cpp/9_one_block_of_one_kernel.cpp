// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 9

// %% [markdown]
// # Notebook 9: One block of one kernel {#notebook_kernel}
//
// What do the threads of a decoding kernel hold while it runs? Under the emulator a kernel is an
// ordinary function (@ref emulator), so we can print it. We decode one query over 600 keys,
// eq. (7), with one block of 32 threads. The block runs functions of the library kernel
// (@ref kernels_library): it computes the scores of eight keys at a time, adds eight keys to a leaf, merges
// leaves to units, and combines the units of four sub-warps.
//
// **What you need:** warps, lanes and shuffles, @ref notebook_tree, and the chapter on
// @ref kernels. **What you get:** each of these stages in numbers, and the bytes that the block
// reads.

// %%
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "notebooks_cpp/notebook.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

// %% [markdown]
// ## Instrumenting a primitive
//
// Kernels exchange data through a few functions. We replace one of them *before* the headers of the
// kernels are included: the exchange between two lanes records what was received.

// %%
namespace tree_attn::emulated {

/// Values that the lanes of the first sub-warp have received, [lane][exchange].
std::vector<std::vector<float>> came(8);

float noted_exchange(unsigned mask, float value, int flip) {
  const float other = __shfl_xor_sync(mask, value, flip);
  if (threadIdx.x < 8) came[threadIdx.x].push_back(other);
  return other;
}
template <class T>
T noted_exchange(unsigned mask, T value, int flip) {  // of other types
  return __shfl_xor_sync(mask, value, flip);
}

}  // namespace tree_attn::emulated

#define __shfl_xor_sync noted_exchange
#include "gpu/engine/scalar.cuh"
#undef __shfl_xor_sync
#include "gpu/engine/combine.cuh"
#include "gpu/engine/pipelines.cuh"
#include "gpu/ladder/ladder.hpp"

// %% [markdown]
// The functions that we instrument must be compiled here and not taken from the library. A stored
// type of our own, a float under another name, ensures that. A row of 32 such elements is eight
// lanes wide, so a warp consists of four sub-warps.

// %%
namespace tree_attn {
namespace {

struct Element {
  float x;
};
float widen(Element element) { return element.x; }

}  // namespace
}  // namespace tree_attn

using namespace tree_attn;
using namespace tree_attn::emulated;
using notebook::expect, notebook::same_bits;

namespace {

using Eight = SubWarp<Element, 8, 1>;  // eight lanes, one vector of 16 bytes each
using State = LaneState<Eight::kElements>;
constexpr int kDim = 32, kSubWarps = kWarp / Eight::kLanes;

// %% Keys, values and a query on the emulated device
/// Keys, values and a query on the emulated device.
struct OnDevice {
  DeviceBuffer<float> q{kDim}, k, v;
  DeviceBuffer<std::int64_t> lengths{1};
  DecodeParams params;

  OnDevice(std::mt19937& random, std::int64_t n_keys) : k(n_keys * kDim), v(n_keys * kDim) {
    std::normal_distribution<float> normal;
    for (DeviceBuffer<float>* buffer : {&q, &k, &v}) {
      std::vector<float> elements(static_cast<std::size_t>(buffer->size()));
      for (float& x : elements) x = normal(random);
      buffer->upload(elements);
    }
    lengths.upload(std::vector<std::int64_t>{n_keys});
    params.q = {q.data(), {kDim, kDim, kDim}};
    params.k = {k.data(), {n_keys * kDim, n_keys * kDim, kDim}};
    params.v = {v.data(), {n_keys * kDim, n_keys * kDim, kDim}};
    params.lengths = lengths.data();
    params.d_h = params.d_v = kDim;
    params.end = n_keys;
    params.score_scale = static_cast<float>(kLog2E / std::sqrt(double(kDim)));
  }
};

// %% [markdown]
// Where the rows of keys and values come from is a parameter of those functions. Here they are loaded
// from global memory, and the bytes are counted.

// %%
std::int64_t n_bytes_asked = 0;

/// Eight rows of keys, or of values, from `first` on: the 16 bytes that a lane holds of row i.
struct EightRows {
  const Element* first;
  int lane;
  unsigned valid = 0xFF;  ///< bit i: row i has a key

  Bytes16 operator()(int i, int) const {
    if ((valid >> i & 1) == 0) return Bytes16{};
    n_bytes_asked += 16;
    return load16_global(first + i * kDim + Eight::component(lane, 0));
  }
};

/// The rows of a range, step after step.
struct Source {
  const Element *first_key, *first_value;
  int lane = static_cast<int>(threadIdx.x) % Eight::kLanes;

  void wait(int, unsigned) {}
  EightRows keys(int step, unsigned valid) const { return {first_key + step * kKeysPerStep * kDim, lane, valid}; }
  EightRows values(int step, unsigned valid) const { return {first_value + step * kKeysPerStep * kDim, lane, valid}; }
  void next(int) {}
};

// %% [markdown]
// The first kernel does the work of a sub-warp on one leaf, the keys 0 to 63, in eight steps. In
// each step `platform::score_of_eight()` gives every lane the score of one key, and
// `platform::add_eight_keys()` adds the eight keys to the sums of the leaf. The kernel records the
// scores, and the state of the lanes of the first sub-warp after every step.

// %%
constexpr int kHeld = 2 + Eight::kElements;  // shift, sum, components of n

/// @param[out] scores [8 lanes][8 steps] @param[out] states [8 steps][8 lanes][kHeld]
__global__ void watch_leaf(DecodeParams params, float* scores, float* states) {
  const int lane = static_cast<int>(threadIdx.x) % Eight::kLanes;
  float q[Eight::kElements];
  for (int c = 0; c < Eight::kElements; ++c)
    q[c] = widen(load_once(params.query<Element>(0, 0) + Eight::component(lane, c)));

  State leaf;
  set_empty(leaf);
  for (int step = 0; step < kStepsPerLeaf; ++step) {
    const EightRows keys{params.key<Element>(0, kKeysPerStep * step), lane};
    const EightRows values{params.value<Element>(0, kKeysPerStep * step), lane};
    const float s = score_of_eight<Eight>(q, keys, params.score_scale, lane);
    add_eight_keys<Eight>(s, lane, values, leaf);

    if (threadIdx.x >= Eight::kLanes) continue;
    scores[lane * kStepsPerLeaf + step] = s;
    float* const to = states + (step * Eight::kLanes + lane) * kHeld;
    to[0] = leaf.shift, to[1] = leaf.sum;
    for (int c = 0; c < Eight::kElements; ++c) to[2 + c] = leaf.n[c];
  }
}

// %% [markdown]
// The second kernel pushes leaves into a `platform::UnitForest` and copies its memory after each of
// them: the states that wait, by level, and those of units. The sum of every leaf is 1 and
// a little that differs, so the sum of a state is its number of leaves and a little.

// %%
/// One lane that holds four components.
struct Lane {
  using T = float;
  static constexpr int kLanes = 1, kRows = 1, kSlots = 1, kElements = 4;
  static int row(int, int) { return 0; }
  static int place(int) { return 0; }
  static int lane_at(int) { return 0; }
  static int component(int, int c) { return c; }
};
constexpr int kLevels = 2, kUnits = 3;  // that are printed

/// @param[out] sums [leaves of the run][kLevels + kUnits]
__global__ void watch_units(UnitRun run, KeyRange range, UnitMemory memory, float* sums) {
  const ContiguousLeaves leaves(range, range);
  UnitForest<Lane, ContiguousLeaves, InRegisters<4>> forest(run, memory.place_of_row(0, 0), memory, 1, leaves, 0);
  for (int i = 0; i < leaves.n_leaves(); ++i) {
    LaneState<4> leaf{0, 1 + static_cast<float>(i) / 1024, {}};
    forest.push(i, leaf);
    float* const to = sums + i * (kLevels + kUnits);
    for (int level = 0; level < kLevels; ++level) to[level] = memory.floats[level * GroupStates<Lane>::kEntry + 1];
    for (int unit = 0; unit < kUnits; ++unit) to[kLevels + unit] = memory.row(Count(unit), 0)[1];
  }
}

// %% [markdown]
// The third kernel is a whole block: every sub-warp accumulates its part of the units, and after a
// barrier the block combines them as the second launch of the library does, and writes the row.

// %%
__global__ void one_block(DecodeParams params, DeviceOutput output, UnitMemory memory) {
  const int sub_warp = static_cast<int>(threadIdx.x) / Eight::kLanes;
  const Division all(params, memory.rule, 0);
  const UnitRun run = all.run_at(params, 0, all.n_items(params, 1)).part(Count(sub_warp), kSubWarps);

  const KeySteps<> steps(params.leaves_of_slots(0, run.begin, run.end), params.in_use(0));
  const std::int64_t first = steps.leaves().origin();
  Source rows{params.key<Element>(0, first), params.value<Element>(0, first)};
  accumulate_keys<Eight>(params, 0, 0, steps, UnitTarget{run, memory.place_of_row(run.first, 0), memory, 1}, rows);
  __syncthreads();
  combine_block(params, memory, output);
}

}  // namespace

int main() {
  // %% [markdown]
  // ## Eight scores
  //
  // Every lane multiplies its four elements of eight keys, which gives eight partial sums per lane.
  // They must be added over eight lanes. In the first round, lanes that differ in their lowest bit
  // exchange four sums: each keeps four of the keys and sends the other four. In the second round
  // they exchange two sums, in the third a single one. We print what each lane received, and the key
  // whose score it ends with.
  //
  // **Predict:** which key does lane 3 end with? (Hint: the lane's bits, mirrored.)

  // %%
  std::mt19937 random(11);
  constexpr std::int64_t kKeys = 600;
  OnDevice on(random, kKeys);
  DeviceBuffer<float> scores(8 * kStepsPerLeaf), states(8 * kStepsPerLeaf * kHeld);
  launch(watch_leaf, {.grid = {1}, .block = {kWarp}}, Stream{}, on.params, scores.data(), states.data());

  std::printf("lane | round 1: four sums of 1 lane        | round 2: of 2    | 3: of 4 | key\n");
  for (std::size_t lane = 0; lane < 8; ++lane) {
    std::printf("   %zu |", lane);
    for (std::size_t i = 0; i < 7; ++i) std::printf(" %8.4f%s", came[lane][i], i == 3 || i == 5 || i == 6 ? " |" : "");
    std::printf("  %d\n", key_of_lane(static_cast<int>(lane)));
    expect(came[lane].size() == 10 * kStepsPerLeaf, "per step 4 + 2 + 1 exchanges for the sums, 3 for the largest shift");
  }

  // %% [markdown]
  // A sub-warp makes seven exchanges per step. Eight keys one after another would take
  // $3 \cdot 8 = 24$. Now every lane has the score of one key. Three more exchanges find the
  // largest shift of the eight, $e = \max \lceil s_a \rceil$. Each lane computes one exponential,
  // the weight $2^{s_a - e}$ of its key, and eight shuffles broadcast the weights to all lanes.
  // These are the first eight keys:

  // %%
  const std::vector<float> q = on.q.download(), k = on.k.download(), v = on.v.download();
  const std::vector<float> scores_of_lanes = scores.download(), held = states.download();
  std::vector<float> s(kLeafKeys);
  for (int lane = 0; lane < 8; ++lane) {
    for (int step = 0; step < kStepsPerLeaf; ++step)
      s[static_cast<std::size_t>(kKeysPerStep * step + key_of_lane(lane))] =
          scores_of_lanes[static_cast<std::size_t>(lane * kStepsPerLeaf + step)];
  }
  std::printf("key      s         exact       ceil(s)   2^(s - e)\n");
  for (std::size_t a = 0; a < kLeafKeys; ++a) {
    double exact = 0;
    for (std::size_t j = 0; j < kDim; ++j) exact += double(q[j]) * double(k[a * kDim + j]);
    exact *= double(on.params.score_scale);
    expect(std::abs(double(s[a]) - exact) < 1e-5, "a score is q.k");
    if (a < kKeysPerStep)
      std::printf(" %zu   %9.6f   %9.6f   %5g      %.6f\n", a, s[a], exact, key_shift(s[a]), std::exp2(s[a] - held[0]));
  }

  // %% [markdown]
  // ## Sixty-four keys, one chain
  //
  // A leaf takes eight such steps. If the shift of the eight keys is above the shift of the leaf,
  // the shift of the leaf rises, and its sums are multiplied by $f = 2^{e - e'}$, a power of two.
  // Then $D$ adds the eight weights in pairs, and each component of $n$ takes one fused
  // multiply-add per key. We compute the same chain in a plain loop on one thread and compare the
  // bits.
  //
  // **Predict:** $D$ increases from step to step. When can it decrease?

  // %%
  State chain;
  set_empty(chain);
  std::vector<float> n(kDim, -0.0f);
  std::printf("step   keys       e     f       D          n_0        n_1        n_2        n_3    of lane 0\n");
  for (std::size_t step = 0; step < kStepsPerLeaf; ++step) {
    const float before = chain.shift;
    std::vector<float> w(kKeysPerStep);
    for (std::size_t i = 0; i < kKeysPerStep; ++i)
      chain.shift = std::max(chain.shift, key_shift(s[kKeysPerStep * step + i]));
    for (std::size_t i = 0; i < kKeysPerStep; ++i) w[i] = std::exp2(s[kKeysPerStep * step + i] - chain.shift);
    const float f = step == 0 ? 0.0f : std::exp2(before - chain.shift);
    chain.sum = std::fma(f, chain.sum, ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7])));
    for (std::size_t j = 0; j < kDim; ++j) {
      n[j] *= f;
      for (std::size_t i = 0; i < kKeysPerStep; ++i) n[j] = std::fma(w[i], v[(kKeysPerStep * step + i) * kDim + j], n[j]);
    }

    const float* const of_lanes = &held[step * 8 * kHeld];
    for (int lane = 0; lane < 8; ++lane) {
      const float* const of_lane = of_lanes + lane * kHeld;
      expect(of_lane[0] == chain.shift && of_lane[1] == chain.sum, "shift and sum, in every lane");
      for (int c = 0; c < Eight::kElements; ++c)
        expect(of_lane[2 + c] == n[static_cast<std::size_t>(Eight::component(lane, c))], "and its components of n");
    }
    std::printf("  %zu   %2zu to %2zu  %4g  %4g  %8.5f", step, kKeysPerStep * step, kKeysPerStep * step + 7, of_lanes[0], f,
                of_lanes[1]);
    for (int c = 0; c < Eight::kElements; ++c) std::printf("  %9.6f", of_lanes[2 + c]);
    std::printf("\n");
  }

  // %% [markdown]
  // Merging the keys one by one over the tree, with `merge()` of `reference/state/state.hpp`, adds
  // the same terms in another order. The shift is the same. The sums differ in their last bits.

  // %%
  std::vector<std::vector<float>> tree;
  for (std::size_t a = 0; a < kLeafKeys; ++a) {
    tree.emplace_back(kValues + kDim);
    set_key(tree.back().data(), s[a], &v[a * kDim], kDim);
  }
  for (std::size_t width = 1; width < kLeafKeys; width *= 2) {
    for (std::size_t a = 0; a < kLeafKeys; a += 2 * width) merge(tree[a].data(), tree[a + width].data(), kDim);
  }
  double most = 0;
  for (std::size_t j = 0; j < kDim; ++j) most = std::max(most, std::abs(double(n[j]) - double(tree[0][kValues + j])));
  std::printf("chain:  e = %g   D = %.8f\ntree:   e = %g   D = %.8f\n", chain.shift, chain.sum, tree[0][kShift],
              tree[0][kSum]);
  std::printf("largest difference of a component of n: %.1e\n", most);
  expect(chain.shift == tree[0][kShift] && most < 1e-5, "two orders of the same sum");

  // %% [markdown]
  // So the order within a leaf matters. The same order is used in every sub-warp, block and device,
  // which is why the results agree bit for bit.
  //
  // ## Units of leaves
  //
  // We push the leaves 4 to 13 of a run whose units are of $2^2$ leaves. A left child stays in
  // registers until its sibling arrives, and a pair that is a left child in memory. When the last
  // leaf of a unit is there, all that wait are merged and the state of the unit is stored. The last
  // unit ends before its last two leaves: they are empty, which is neutral.
  //
  // **Predict:** which leaves end a unit?

  // %%
  const UnitRule of_four{.least_log = 2, .most_items = ~Count{0}, .n_blocks = 0, .is_whole = true};
  DecodeParams one_sequence;
  DeviceBuffer<std::int64_t> length(1);
  one_sequence.begin = 4 * kLeafKeys, one_sequence.end = 14 * kLeafKeys;
  length.upload(std::vector<std::int64_t>{14 * kLeafKeys});
  one_sequence.lengths = length.data();
  const UnitRun run = Division(one_sequence, of_four, 0).run_at(one_sequence, 0, kUnits);
  UnitMemory memory{.rule = of_four};
  memory.n_state = UnitMemory::kFirstComponent + 4;
  memory.n_stack = kLevels * GroupStates<Lane>::kEntry, memory.first_unit = memory.n_stack;
  DeviceBuffer<float> units(memory.first_unit + kUnits * memory.n_state), sums(10 * (kLevels + kUnits));
  units.fill(0xFF);
  memory.floats = units.data();
  launch(watch_units, {.grid = {1}, .block = {1}}, Stream{}, run, one_sequence.leaves_of_slots(0, run.begin, run.end),
         memory, sums.data());
  const std::vector<float> in_memory = sums.download();
  int n_ended = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    std::printf("leaf %2zu:  ", i + 4);
    const char* where = "stays in registers";
    for (std::size_t at = 0; at < kLevels + kUnits; ++at) {
      const float now = in_memory[i * (kLevels + kUnits) + at],
                  last = i == 0 ? -1 : in_memory[(i - 1) * (kLevels + kUnits) + at];
      if (now != now || now == last) continue;
      where = at < kLevels ? "waits in memory with its sibling" : "ends a unit";
      std::printf("%g leaves: ", std::floor(now));
      n_ended += at >= kLevels;
    }
    std::printf("%s\n", where);
  }
  expect(n_ended == kUnits, "three units");

  // %% [markdown]
  // ## Four sub-warps, their units, one result
  //
  // Now the whole block. Its 600 keys are ten leaves, five units of two, and every sub-warp gets one
  // or two of them. The last leaf has 24 keys; its other positions are empty. Each state is printed as
  // $2^e \cdot D$.
  //
  // **Predict:** how many states does the block combine?

  // %%
  const UnitRule of_two{.least_log = 1, .most_items = ~Count{0}, .n_blocks = 0, .is_whole = true};
  constexpr int kUnitsOfBlock = 5;
  UnitMemory block{
      .rule = of_two, .first_unit = kSubWarps * GroupStates<Eight>::kEntry, .n_stack = GroupStates<Eight>::kEntry};
  block.n_state = UnitMemory::kFirstComponent + kDim;
  DeviceBuffer<float> of_units(block.first_unit + kUnitsOfBlock * block.n_state), z(kDim), lse(1);
  block.floats = of_units.data();
  const DeviceOutput output{.out = z.data(), .lse = lse.data()};
  const auto run_block = [&] {
    n_bytes_asked = 0;
    launch(one_block, {.grid = {1}, .block = {kWarp}, .shared_bytes = kKernelBytes + combining_bytes(1)}, Stream{},
           on.params, output, block);
    std::vector<float> result = z.download();
    result.push_back(lse.download()[0]);
    return result;
  };
  const std::vector<float> result = run_block(), states_of_units = of_units.download();
  const std::int64_t n_bytes = n_bytes_asked;

  const UnitRun whole = Division(on.params, of_two, 0).run_at(on.params, 0, kUnitsOfBlock);
  for (Count sub_warp = 0; sub_warp < kSubWarps; ++sub_warp) {
    const UnitRun own = whole.part(sub_warp, kSubWarps);
    std::printf("sub-warp %u:", sub_warp);
    for (Count unit = own.first; unit < own.last; ++unit) {
      const float* const state = states_of_units.data() + block.first_unit + unit * block.n_state;
      const std::int64_t begin = whole.units.begin_of(unit) * kLeafKeys;
      std::printf("  keys %3ld to %3ld: 2^%g x %.3f", long(begin), long(begin + 2 * kLeafKeys), state[0], state[1]);
    }
    std::printf("\n");
  }
  std::printf("lse = %.6f   z = (%.5f, %.5f, %.5f, ...)\n", result[kDim], result[0], result[1], result[2]);

  // %% [markdown]
  // The tree above five units is a perfect one of eight places, of which the last three are empty: so
  // the first four units merge in pairs, and the fifth joins what they become.
  //
  // ## The same bits
  //
  // The emulator may run threads in any order, and a kernel may cut the range between any two
  // leaves. Neither may change a bit. We run the block under ten seeds of the scheduler, and then
  // all kernels on the same elements, stored as F32, with different numbers of splits: the steps of
  // the ladder, and that of the library.
  //
  // **Predict:** which of them give other bits?

  // %%
  int n_seeds = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const SettingsScope scope({.seed = seed});
    n_seeds += same_bits(run_block(), result);
  }
  std::printf("ten seeds: %d with the same bits\n", n_seeds);
  expect(n_seeds == 10, "the order of threads changes no bit");

  for (const DecodeKernel* const kernel : all_kernels()) {
    if (!kernel->refusal(on.params, DType::F32).empty()) continue;
    std::printf("%-11s", kernel->name);
    bool all_same = true;
    for (const int n_splits : {1, 2, 3, 5}) {
      const LaunchPlan plan = kernel->plan(on.params, DType::F32, {.n_splits = n_splits});
      const DeviceBuffer<float> floats(plan.n_floats);
      DeviceBuffer<unsigned> counters(plan.n_counters);
      counters.fill(0);
      kernel->run(on.params, DType::F32, output, plan, {floats.data(), counters.data()}, Stream{});
      std::vector<float> other = z.download();
      other.push_back(lse.download()[0]);
      std::printf("  %d split%s: %s", n_splits, n_splits == 1 ? " " : "s", same_bits(other, result) ? "same" : "other");
      all_same = all_same && same_bits(other, result);
    }
    std::printf("\n");
    expect(all_same || !kernel->is_canonical, "all kernels that add in the order of the canonical tree have the same bits");
  }

  // %% [markdown]
  // The first two steps of the ladder add all keys in one chain, without leaves. Their results are
  // also correct, but their bits differ. All other kernels share the leaves and the tree.
  //
  // ## Bytes
  //
  // How many bytes does the block read? By the formula of @ref kernels each key and each value is
  // read once: $N (d_h + d_v)$ elements.

  // %%
  const std::int64_t formula = kKeys * (kDim + kDim) * 4;
  std::printf("asked for: %ld bytes    formula: %ld bytes\n", long(n_bytes), long(formula));
  expect(n_bytes == formula, "every key and every value is read once, and nothing past the end");

  // %% [markdown]
  // ## A lane that returns early
  //
  // Last, an error. All lanes of a warp must take part in an exchange, also those that have no keys
  // left.
  //
  // **Predict:** what does the emulator do if lane 5 returns before the exchange?

  // %%
  const auto stays_away = [](int which) {
    if (static_cast<int>(threadIdx.x) == which) return;
    __shfl_xor_sync(kAllLanes, 1.0f, 1);
  };
  std::string message;
  try {
    launch(+stays_away, {.grid = {1}, .block = {kWarp}}, Stream{}, 5);
  } catch (const DeviceError& error) {
    message = error.what();
  }
  std::printf("%s\n", message.c_str());
  expect(message.find("exited") != std::string::npos, "the emulator says so");
}

// %% [markdown]
// ## What to take home
//
// 1. Exchanging halves gives each of eight lanes the score of one key with seven exchanges instead
//    of 24.
// 2. A leaf of 64 keys is one chain in a fixed order; leaves are merged over the canonical tree.
//    This fixes the bits for every cut between leaves.
// 3. The block reads every key and every value once.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one).
// From the second on it is a kernel. The emulator runs it under several seeds, and its report is the
// verdict: a race between two lines, a read of unwritten memory, a wait that never ends.
//
// * `./run exercise 9.1`: a sum over the lanes of a warp;
// * `./run exercise 9.2`: two vectors;
// * `./run exercise 9.3`: the sum of a block, by shuffles and shared memory;
// * `./run exercise 9.4`: softmax in one pass;
// * `./run exercise 9.5`: a leaf of up to 64 keys;
// * `./run exercise 9.6`: copies under way while a warp adds: cp.async;
// * `./run exercise 9.7`: a producer and its consumers: mbarriers;
// * `./run exercise 9.8`: fragments of a matrix and of its transpose: ldmatrix;
// * `./run exercise 9.9`: the scores of 16 keys and 8 queries: mma;
// * `./run exercise 9.10`: the last block adds what all blocks have left;
// * `./run exercise 9.11`: blocks that read each other's shared memory: a cluster;
// * `./run exercise 9.12`: packets between two devices;
// * `./run exercise 9.13`: two nodes of two devices: NCCL's two levels.
//
// ## Questions
//
// 1. (Medium.) In a sub-warp of 16 lanes the first three rounds are the same. What happens in the
//    fourth, and why does it not halve the keys again?
//
//    <details><summary>Answer</summary>
//
//    After three rounds each lane has the sum of one key over eight lanes, and lanes that differ in
//    the fourth bit have the same key. They exchange this sum, and both add: both get the full
//    score. One key cannot be halved.
//
//    </details>
//
// 2. (Medium.) Look at what lane 3 received in the second round, and lane 1 in the third. Of which
//    keys and lanes are these sums?
//
//    <details><summary>Answer</summary>
//
//    Lane 3 received the keys 6 and 7 over the lanes 0 and 1, from lane 1: after the first round
//    the odd lanes have the keys 4 to 7, and lanes with the second bit set keep the upper half.
//    Lane 1 received key 4 over the lanes 4 to 7, from lane 5.
//
//    </details>
//
// 3. (Medium.) A leaf forest keeps one leaf in registers. What would it cost to keep a pair of
//    leaves as well, and what would it save?
//
//    <details><summary>Answer</summary>
//
//    One more state. Each lane holds the shift, the sum and its components of $n$: here $2 + 4 = 6$
//    registers. Every left pair would then stay in registers until its sibling pair is complete,
//    which saves one store and one load per four leaves.
//
//    </details>
//
// 4. (Hard.) Add the keys of the leaf in the order 63, 62, ..., 0. What changes in the result? How
//    often does the shift rise?
//
//    <details><summary>Answer</summary>
//
//    The shift of the result is the same. For these keys $D$ and 28 of the 32 components of $n$
//    change in their last bits, $n$ by at most $4.8 \cdot 10^{-7}$. The largest score is among the
//    keys 56 to 63, so the shift has its final value after the first step and never rises. In the
//    usual order it rises once, in the last step.
//
//    </details>
//
// 5. (Hard.) The naive step of the ladder (`gpu/ladder/01_naive.cu`) has other bits. Which of its
//    two kernels must change to give it the bits of the others, and what becomes of its threads?
//
//    <details><summary>Answer</summary>
//
//    Both. The second kernel has one thread per component of the output, which adds all keys in one
//    chain. Each thread would compute leaf after leaf in steps of eight and keep a forest of its
//    component. The first kernel adds the products of a score from the first to the last component
//    in one thread. It would have to add them in the order of the lanes: four elements per lane,
//    then the lanes as in the exchange.
//
//    </details>
