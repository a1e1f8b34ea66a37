// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ladder in the modes of the emulator that watch it: races in shared memory, races in global memory, stray
/// accesses.
///
/// Compiled once a mode, without F16, over few shapes: what a mode sees is seen on every run, whatever order threads really
/// ran in. Results are held against the oracle on the way, and against each other over the orders that the emulator draws.
#include "gpu/emulator/settings.hpp"
#include "tests/support/device_params.hpp"

#include <map>

namespace tree_attn::test {
namespace {

using emulated::split_range;

/// A kind of worker, by a shape that gets it.
struct Kind {
  const char* name;
  int n_lanes;                    ///< of one worker
  bool is_tile;                   ///< on tensor cores
  std::int64_t n_keys_of_worker;  ///< that fill every stage of its ring and two of them again; 0 where that is not asked for
  Axes axes;
};

/// Keys do not fill the last leaf, nor any other unit; the shard has room for whole steps of eight, or not.
constexpr std::int64_t kRagged = 37, kWhole = 40;

Axes of_warps(DType dtype, std::int64_t d, std::int64_t n_keys, std::int64_t rest = kWhole) {
  return {.heads = 1, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = n_keys + rest, .dtype = dtype};
}
Axes of_tiles(DType dtype, std::int64_t d, std::int64_t group, std::int64_t n_keys, bool has_values = true) {
  return {.heads = group,
          .kv_heads = 1,
          .head_dim = d,
          .value_dim = has_values ? d : 0,
          .n_keys = n_keys + kRagged,
          .dtype = dtype};
}

#if defined(TREE_ATTN_EMULATOR_SHADOW)
/// Every width of a warp on scalar cores and of a tile; a ring holds 5 stages of 8 rows, of which a leaf has 16, or 2 to 6
/// tiles of 64, of which a leaf has 2 to 8.
const Kind kKinds[] = {
    {"warp, rows of 32", 32, false, 40, of_warps(DType::F32, 32, 704)},
    {"warp, rows of 64", 32, false, 40, of_warps(DType::F32, 64, 704)},
    {"warp, rows of 64, ragged", 32, false, 40, of_warps(DType::F32, 64, 704, kRagged)},
    {"warp, rows of 128", 32, false, 40, of_warps(DType::F32, 128, 704)},
    {"warp, rows of 100", 32, false, 40, of_warps(DType::F32, 100, 300)},
    {"warp, rows of 256", 32, false, 40, of_warps(DType::F32, 256, 504)},
    {"warp, rows of 512", 32, false, 40, of_warps(DType::F32, 512, 304)},
    {"tile of 64, one query", 32, true, 256, of_tiles(DType::BF16, 64, 1, 2500)},
    {"tile of 64, two tiles", 32, true, 256, of_tiles(DType::BF16, 64, 11, 2500)},
    {"tile of 128, three queries", 32, true, 192, of_tiles(DType::BF16, 128, 3, 2000)},
    {"tile of 256, five queries", 32, true, 128, of_tiles(DType::BF16, 256, 5, 1100)},
    {"tile of 256, rows with padding", 32, true, 0, of_tiles(DType::BF16, 131, 3, 200)},
    {"tile of four warps, nine queries", 32, true, 0, of_tiles(DType::BF16, 512, 9, 600)},
    {"tile of four warps, rows with padding", 32, true, 0, of_tiles(DType::BF16, 259, 3, 150)},
    {"tile of 64, two tiles of 8 bits", 32, true, 256, of_tiles(DType::F8_E4M3, 64, 11, 2500)},
    {"tile of 128, rows of 8 bits with padding", 32, true, 0, of_tiles(DType::F8_E4M3, 120, 3, 200)},
    {"tile of four warps, rows of 8 bits", 32, true, 0, of_tiles(DType::F8_E4M3, 512, 9, 300)},
    {"tile of four warps, values without components", 32, true, 0, of_tiles(DType::BF16, 512, 9, 300, false)},
};
constexpr std::uint64_t kSeeds[] = {0, 1, 2};
#elif defined(TREE_ATTN_EMULATOR_THREAD)
/// A fiber costs TSan nearly half a millisecond: few blocks. What global memory orders is the merge by the block that comes
/// last.
const Kind kKinds[] = {{"warp, rows of 32", 32, false, 0, of_warps(DType::F32, 32, 304)},
                       {"warp, rows of 512", 32, false, 0, of_warps(DType::F32, 512, 160)},
                       {"tile of 64", 32, true, 0, of_tiles(DType::BF16, 64, 4, 160)}};
constexpr std::uint64_t kSeeds[] = {0, 1};
#else
/// Rows that end inside a vector, arrays that end where the memory does.
const Kind kKinds[] = {{"warp, rows of 32", 32, false, 0, of_warps(DType::F32, 32, 136)},
                       {"warp, rows of 32, ragged", 32, false, 0, of_warps(DType::F32, 32, 130, kRagged)},
                       {"warp, rows of 37", 32, false, 0, of_warps(DType::F32, 37, 130)},
                       {"warp, rows of 512", 32, false, 0, of_warps(DType::F32, 512, 72)},
                       {"tile of 64", 32, true, 0, of_tiles(DType::BF16, 64, 3, 200)},
                       {"tile of 64, with padding", 32, true, 0, of_tiles(DType::BF16, 33, 11, 200)},
                       {"tile of 256", 32, true, 0, of_tiles(DType::BF16, 256, 3, 200)}};
constexpr std::uint64_t kSeeds[] = {0, 1};
#endif

/// Tests whether a mode is for such a plan: races in global memory need blocks that count each other.
bool is_watched(const device::LaunchPlan& plan) {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  return plan.n_counters > 0;
#else
  return plan.n_threads > 0;
#endif
}

/// The most keys that one of n workers of one of two splits gets.
std::int64_t keys_of_worker(const DecodeParams& params, int n_workers) {
  std::int64_t most = 0;
  for (int split = 0; split < 2; ++split) {
    for (int worker = 0; worker < n_workers; ++worker)
      most = std::max(most, split_range(split_range({params.begin, params.end}, split, 2), worker, n_workers).size());
  }
  return most;
}

/// Runs a step under every order of the emulator, on finished rows; all orders have the same bits, within the bound.
void check_orders(const device::LadderStep& step, TensorWorkload& workload, const DeviceShard& shard,
                  const device::LaunchOptions& options = {.n_splits = 2}, emulated::Settings settings = {}) {
  DecodeOutput first;
  for (const std::uint64_t seed : kSeeds) {
    CAPTURE(seed);
    settings.seed = seed;
    const emulated::SettingsScope scope(settings);
    const DecodeOutput output = run_step(step, shard, options);
    if (seed == kSeeds[0]) first = output;
    CHECK(same_output(output, first));
  }
  CHECK(against_oracle(workload, first, step, shard) == "");
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("modes: every step, with every kind of worker, two splits and ragged ends, under several orders") {
  unsigned seed = 9000;
  std::map<const device::LadderStep*, int> n_runs;
  for (const Kind& kind : kKinds) {
    const auto workload = normal_workload(seed++, kind.axes, std::vector<std::int64_t>{kind.axes.n_keys / 8 * 8 - 3});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const device::LadderStep* step : device::all_kernels()) {
      if (step->refusal(shard.params, shard.dtype) != "") continue;
      const device::LaunchPlan plan = step->plan(shard.params, shard.dtype, {.n_splits = 2});
      if (is_scalar(plan) == kind.is_tile || !is_watched(plan)) continue;
      INFO(kind.name << ", " << step->name);
      if (step->max_splits > 1) CHECK(plan.n_splits == 2);
      // Only later steps have a ring.
      if (plan.n_stages > 0) {
        CHECK(keys_of_worker(shard.params, plan.n_threads / kind.n_lanes) >= kind.n_keys_of_worker);
      }
      check_orders(*step, *workload, shard);
      ++n_runs[step];
    }
  }
#if !defined(TREE_ATTN_EMULATOR_THREAD)
  for (const device::LadderStep* step : device::all_kernels()) CHECK_MESSAGE(n_runs[step] > 0, step->name);
#else
  CHECK(n_runs.size() >= 3);
#endif
}

/// Query tiles that end inside a block, and blocks that join a query tile which others began: only a batch has them.
/// @tested{thm_1, Thm. 1}
TEST_CASE("modes: the library kernel over a batch with lengths of all kinds") {
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{2, 150}, {6, 150}, {2, 40}, {6, 40}, {22, 150}, {50, 150}};
#if defined(TREE_ATTN_EMULATOR_SHADOW)
  // Three leaves for each of four warps fill their rings. Then the block joins them in the memory of the first stages, and
  // those are copied to next.
  shapes.push_back({6, 12 * kLeafKeys});
#endif
  for (const auto& [heads, n_keys] : shapes) {
    const Axes axes{
        .batch = 4, .heads = heads, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = n_keys, .dtype = DType::BF16};
    const auto workload =
        normal_workload(9100, axes, std::vector<std::int64_t>{n_keys, 0, 1, std::min<std::int64_t>(n_keys, 65)});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    INFO("heads " << heads << ", N = " << n_keys);
    check_orders(device::kEqualRuns, *workload, shard, {}, {.n_multiprocessors = n_keys > 150 ? 2 : 4});
  }
}

/// Nine blocks share each of two sequences: the one in the middle has a part of both.
/// @tested{thm_1, Thm. 1}
TEST_CASE("modes: a block that has parts of two sequences") {
  Axes axes = of_tiles(DType::BF16, 264, 9, 17 * kLeafKeys);
  axes.value_dim = 24, axes.batch = 2;
  const auto workload = normal_workload(9150, axes, std::vector<std::int64_t>(2, 17 * kLeafKeys));
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  const emulated::Settings settings{.n_multiprocessors = 17};
  const emulated::SettingsScope scope(settings);
  CHECK(device::kEqualRuns.plan(shard.params, shard.dtype, {}).n_blocks == 17);
  check_orders(device::kEqualRuns, *workload, shard, {}, settings);
}

#if defined(TREE_ATTN_EMULATOR_SHADOW)
/// On compute capability 8 every lane copies a part of every row, and on tensor cores reads what the others have copied.
/// @tested{eq_7, eq. (7)}
TEST_CASE("modes: rings without tensor maps and bulk copies") {
  for (const Axes& axes :
       {of_tiles(DType::BF16, 64, 4, 1300), of_tiles(DType::BF16, 128, 7, 900), of_tiles(DType::BF16, 64, 11, 1300),
        of_tiles(DType::BF16, 512, 9, 400), of_tiles(DType::F8_E4M3, 128, 11, 900), of_tiles(DType::F8_E4M3, 512, 9, 300),
        of_warps(DType::BF16, 128, 504), of_warps(DType::F32, 100, 300, kRagged)}) {
    const auto workload = normal_workload(9180, axes);
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    INFO("heads " << axes.heads << ", d " << axes.head_dim);
    const emulated::SettingsScope scope({.seed = 3, .major = 8});
    CHECK(device::device().major == 8);
    const DecodeOutput output = run_step(device::kEqualRuns, shard, {.n_splits = 1});
    CHECK(against_oracle(*workload, output, device::kEqualRuns, shard) == "");
  }
}

/// All warps of a block take scores from a box, and then values, of which one of them has cleared the rows without a key;
/// the boxes of the first leaf of this shard are filled again. Of more than eight queries, warpgroups; of more than 32, in
/// pairs of blocks.
TEST_CASE("modes: keys that hold the values, with tensor maps and without") {
  constexpr std::int64_t kBegin = 64, kEnd = 291;
  for (const auto& [dtype, heads] : {std::pair{DType::BF16, 3},
                                     {DType::BF16, 11},
                                     {DType::BF16, 20},
                                     {DType::BF16, 40},
                                     {DType::F8_E4M3, 3},
                                     {DType::F8_E4M3, 40}}) {
    const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = 576, .value_dim = 512, .n_keys = 300, .dtype = dtype};
    const auto rows = normal_workload(9190, axes, std::vector<std::int64_t>{kEnd});
    const TensorView k = rows->k().positions(kBegin, axes.n_keys);
    TensorView v = k;
    v.shape[3] = axes.value_dim;
    TensorWorkload workload({}, rows->query(0), k, v, {kEnd - kBegin}, rows->scale);
    const DeviceShard shard(rows->query(0), {k, v, kBegin}, rows->lengths(), rows->scale);
    for (const int major : {8, 9}) {
      INFO(name_of(dtype) << ", " << heads << " heads, major " << major);
      const emulated::SettingsScope scope({.seed = 3, .major = major});
      CHECK(device::kEqualRuns.plan(shard.params, shard.dtype, {.n_splits = 1}).cluster ==
            (major == 9 && heads > 32 ? 2 : 1));
      const DecodeOutput output = run_step(device::kEqualRuns, shard, {.n_splits = 1});
      CHECK(against_oracle(workload, output, device::kEqualRuns, shard) == "");
    }
  }
}

