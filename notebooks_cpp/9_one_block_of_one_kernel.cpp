// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 9

// %% [markdown]
// # Notebook 9: One block of one kernel {#notebook_kernel}
//
// What do the threads of a decoding kernel hold while it runs? Under the emulator a kernel is an
// ordinary function (@ref emulator), so we can print it. We decode one query over 600 keys,
// eq. (7), with one block of four warps. The block runs functions of the library kernel
// (@ref kernels_library): it computes the scores of eight keys at a time, weighs the 64 keys of a leaf, adds
// their values over a tree, merges leaves to units, and combines the units of four warps.
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

/// Values that the lanes of the first warp have received, [lane][exchange].
std::vector<std::vector<float>> came(32);

float noted_exchange(unsigned mask, float value, int flip) {
  const float other = __shfl_xor_sync(mask, value, flip);
  if (threadIdx.x < 32) came[threadIdx.x].push_back(other);
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
// type of our own, a float under another name, ensures that. A warp holds a value of 32 such elements
// in eight of its lanes, four components each.

// %%
namespace tree_attn {
namespace {

struct Element {
  float x;
};
float widen(Element element) { return element.x; }

}  // namespace

template <>
struct DTypeTraits<Element> : DTypeTraits<float> {};

}  // namespace tree_attn

using namespace tree_attn;
using namespace tree_attn::emulated;
using notebook::expect, notebook::same_bits;

namespace {

using Warp = ScalarWarp<Element, 128>;  // values of up to 128 elements, four a lane
using State = LaneState<Warp::kElements>;
constexpr int kDim = 32, kLanes = kDim / Warp::kElements, kWarps = 4;

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

/// Eight rows of keys, or of values, from `first` on.
struct EightRows {
  const Element* first;

  Four<Element> operator()(int i, int element) const {
    n_bytes_asked += 16;
    return load_once(reinterpret_cast<const Four<Element>*>(first + i * kDim + element));
  }
};

/// The rows of a range: of each leaf its keys, and then its values.
struct Source {
  const KeySteps<>& steps;
  const Element *first_key, *first_value;
  int leaf = 0, within = 0;

  EightRows wait() const {
    const int n = steps.of_leaf(leaf), step = leaf * kStepsPerLeaf + within % n;
    return {(within < n ? first_key : first_value) + step * kKeysPerStep * kDim};
  }
  void next() {
    if (++within == 2 * steps.of_leaf(leaf)) ++leaf, within = 0;
  }
};

// %% [markdown]
// The first kernel does the work of a warp on one leaf, the keys 0 to 63. `platform::score_of_eight()`
// gives the scores of eight keys, `platform::weigh_leaf()` turns the 64 scores into weights, and
// `platform::sum_of_eight()` adds the values of eight keys. The kernel records the scores and the
// weights, and the sums of the lanes after every step.

// %%
/// @param[out] scores [64] @param[out] weights [64], then shift and sum @param[out] sums [8 steps][8 lanes][4]
__global__ void watch_leaf(DecodeParams params, float* scores, float* weights, float* sums) {
  Arena arena;
  const Shared<float> q = arena.take<float>(kDim), w = arena.take<float>(kLeafKeys);
  const int lane = static_cast<int>(threadIdx.x);
  q[lane] = widen(load_once(params.query<Element>(0, 0) + lane));
  __syncwarp();

  float shift = -INFINITY;
  for (int step = 0; step < kStepsPerLeaf; ++step) {
    const EightRows keys{params.key<Element>(0, kKeysPerStep * step)};
    const float s = score_of_eight<Warp>(q, keys, kDim, true, params.score_scale, false);
    shift = std::max(shift, key_shift(s));
    if (lane % 4 == 0) w[step * kKeysPerStep + lane / 4] = scores[step * kKeysPerStep + lane / 4] = s;
  }

  State leaf;
  LeafSums<Warp::kElements> tree;
  const bool all_seen = weigh_leaf(w, shift, leaf);
  for (int step = 0; step < kStepsPerLeaf; ++step) {
    const EightRows values{params.value<Element>(0, kKeysPerStep * step)};
    sum_of_eight<Warp>(w + step * kKeysPerStep, values, kDim, all_seen, leaf.n);
    tree.add(step, leaf.n);
    for (int c = 0; c < 4 && lane < kLanes; ++c) sums[(step * kLanes + lane) * 4 + c] = leaf.n[c];
  }
  weights[2 * lane] = w[2 * lane], weights[2 * lane + 1] = w[2 * lane + 1];
  weights[kLeafKeys] = leaf.shift, weights[kLeafKeys + 1] = leaf.sum;
}

// %% [markdown]
// The second kernel pushes leaves into a `platform::UnitForest` and copies its memory after each of
// them: the states that wait, by level, and those of units. The sum of every leaf is 1 and
// a little that differs, so the sum of a state is its number of leaves and a little.

// %%
/// One lane that holds four components.
struct Lane {
  using T = float;
  static constexpr int kLanes = 1, kRows = 1, kLaneQueries = 1, kElements = 4;
  static constexpr bool kWaitsInRegisters = true;
  static int row(int, int) { return 0; }
  static int part(int) { return 0; }
  static int lane_at(int) { return 0; }
  static int component(int, int c) { return c; }
};
constexpr int kLevels = 2, kUnitsOfRun = 3;  // that are printed

/// @param[out] sums [leaves of the run][kLevels + kUnitsOfRun]
__global__ void watch_units(UnitRun run, KeyRange range, UnitMemory memory, float* sums) {
  const ContiguousLeaves leaves(range, range);
  UnitForest<Lane, ContiguousLeaves> forest({run, memory.offset_of_row(0, 0), memory, 1}, leaves, 0, {});
  for (int i = 0; i < leaves.n_leaves(); ++i) {
    LaneState<4> leaf{0, 1 + static_cast<float>(i) / 1024, {}};
    forest.push(i, leaf);
    float* const to = sums + i * (kLevels + kUnitsOfRun);
    for (int level = 0; level < kLevels; ++level) to[level] = memory.floats[level * LaneStates<Lane>::kEntry + 1];
    for (int unit = 0; unit < kUnitsOfRun; ++unit) to[kLevels + unit] = memory.row(Count(unit), 0)[1];
  }
}

// %% [markdown]
// The third kernel is a whole block: every warp accumulates its part of the units. The fourth combines them,
// as the second launch of the library does, and writes the row.

// %%
__global__ void one_block(DecodeParams params, UnitMemory memory) {
  Arena arena;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Shared<Bytes16> memory_of_warp = arena.take<Bytes16>(kWarps * kWarpVectors<Warp>) + warp * kWarpVectors<Warp>;
  const Division all(params, memory.rule, 0);
  const EqualRuns runs{all.n_items(params, 1), kWarps};
  const UnitRun run = all.run_at(params, runs.begin_of(Count(warp)), runs.begin_of(Count(warp) + 1));

  const KeySteps<> steps(params.leaves_of_slots(0, run.begin, run.end), params.in_use(0));
  const std::int64_t first = steps.leaves().origin();
  Source rows{steps, params.key<Element>(0, first), params.value<Element>(0, first)};
  accumulate_keys<Warp>(params, 0, 0, steps, UnitTarget{run, memory.offset_of_row(run.first, 0), memory, 1}, rows,
                        memory_of_warp);
}
__global__ void combine_units(DecodeParams params, DeviceOutput output, UnitMemory memory) {
  combine_block<void>(params, memory, output, [] {});
}

}  // namespace

int main() {
  // %% [markdown]
  // ## Eight scores
  //
  // A dot product has sixteen lanes, and its element $i$ is added in lane $i \bmod 16$. Four threads
  // share a key: thread $t$ has the lanes $4 t$ to $4 t + 3$, and reads four elements of each sixteen.
  // Then lanes are added: those of threads $t$ and $t + 2$ first, with four exchanges, then those of
  // $t$ and $t + 1$, with four more. We print what the threads of key 0 received, and its score.
  //
  // **Predict:** what do the threads 0 and 1 have in common after the second round?

  // %%
  std::mt19937 random(11);
  constexpr std::int64_t kKeys = 600;
  OnDevice on(random, kKeys);
  DeviceBuffer<float> scores(kLeafKeys), weights(kLeafKeys + 2), sums_of_steps(kStepsPerLeaf * kDim);
  launch(watch_leaf, {.grid = {1}, .block = {kWarp}, .shared_bytes = 1024}, Stream{}, on.params, scores.data(),
         weights.data(), sums_of_steps.data());
  const std::vector<float> s = scores.download(), w = weights.download(), sums_of_leaf = sums_of_steps.download();

  std::printf("thread | round 1: four lanes of thread t + 2     | round 2: four sums of thread t + 1\n");
  for (std::size_t thread = 0; thread < 4; ++thread) {
    std::printf("     %zu |", thread);
    for (std::size_t i = 0; i < 8; ++i) std::printf(" %9.5f%s", came[thread][i], i == 3 ? " |" : "");
    std::printf("\n");
    expect(came[thread].size() == 8 * kStepsPerLeaf + 10, "8 exchanges a step, and 5 each for the largest shift and D");
  }
  std::printf("score of key 0: %.6f\n", s[0]);

  // %% [markdown]
  // After it both hold the same four sums, and add them: all four threads have the score. A leaf takes
  // eight such steps. Then five exchanges find the largest shift of the 64 keys,
  // $e = \max \lceil s_a \rceil$. Each lane computes the weights $2^{s_a - e}$ of two keys, by a
  // polynomial for $2^{s_a - \lceil s_a \rceil}$ and a power of two. These are the first eight keys:

  // %%
  const std::vector<float> q = on.q.download(), k = on.k.download(), v = on.v.download();
  std::printf("key      s         exact       ceil(s)   2^(s - e)\n");
  for (std::size_t a = 0; a < kLeafKeys; ++a) {
    double exact = 0;
    for (std::size_t j = 0; j < kDim; ++j) exact += double(q[j]) * double(k[a * kDim + j]);
    exact *= double(on.params.score_scale);
    expect(std::abs(double(s[a]) - exact) < 1e-5, "a score is q.k");
    if (a < kKeysPerStep) std::printf(" %zu   %9.6f   %9.6f   %5g      %.6f\n", a, s[a], exact, key_shift(s[a]), w[a]);
  }

  // %% [markdown]
  // ## Sixty-four keys, one tree
  //
  // The weights are added over a tree of 64 positions, by exchanges between lanes; so are the
  // products $w_a v_a$ of each component, eight keys at a time in the registers of a lane. Sums of 8, 16 and 32
  // keys wait for their neighbours, as in a binary counter. This is the order of the CPU, and no
  // product is fused with a sum. We compute the tree in a plain loop on one thread and compare the bits.
  //
  // **Predict:** after which steps does lane 0 hold the sum of more than eight keys?

  // %%
  std::vector<std::vector<float>> tree;
  for (std::size_t a = 0; a < kLeafKeys; ++a) {
    const float weight = exp2_fraction(s[a] - key_shift(s[a])) * pow2(key_shift(s[a]) - w[kLeafKeys]);
    expect(weight == w[a], "the weight of the CPU");
    tree.push_back({weight});
    for (std::size_t j = 0; j < kDim; ++j) tree[a].push_back(weight * v[a * kDim + j]);
  }
  for (std::size_t m = kLeafKeys / 2; m > 0; m /= 2)
    for (std::size_t a = 0; a < m; ++a)
      for (std::size_t j = 0; j <= kDim; ++j) tree[a][j] = tree[2 * a][j] + tree[2 * a + 1][j];
  std::printf("step   keys            n_0        n_1        n_2        n_3    of lane 0\n");
  for (int step = 0; step < kStepsPerLeaf; ++step) {
    int first = step;  // of the steps that are in the sum
    for (int level = 1; (first + level) % (2 * level) == 0 && step % (2 * level) == 2 * level - 1; level *= 2)
      first -= level;
    std::printf("  %d   %2d to %2d", step, kKeysPerStep * first, kKeysPerStep * step + 7);
    for (std::size_t c = 0; c < 4; ++c) std::printf("  %9.6f", sums_of_leaf[static_cast<std::size_t>(step * kDim) + c]);
    std::printf("\n");
  }
  std::printf("e = %g   D = %.8f\n", w[kLeafKeys], w[kLeafKeys + 1]);
  expect(w[kLeafKeys + 1] == tree[0][0], "the bits of D");
  for (std::size_t j = 0; j < kDim; ++j)
    expect(sums_of_leaf[(kStepsPerLeaf - 1) * kDim + j] == tree[0][1 + j], "the bits of n");

  // %% [markdown]
  // The order within a leaf matters. The same order is used in every warp, block and device, and on the
  // CPU, which is why the results agree bit for bit.
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
  const UnitRun run = Division(one_sequence, of_four, 0).run_at(one_sequence, 0, kUnitsOfRun);
  UnitMemory memory{.rule = of_four};
  memory.n_state = UnitMemory::kFirstComponent + 4;
  memory.n_stack = kLevels * LaneStates<Lane>::kEntry, memory.first_unit = memory.n_stack;
  DeviceBuffer<float> units(memory.first_unit + kUnitsOfRun * memory.n_state), sums(10 * (kLevels + kUnitsOfRun));
  units.fill(0xFF);
  memory.floats = units.data();
  launch(watch_units, {.grid = {1}, .block = {1}}, Stream{}, run, one_sequence.leaves_of_slots(0, run.begin, run.end),
         memory, sums.data());
  const std::vector<float> in_memory = sums.download();
  int n_ended = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    std::printf("leaf %2zu:  ", i + 4);
    const char* where = "stays in registers";
    for (std::size_t at = 0; at < kLevels + kUnitsOfRun; ++at) {
      const float now = in_memory[i * (kLevels + kUnitsOfRun) + at],
                  last = i == 0 ? -1 : in_memory[(i - 1) * (kLevels + kUnitsOfRun) + at];
      if (now != now || now == last) continue;
      where = at < kLevels ? "waits in memory with its sibling" : "ends a unit";
      std::printf("%g leaves: ", std::floor(now));
      n_ended += at >= kLevels;
    }
    std::printf("%s\n", where);
  }
  expect(n_ended == kUnitsOfRun, "three units");

  // %% [markdown]
  // ## Four warps, their units, one result
  //
  // Now the whole block. Its 600 keys are ten leaves, five units of two, and every warp gets one
  // or two of them. The last leaf has 24 keys; its other positions are empty. Each state is printed as
  // $2^e \cdot D$.
  //
  // **Predict:** how many states does the block combine?

  // %%
  const UnitRule of_two{.least_log = 1, .most_items = ~Count{0}, .n_blocks = 0, .is_whole = true};
  constexpr int kUnitsOfBlock = 5;
  UnitMemory block{.rule = of_two, .first_unit = kWarps * LaneStates<Warp>::kEntry, .n_stack = LaneStates<Warp>::kEntry};
  block.n_state = UnitMemory::kFirstComponent + kDim;
  DeviceBuffer<float> of_units(block.first_unit + kUnitsOfBlock * block.n_state), z(kDim), lse(1);
  block.floats = of_units.data();
  const DeviceOutput output{.out = z.data(), .lse = lse.data()};
  const auto run_block = [&] {
    n_bytes_asked = 0;
    launch(one_block,
           {.grid = {1}, .block = {kWarps * kWarp}, .shared_bytes = kWarps * kWarpVectors<Warp> * sizeof(Bytes16)}, Stream{},
           on.params, block);
    launch(combine_units, {.grid = {1}, .block = {kWarp}, .shared_bytes = kKernelBytes + combining_bytes(1, block.n_parked)},
           Stream{}, on.params, output, block);
    std::vector<float> result = z.download();
    result.push_back(lse.download()[0]);
    return result;
  };
  const std::vector<float> result = run_block(), states_of_units = of_units.download();
  const std::int64_t n_bytes = n_bytes_asked;

  const Units five = Division(on.params, of_two, 0).units(on.params, 0);
  const EqualRuns runs{kUnitsOfBlock, kWarps};
  for (Count warp = 0; warp < kWarps; ++warp) {
    std::printf("warp %u:", warp);
    for (Count unit = runs.begin_of(warp); unit < runs.begin_of(warp + 1); ++unit) {
      const float* const state = states_of_units.data() + block.first_unit + unit * block.n_state;
      const std::int64_t begin = five.begin_of(unit) * kLeafKeys;
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
    const bool has_bits_of_cpu = kernel->is_canonical && !kernel->is_fused;
    expect(all_same == has_bits_of_cpu, "rung 4 and the library kernel have the same bits");
  }

  // %% [markdown]
  // The first two steps of the ladder add all keys in one chain, without leaves; steps 3 and 5 add a leaf
  // in a chain of fused multiply-adds. Their results are also correct, but their bits differ. Step 4 and the kernel
  // of the library have the leaves and the tree of the CPU.
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
  std::printf("%s\n", message.substr(message.find(": ") + 2).c_str());  // before that: the file and the line of the exchange
  expect(message.find("exited") != std::string::npos, "the emulator says so");
}

// %% [markdown]
// ## What to take home
//
// 1. Four threads share a key, because a dot product has sixteen lanes: eight exchanges give them the
//    scores of eight keys.
// 2. A leaf of 64 keys has one shift and one tree over its positions; leaves are merged over the
//    canonical tree. These are the bits of the CPU, for every cut between leaves.
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
// 1. (Medium.) Could sixteen threads share a key, with one lane of the dot product each? How many
//    exchanges would eight keys take?
//
//    <details><summary>Answer</summary>
//
//    Yes, with the same bits. A warp would then hold two keys at once, each thread one sum of each, and four exchanges
//    would add the lanes 8, 4, 1 and 2 apart: 16 exchanges for eight keys, where four threads a key take 8.
//    Each thread would read 4 bytes at a time instead of 16.
//
//    </details>
//
// 2. (Medium.) Why are the weights of a leaf computed only when all of its 64 scores are known?
//
//    <details><summary>Answer</summary>
//
//    A weight $2^{s_a - e}$ refers to the largest shift $e$ of the leaf. With a smaller shift at first, sums would be
//    multiplied by powers of two later. That is exact but for numbers below $2^{-126}$, which
//    would be rounded at another place.
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
// 4. (Hard.) Add the keys of the leaf in the order 63, 62, ..., 0. What changes in the result?
//
//    <details><summary>Answer</summary>
//
//    Nothing. Shift and weights do not depend on the order. In a tree of 64 places the reversed order swaps the
//    two operands of every addition, and an addition commutes bit for bit. Another order, say with keys 1 and 2
//    swapped, changes last bits.
//
//    </details>
//
// 5. (Hard.) The naive step of the ladder (`gpu/ladder/01_naive.cu`) has other bits. Which of its
//    two kernels must change to give it the bits of the others, and what becomes of its threads?
//
//    <details><summary>Answer</summary>
//
//    Both. The second kernel has one thread per component of the output, which adds all keys in one
//    chain. Each thread would compute leaf after leaf, keep sums that wait for their neighbours, and
//    merge the states of leaves over the tree. The first kernel adds the products of a score from the first to
//    the last component in one thread. It would have to keep sixteen sums, and add them at the end.
//
//    </details>
