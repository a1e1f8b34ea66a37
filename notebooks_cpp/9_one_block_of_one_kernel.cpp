// SPDX-License-Identifier: Apache-2.0
// Run: build/notebooks/9_one_block_of_one_kernel

// %% [markdown]
// # One block of one kernel {#notebook_kernel}
//
// What do the threads of a decoding kernel hold while it runs? Under the emulator a kernel is an
// ordinary function (@ref emulator), so we can ask. We take one query, 300 keys, eq. (7), and one
// block of 32 threads that runs the functions of step 3 of the ladder (@ref kernels): scores by
// halving exchanges, eight keys that climb together, a counter in registers, one in memory, and at
// last the forests of four sub-warps, joined. Each stop prints what the threads hold.

// %%
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/state/forest.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

// %% [markdown]
// ## Looking over the shoulder of a word
//
// Kernels talk to each other and to memory through few words, and under the emulator these are
// functions. We put our own in front of two of them, *before* the kernels' headers are read: the
// exchange of two lanes notes what came, the load of 16 bytes counts.

// %%
namespace tree_attn::emulated {

/// What the lanes of the first sub-warp have received, [lane][exchange].
std::vector<std::vector<float>> came(8);
std::int64_t n_bytes_asked = 0;

float noted_exchange(unsigned mask, float value, int flip) {
  const float other = __shfl_xor_sync(mask, value, flip);
  if (threadIdx.x < 8) came[threadIdx.x].push_back(other);
  return other;
}
template <class T>
T noted_exchange(unsigned mask, T value, int flip) {  // of anything but sums
  return __shfl_xor_sync(mask, value, flip);
}

Bytes16 counted_load(const void* from) {
  n_bytes_asked += 16;
  return load16_global(from);
}

}  // namespace tree_attn::emulated

#define __shfl_xor_sync noted_exchange
#define load16_global counted_load
#include "gpu/parts/join.cuh"
#include "gpu/parts/key_accumulator.cuh"
#undef __shfl_xor_sync
#undef load16_global
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/sub_warps.hpp"

// %% [markdown]
// A stored number of our own, a float by another name, makes sure that what we watch is not what
// the library has compiled. Rows of 32 such numbers are eight lanes wide: a warp is four sub-warps.

// %%
namespace tree_attn {
namespace {

struct Number {
  float x;
};
float widen(Number number) { return number.x; }

}  // namespace
}  // namespace tree_attn

using namespace tree_attn;
using namespace tree_attn::emulated;
using notebook::expect;