/// A warpgroup clears the rows of a leaf without a key, and queries of two lengths share its tile; it widens F8_E4M3.
TEST_CASE("modes: more queries of a kv head than two warps serve") {
  for (const auto& [dtype, l] : {std::pair{DType::BF16, 21}, {DType::BF16, 45}, {DType::F8_E4M3, 45}}) {
    const Axes axes{
        .heads = 2, .kv_heads = 2, .head_dim = 72, .value_dim = 64, .n_queries = l, .n_keys = 350, .dtype = dtype};
    const auto workload = normal_workload(9200, axes, std::vector<std::int64_t>{331});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const std::uint64_t seed : {0, 3}) {
      INFO(name_of(dtype) << ", " << l << " queries, seed " << seed);
      const emulated::SettingsScope scope({.seed = seed, .n_multiprocessors = 1});
      const DecodeOutput output = run_step(device::kEqualRuns, shard, {.n_splits = 1});
      CHECK(against_oracle(*workload, output, device::kEqualRuns, shard) == "");
    }
  }
}

/// The last block, or the launch that combines, merges its states in rounds.
/// @tested{thm_1, Thm. 1}
TEST_CASE("modes: so many splits that their states are merged in rounds") {
  constexpr int kSplits = 70;
  for (const Axes& axes :
       {of_warps(DType::F32, 512, kSplits * kLeafKeys), of_tiles(DType::BF16, 256, 4, kSplits * kLeafKeys)}) {
    const auto workload = normal_workload(9150, axes);
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    for (const device::LadderStep* step : device::all_kernels()) {
      if (step->max_splits < kSplits || step->refusal(shard.params, shard.dtype) != "") continue;
      INFO(step->name << ", d " << axes.head_dim);
      const emulated::SettingsScope scope({.seed = 3});
      CHECK(step->plan(shard.params, shard.dtype, {.n_splits = kSplits}).n_splits == kSplits);
      const DecodeOutput output = run_step(*step, shard, {.n_splits = kSplits});
      CHECK(against_oracle(*workload, output, *step, shard) == "");
      CHECK(same_output(output, run_step(*step, shard, {.n_splits = 1})));
    }
  }
}
#endif