namespace {

using Eight = SubWarp<Number, 8, 1>;  // eight lanes, one vector of 16 bytes each
using State = LaneState<Eight::kElements>;
constexpr int kDim = 32, kSubWarps = kWarp / Eight::kLanes;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

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

/// The rows of eight keys, or values, that begin at `position`.
GlobalRows<Eight> eight_rows(const Number* first, int lane) { return {first, kDim, kDim, lane, 0xFF}; }

// %% [markdown]
// The first kernel is what a sub-warp does with eight keys, here the keys 0 to 7:
// `platform::score_of_eight()`, after which every lane has the score of one key,
// `platform::weigh_eight()`, and `platform::eight_keys()`. It writes down what the lanes of the
// first sub-warp have after each of the three.

// %%
/// @param[out] scores [8 lanes] @param[out] weights [8 lanes][8]
/// @param[out] states [8 lanes][2 + kElements]
__global__ void watch_eight_keys(DecodeParams params, float* scores, float* weights, float* states) {
  const int lane = static_cast<int>(threadIdx.x) % Eight::kLanes;
  float q[Eight::kElements], shift, weight[kKeysPerStep];
  for (int c = 0; c < Eight::kElements; ++c) q[c] = widen(load_once(params.query<Number>(0, 0) + Eight::component(lane, c)));
  const auto keys = eight_rows(params.key<Number>(0, 0), lane);
  const auto values = eight_rows(params.value<Number>(0, 0), lane);

  const float s = score_of_eight<Eight>(q, keys, params.score_scale, lane);
  weigh_eight<Eight>(s, false, 0, lane, shift, weight);
  State state;
  eight_keys<Eight>(shift, weight, values, state);

  if (threadIdx.x >= Eight::kLanes) return;
  scores[lane] = s;
  for (int i = 0; i < kKeysPerStep; ++i) weights[lane * kKeysPerStep + i] = weight[i];
  float* const to = states + lane * (2 + Eight::kElements);
  to[0] = state.shift, to[1] = state.sum;
  for (int c = 0; c < Eight::kElements; ++c) to[2 + c] = state.n[c];
}

// %% [markdown]
// The second one follows the counter in registers: 16 states go in, of which two come out.

// %%
/// @param[in] shifts [n] @param[out] values_out [n][3]: whether a subtree came out, and the shift and
/// sum of what is now parked, or out
__global__ void watch_counter(int n, const float* shifts, float* values_out) {
  RegisterForest<1, 3> counter;
  for (int i = 0; i < n; ++i) {
    LaneState<1> state{shifts[i], 1.0f, {0.0f}};
    values_out[3 * i] = counter.push(state, i) ? 1.0f : 0.0f;
    values_out[3 * i + 1] = state.shift, values_out[3 * i + 2] = state.sum;
  }
}

// %% [markdown]
// The third one is a whole block: every sub-warp accumulates its part of the range, then the forests are
// joined in shared memory and the row is delivered. These are the lines of `gpu/ladder/03_vectors.cu`, and
// one more that keeps the joined forest for us.

// %%
constexpr int kScratch = 4096;  // floats

__global__ void one_block(DecodeParams params, DeviceOutput output, float* of_sub_warps, std::int64_t n_sub_warp,
                          float* of_block) {
  const auto self = WorkerThread::of<Eight>(static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const KeyRange whole = params.padded(0);
  Arena arena;
  const Scratch scratch{arena.take<float>(kScratch), kScratch};
  accumulate_keys<Eight>(params, 0, 0, split_range(whole, self.worker, kSubWarps), of_sub_warps + self.worker * n_sub_warp);
  __syncthreads();
  join_splits<Eight>(scratch, of_sub_warps, n_sub_warp, whole, kSubWarps, self, [&](int slot, const auto& forest) {
    store_forest<Eight>(forest, of_block, self.lane);
    write_output<Eight>(params, output, 0, 0, slot, forest, whole, self.lane);
  });
}

/// Shift and sum of the n subtrees of a forest. @param[out] values_out [n][2]
__global__ void read_forest(int n, float* forest, float* values_out) {
  const LaneForest<Eight::kElements, Eight::kLanes> counter(forest, 0, 0);
  for (int i = 0; i < n; ++i) {
    State state;
    counter.load(i, state);
    values_out[2 * i] = state.shift, values_out[2 * i + 1] = state.sum;
  }
}

/// Prints the forest of a range.
void print_forest(const char* whose, KeyRange range, float* forest) {
  const std::vector<Subtree> subtrees = cover(range.begin, range.end);
  DeviceBuffer<float> values_out(2 * std::ssize(subtrees));
  launch(read_forest, {.grid = {1}, .block = {1}}, Stream{}, static_cast<int>(subtrees.size()), forest, values_out.data());
  const std::vector<float> elements = values_out.download();
  std::printf("%s %3ld to %3ld:", whose, long(range.begin), long(range.end));
  for (std::size_t i = 0; i < subtrees.size(); ++i) {
    std::printf("  %ld keys 2^%g x %.3f", long(subtrees[i].end() - subtrees[i].begin()), elements[2 * i],
                elements[2 * i + 1]);
  }
  std::printf("\n");
}

}  // namespace

int main() {
  // %% [markdown]
  // ## Eight scores
  //
  // Every lane multiplies its four numbers of eight keys. In the first round lanes that differ in
  // their lowest bit exchange four sums; in the second round, two; in the third, one. What came is
  // printed lane by lane, and then the key whose sum the lane ended with: the bits of the lane,
  // mirrored.

  // %%
  std::mt19937 random(11);
  OnDevice on(random, 300);
  DeviceBuffer<float> scores(8), weights(8 * kKeysPerStep), states(8 * (2 + Eight::kElements));
  launch(watch_eight_keys, {.grid = {1}, .block = {kWarp}}, Stream{}, on.params, scores.data(), weights.data(),
         states.data());

  std::printf("lane | round 1: four sums of 1 lane        | round 2: of 2    | 3: of 4 | key\n");
  for (std::size_t lane = 0; lane < 8; ++lane) {
    std::printf("   %zu |", lane);
    for (std::size_t i = 0; i < 7; ++i) std::printf(" %8.4f%s", came[lane][i], i == 3 || i == 5 || i == 6 ? " |" : "");
    std::printf("  %d\n", key_of_lane(static_cast<int>(lane)));
    expect(came[lane].size() == 10, "4 + 2 + 1 exchanges for the sums, 3 for the largest shift");
  }

  // %% [markdown]
  // Seven exchanges, where eight keys one by one would have cost $3 \cdot 8 = 24$. Now every lane
  // has one key and weighs it: one exponential a key and not one a lane. Three more exchanges find
  // the largest shift, to which all eight weights are brought, by powers of two; and eight shuffles
  // tell every lane all of them.

  // %%
  const std::vector<float> q = on.q.download(), k = on.k.download(), v = on.v.download();
  const std::vector<float> scores_of_lanes = scores.download(), w = weights.download();
  std::vector<float> s(kKeysPerStep);
  for (int lane = 0; lane < 8; ++lane)
    s[static_cast<std::size_t>(key_of_lane(lane))] = scores_of_lanes[static_cast<std::size_t>(lane)];
  std::printf("key      s         exact       ceil(s)   2^(s - ceil(s))   2^(s - e)\n");
  for (std::size_t a = 0; a < kKeysPerStep; ++a) {
    double exact = 0;
    for (std::size_t j = 0; j < kDim; ++j) exact += double(q[j]) * double(k[a * kDim + j]);
    exact *= double(on.params.score_scale);
    std::printf(" %zu   %9.6f   %9.6f   %5g      %.6f          %.6f\n", a, s[a], exact, key_shift(s[a]), key_weight(s[a]),
                w[a]);
    expect(std::abs(double(s[a]) - exact) < 1e-5, "a score is q.k");
    for (std::size_t lane = 1; lane < 8; ++lane)
      expect(w[lane * kKeysPerStep + a] == w[a], "all lanes have the same weights");
  }

  // %% [markdown]
  // ## Eight keys, seven merges
  //
  // `platform::eight_keys()` adds up weights, and weights times values, neighbour with neighbour.
  // Every lane has shift and sum, and four components of its own. Had the keys climbed one by one,
  // through seven calls of `merge()` of `reference/state/state.hpp`, each with a shift of its own, the
  // bits would be the same: a power of two passes through an addition and its rounding.

  // %%
  const std::vector<float> e_D_n = states.download();
  std::vector<std::vector<float>> tree;
  for (std::size_t a = 0; a < kKeysPerStep; ++a) {
    tree.emplace_back(kValues + kDim);
    set_key(tree.back().data(), s[a], &v[a * kDim], kDim);
  }
  for (std::size_t width = 1; width < kKeysPerStep; width *= 2) {
    for (std::size_t a = 0; a < kKeysPerStep; a += 2 * width) merge(tree[a].data(), tree[a + width].data(), kDim);
  }
  std::printf("lane    e      D       its components of n\n");
  for (int lane = 0; lane < 8; ++lane) {
    const float* const of_lane = &e_D_n[static_cast<std::size_t>(lane * (2 + Eight::kElements))];
    std::printf("  %d  %4g  %.5f", lane, of_lane[0], of_lane[1]);
    for (int c = 0; c < Eight::kElements; ++c) {
      const auto j = static_cast<std::size_t>(Eight::component(lane, c));
      std::printf("  n_%-2zu %8.5f", j, of_lane[2 + c]);
      expect(of_lane[2 + c] == tree[0][kValues + j], "as if the keys had climbed one by one");
    }
    std::printf("\n");
    expect(of_lane[0] == tree[0][kShift] && of_lane[1] == tree[0][kSum], "in every lane");
  }

  // %% [markdown]
  // ## The counter in registers
  //
  // States of eight keys go into a binary counter of three levels. To see the merges we push
  // states of weight $D = 1$ under the shifts 0, 1, 0, 2, ... A left child is parked; a right one
  // merges with it and goes on. How far it gets is the number of ones at the end of its index, and
  // a state that passes three levels is that of a leaf: it leaves for the counter in memory.

  // %%
  const std::vector<float> shifts = {0, 1, 0, 2, 0, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0};
  DeviceBuffer<float> shifts_on_device(16), values_out(48);
  shifts_on_device.upload(shifts);
  launch(watch_counter, {.grid = {1}, .block = {1}}, Stream{}, 16, shifts_on_device.data(), values_out.data());
  const std::vector<float> t = values_out.download();
  std::printf("index       in     merges   then\n");
  for (unsigned i = 0; i < 16; ++i) {
    const int n_merges = std::min(3, std::countr_one(i));
    const std::string then = t[3 * i] != 0 ? "out, the state of a leaf" : "parked at level " + std::to_string(n_merges);
    std::printf("%2u  %u%u%u%u    2^%g x 1     %d     2^%g x %-8g %s\n", i, i >> 3 & 1, i >> 2 & 1, i >> 1 & 1, i & 1,
                shifts[i], n_merges, t[3 * i + 1], t[3 * i + 2], then.c_str());
    expect((t[3 * i] != 0) == (n_merges == 3), "one state in eight leaves the registers");
  }

  // %% [markdown]
  // $2^3 \cdot 1.875$ at the end is $8 + 7$: all is exact here, since every weight is a power of
  // two.
  //
  // ## Four sub-warps, four forests, one
  //
  // Now the whole block. `split_range()` cuts 300 positions at multiples of 64, so the sub-warps have one
  // or two leaves, the last of them with a ragged end. Each subtree is printed as $2^e \cdot D$.

  // %%
  const std::int64_t n_sub_warp = forest_floats<Eight>(on.params, kSubWarps);
  DeviceBuffer<float> of_sub_warps(kSubWarps * n_sub_warp), of_block(forest_floats<Eight>(on.params, 1));
  DeviceBuffer<float> z(kDim), lse(1);
  const DeviceOutput output{.out = z.data(), .lse = lse.data()};
  const auto run_block = [&] {
    n_bytes_asked = 0;
    launch(one_block, {.grid = {1}, .block = {kWarp}, .shared_bytes = kScratch * sizeof(float)}, Stream{}, on.params, output,
           of_sub_warps.data(), n_sub_warp, of_block.data());
    std::vector<float> result = z.download();
    result.push_back(lse.download()[0]);
    return result;
  };
  const std::vector<float> result = run_block();
  const std::int64_t n_bytes = n_bytes_asked;

  const KeyRange whole = on.params.padded(0);
  for (int sub_warp = 0; sub_warp < kSubWarps; ++sub_warp) {
    const std::string whose = "sub-warp " + std::to_string(sub_warp) + ",";
    print_forest(whose.c_str(), split_range(whole, sub_warp, kSubWarps), of_sub_warps.data() + sub_warp * n_sub_warp);
  }
  print_forest("joined,", whole, of_block.data());
  std::printf("lse = %.6f   z = (%.5f, %.5f, %.5f, ...)\n", result[kDim], result[0], result[1], result[2]);

  // %% [markdown]
  // Find the join in the numbers: two leaves that were neighbours in different sub-warps and are
  // siblings in the tree are one subtree of 128 keys now, and two of those one of 256. Subtrees
  // that are no siblings lie side by side until the end.
  //
  // ## The same bits
  //
  // The emulator may run threads in any order, and a kernel may cut the keys in any way. Neither
  // may change a bit. We run the block under ten seeds, and then the steps of the library, which
  // store the same numbers as F32, with other sub-warps, blocks and splits.

  // %%
  int n_seeds = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const SettingsScope scope({.seed = seed});
    n_seeds += same_bits(run_block(), result);
  }
  std::printf("ten seeds: %d with the same bits\n", n_seeds);
  expect(n_seeds == 10, "the order of threads changes no bit");

  for (const LadderStep* const step : ladder()) {
    if (!step->refusal(on.params, DType::F32).empty()) continue;
    std::printf("%-11s", step->name);
    bool all_same = true;
    for (const int n_splits : {1, 2, 3, 5}) {
      const LaunchPlan plan = step->plan(on.params, DType::F32, {.n_splits = n_splits});
      const DeviceBuffer<float> floats(plan.n_floats);
      DeviceBuffer<unsigned> counters(plan.n_counters);
      counters.fill(0);
      step->run(on.params, DType::F32, output, plan, {floats.data(), counters.data()}, Stream{});
      std::vector<float> other = z.download();
      other.push_back(lse.download()[0]);
      std::printf("  %d split%s: %s", n_splits, n_splits == 1 ? " " : "s", same_bits(other, result) ? "same" : "other");
      all_same = all_same && same_bits(other, result);
    }
    std::printf("\n");
    expect(all_same || !step->keeps_states, "steps of sub-warps have the same bits");
  }

  // %% [markdown]
  // The first two steps have no splits, and add up in a chain: their bits are other ones, and right
  // as well. All others climb one tree.
  //
  // ## Bytes
  //
  // How much has the block asked for? The formula of @ref kernels says each key and each value
  // once: $N (d_h + d_v)$ numbers.