/// States instead of finished rows leave the kernel by another way. On tensor cores a warp of the long shard fills the
/// stages again from which it has read its first leaf.
/// @tested{thm_1, Thm. 1}
TEST_CASE("modes: a shard that ends anywhere hands on its states") {
  for (const auto& [heads, n_splits, range] : {std::tuple{1, 2, KeyRange{64, 290}}, {4, 1, KeyRange{64, 1240}}}) {
    const Axes axes{
        .heads = heads, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .n_keys = range.end + 10, .dtype = DType::BF16};
    const auto workload = normal_workload(9200, axes);
    const Shard part = workload->shard(range);
    const auto of_shard =
        workload_of(copy_of(workload->query(0)), copy_of(part.k), copy_of(part.v), std::nullopt, workload->scale);
    const DeviceShard shard(workload->query(0), part, workload->lengths(), workload->scale);
    const std::int64_t n_floats =
        static_cast<std::int64_t>(cover(range.begin, range.end).size()) * shard.params.n_rows() * state_size(64);
    for (const device::LadderStep* step : device::all_kernels()) {
      if (!step->keeps_states || step->refusal(shard.params, shard.dtype) != "") continue;
      const device::LaunchPlan plan = step->plan(shard.params, shard.dtype, {.n_splits = n_splits});
      if (!is_watched(plan)) continue;
      INFO(step->name << ", heads " << heads);
      // A ring of these tiles holds three leaves.
      if (heads > 1 && !is_scalar(plan)) CHECK(split_range(range, 0, plan.n_threads / 32).size() > 3 * kLeafKeys);
      const emulated::SettingsScope scope({.seed = 1});
      const DeviceWorkspace workspace(plan);
      device::DeviceBuffer<float> states(n_floats);
      states.fill(0xFF);
      step->run(shard.params, shard.dtype, {.states = states.data()}, plan, workspace.get(), device::Stream{});
      const std::vector<float> elements = states.download();
      CHECK(std::none_of(elements.begin(), elements.end(), [](float x) { return std::isnan(x); }));

      // Folded, they are the attention over the keys of the shard alone.
      Forest<float> forest(shard.params.n_rows(), shard.params.d_v);
      forest.append(cover(range.begin, range.end), elements.data());
      const DecodeOutput output = finish_rows(forest.fold(), forest.n_rows(), forest.d_v());
      CHECK(against_oracle(*of_shard, output, *step, shard) == "");
    }
  }
}

}  // namespace tree_attn::test