  // %%
  const std::int64_t formula = 300 * (kDim + kDim) * 4;
  std::printf("asked for: %ld bytes    formula: %ld bytes\n", long(n_bytes), long(formula));
  expect(n_bytes == formula, "every key and every value is read once, and nothing behind the end");

  // %% [markdown]
  // ## A lane that stays away
  //
  // At last something that must not be. All lanes of a warp have to take part in an exchange, also
  // those that have no keys left. What if one returns before?

  // %%
  const auto stays_away = [](int who) {
    if (static_cast<int>(threadIdx.x) == who) return;
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
// ## Questions
//
// 1. In a sub-warp of 16 lanes the first three rounds are the same. What happens in the fourth, and why
//    does no round halve the keys again?
// 2. Look at lane 3 in the second round and at lane 1 in the third: which products, of which
//    lanes and keys, are in the numbers that came?
// 3. The counter in registers has three levels. What would a fourth one cost, and what would it
//    save? (A state is $2 + d_v$ numbers over the lanes of a sub-warp.)
// 4. Give the sub-warps ranges that are cut at multiples of 8 in place of 64. Which bits of the result
//    change? Which lines of `gpu/parts/key_accumulator.cuh` run that did not before?
// 5. The naive step of the ladder has other bits. Make it climb the tree: which of its two kernels
//    has to change, and what happens to its threads?
