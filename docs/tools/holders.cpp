// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Contents of the lanes in the kernels, as JSON for docs/tools/kernel_figures.py, by the kernels' own functions.
///
/// Run: holders holders.json
#include "gpu/engine/equal_runs.cuh"
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::emulated {

void print_warp_leaf();  // warp_leaf.cpp

namespace {

/// Element i of an 8 x 8 matrix is i itself, so lane l brings 2 l and 2 l + 1.
std::vector<std::uint32_t> transposed;
__global__ void watch_transpose() {
  const std::uint32_t first = 2 * threadIdx.x;
  std::uint32_t pairs[] = {first | (first + 1) << 16};
  transpose_matrices<1>(pairs);
  transposed[threadIdx.x] = pairs[0];
}

/// The elements that lanes hold after transpose_matrices(): [lane][2].
void print_transposed() {
  transposed.assign(32, 0);
  launch(watch_transpose, {.grid = {1}, .block = {32}}, Stream{});
  std::printf("  \"transposed\": [");
  for (std::size_t lane = 0; lane < transposed.size(); ++lane)
    std::printf("%s[%u, %u]", lane == 0 ? "" : ", ", transposed[lane] & 0xFFFF, transposed[lane] >> 16);
  std::printf("],\n");
}

/// Prints the lane that holds each component of a row of 256 bytes in a tile.
void print_rows() {
  using Tile = MmaTile<BFloat16, 128, 8>;
  std::printf("  \"tile\": [");
  for (int lane = 0; lane < Tile::kLanes; ++lane) {
    for (int query = 0; query < Tile::kLaneQueries; ++query) {
      for (int c = 0; c < 2; ++c)
        std::printf("%s[%d, %d, %d]", lane + query + c == 0 ? "" : ", ", lane, Tile::row(lane, query),
                    Tile::component(lane, c));
    }
  }
  std::printf("],\n");
}

/// A query of 23 leaves on three blocks of two warps: the units of two leaves that each of them decodes.
void print_parts() {
  const std::int64_t length = 23 * kLeafKeys;
  DecodeParams params;
  params.lengths = &length, params.end = length;
  const Units units = Division(params, {}, 0, 1).units(params, 0);
  const EqualRuns runs{units.size(), 6};
  std::printf("  \"units\": [");
  for (Count taker = 0; taker < 6; ++taker) {
    std::printf("%s[", taker == 0 ? "" : ", ");
    for (Count i = runs.begin_of(taker); i < runs.begin_of(taker + 1); ++i) {
      const std::int64_t begin = units.begin_of(i);
      const KeyRange keys = params.leaves_of_slots(0, begin, units.end_of(begin));
      std::printf("%s[%ld, %ld]", i == runs.begin_of(taker) ? "" : ", ", long(keys.begin), long(keys.end));
    }
    std::printf("]");
  }
  std::printf("],\n");
}

/// Order of the threads that run, each with its part of the kernel: 0 up to the shuffle, 1 up to the barrier, 2 after it.
std::vector<std::pair<unsigned, int>> ran;
__global__ void watch_fibers() {
  ran.emplace_back(threadIdx.x, 0);
  __shfl_xor_sync(0xFF, 1.0f, 1);
  ran.emplace_back(threadIdx.x, 1);
  __syncthreads();
  ran.emplace_back(threadIdx.x, 2);
}

/// In which order the fibers of eight threads run, for three seeds.
void print_fibers() {
  std::printf("  \"fibers\": {");
  for (const std::uint64_t seed : {0, 1, 2}) {
    const SettingsScope scope({.seed = seed});
    ran.clear();
    launch(watch_fibers, {.grid = {1}, .block = {8}}, Stream{});
    std::printf("%s\"%d\": [", seed == 0 ? "" : ", ", static_cast<int>(seed));
    for (std::size_t i = 0; i < ran.size(); ++i) std::printf("%s[%u, %d]", i == 0 ? "" : ", ", ran[i].first, ran[i].second);
    std::printf("]");
  }
  std::printf("},\n");
}

/// A batch of four lengths, two heads each, on six multiprocessors: a block a split, and equal runs.
void print_schedules() {
  const SettingsScope scope({.n_multiprocessors = 6});
  const std::vector<std::int64_t> lengths = {1500, 200, 0, 700};
  DecodeParams params;
  params.lengths = lengths.data();
  params.batch = 4, params.kv_heads = 2, params.end = 1500;
  const int n_splits = kSplit.plan(params, DType::F32, {}).n_splits;
  std::printf("  \"lengths\": [1500, 200, 0, 700],\n  \"splits\": [");
  for (std::int64_t row = 0; row < params.n_rows(); ++row) {
    for (int split = 0; split < n_splits; ++split) {
      const KeyRange range = split_range(params.leaves(row), split, n_splits);
      std::printf("%s[%ld, %ld, %ld]", row + split == 0 ? "" : ", ", long(row), long(range.begin), long(range.end));
    }
  }
  std::printf("],\n  \"equal_runs\": [");
  const Division all(params, {.most_items = std::numeric_limits<Count>::max(), .n_blocks = 0}, 0);
  const EqualRuns runs{all.n_items(params, Count(params.batch)), 6};
  for (Count block = 0; block < 6; ++block) {
    std::printf("%s[", block == 0 ? "" : ", ");
    const Count begin = runs.begin_of(block), end = runs.begin_of(block + 1);
    for (Count item = begin; item < end;) {
      const UnitRun run = all.run_at(params, item, end);
      const KeyRange positions = params.leaves_of_slots(run.found.entry, run.begin, run.end);
      std::printf("%s[%ld, %ld, %ld, %ld]", item == begin ? "" : ", ", long(run.kv_head), long(positions.begin),
                  long(positions.end), long(run.last - run.first));
      item = run.last;
    }
    std::printf("]");
  }
  std::printf("]\n");
}

/// Prints the plan of every step for BF16, 64k keys and rows of 128 on 132 multiprocessors, and the bytes that one of its
/// blocks has asked for and not yet received. Steps that leave such rows to tensor cores have rows of 64 in F32, which are
/// as long.
void print_plans() {
  using Tile = MmaTile<BFloat16, 128, 8>;
  const SettingsScope scope({.n_multiprocessors = 132});
  std::printf("  \"plans\": [");
  for (const std::int64_t group : {1, 4}) {
    DecodeParams params;
    params.kv_heads = group == 1 ? 16 : 8, params.group = group, params.end = 65536;
    for (const LadderStep* step : all_kernels()) {
      params.d_h = params.d_v = 128;
      const bool takes_bf16 = step->refusal(params, DType::BF16).empty();
      if (!takes_bf16) params.d_h = params.d_v = 64;
      const LaunchPlan plan = step->plan(params, takes_bf16 ? DType::BF16 : DType::F32, {});
      const std::string name = step->name, path = plan.path;
      const bool first = group == 1 && step == all_kernels()[0];
      // Stages that are not being read; without a ring what the lanes load at once: one row, or eight. A step of a thread
      // group is eight keys and eight values.
      const std::int64_t tile_bytes = TileRing<Tile, RowCopy::TensorMap>::kStageVectors * sizeof(Bytes16);
      const std::int64_t n_warps = plan.n_threads / kWarp;
      const std::int64_t rows_at_once = name == "fused" ? 1 : kKeysPerStep;
      const std::int64_t in_flight =
          plan.n_stages == 0
              ? rows_at_once * 256 * n_warps
              : (plan.n_stages - 1) * (path == "tensor" ? n_warps * tile_bytes : 2 * kKeysPerStep * 256 * n_warps);
      const std::int64_t n_rows = path == "tensor" ? n_query_tiles<Tile>(params, plan.n_row_tiles) : params.n_rows();
      std::printf(
          "%s\n    {\"step\": \"%s\", \"group\": %ld, \"path\": \"%s\", \"blocks\": %ld, \"threads\": %d, \"stages\": %d, "
          "\"shared\": %zu, \"in_flight\": %ld}",
          first ? "" : ",", step->name, long(group), plan.path,
          long(plan.n_blocks > 0 ? plan.n_blocks : plan.n_splits * n_rows), plan.n_threads, plan.n_stages, plan.shared_bytes,
          name == "naive" ? 0 : long(in_flight));
    }
  }
  std::printf("],\n");
}

/// Prints what the library divides a step in BF16 into, on 132 multiprocessors: units, states, workspace.
void print_shapes() {
  const SettingsScope scope({.n_multiprocessors = 132, .major = 9});
  struct Shape {
    const char* name;
    std::int64_t heads, kv_heads, l, n_keys, batch = 1;
    bool is_latent = false;
  };
  constexpr Shape kShapes[] = {{"16/16 heads, 512 keys", 16, 16, 1, 512},
                               {"16/16 heads, 8k keys", 16, 16, 1, 1 << 13},
                               {"16/16 heads, 64k keys", 16, 16, 1, 1 << 16},
                               {"16/16 heads, 1M keys", 16, 16, 1, 1 << 20},
                               {"32/8 heads, 8k keys", 32, 8, 1, 1 << 13},
                               {"32/8 heads, 64k keys", 32, 8, 1, 1 << 16},
                               {"32/8 heads, 64k keys, l = 8", 32, 8, 8, 1 << 16},
                               {"16/1 heads, 64k keys, latent", 16, 1, 1, 1 << 16, 1, true},
                               {"128/1 heads, 64k keys, latent", 128, 1, 1, 1 << 16, 1, true},
                               {"16/16 heads, 64 sequences of 1k to 32k keys", 16, 16, 1, 1 << 15, 64},
                               {"32/8 heads, 8k keys, l = 64", 32, 8, 64, 1 << 13}};
  alignas(16) static const unsigned char keys[16] = {};
  std::printf("  \"shapes\": [");
  for (const Shape& shape : kShapes) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = shape.batch; i > 0; --i)
      lengths.push_back(shape.batch == 1 ? shape.n_keys : std::llround(1024 * std::exp2(5.0 * double(i - 1) / 63)));
    DecodeParams params;
    params.lengths = lengths.data(), params.batch = shape.batch;
    params.kv_heads = shape.kv_heads, params.group = shape.heads / shape.kv_heads * shape.l, params.n_queries = shape.l;
    params.d_h = shape.is_latent ? 576 : 128, params.d_v = shape.is_latent ? 512 : 128;
    params.end = params.readable_end = shape.n_keys;
    params.k.data = keys, params.v.data = shape.is_latent ? keys : nullptr;
    const LaunchPlan plan = kEqualRuns.plan(params, DType::BF16, {});
    with_pipeline<BFloat16>(params, [&](auto pipeline) {
      using Pipeline = typename decltype(pipeline)::type;
      const UnitMemory memory = unit_memory<Pipeline>(params, plan, true, nullptr);
      const Division all(params, memory.rule, memory.log_rows);
      std::int64_t n_units = 0, n_slots = 0;
      for (Count i = 0; i < params.batch; ++i)
        n_units += all.units(params, i).size(), n_slots += params.used_slots(i).size();
      std::printf(
          "%s\n    {\"shape\": \"%s\", \"units\": %ld, \"items\": %ld, \"states\": %ld, \"cache\": %ld, \"workspace\": %ld}",
          &shape == kShapes ? "" : ",", shape.name, long(n_units / shape.batch),
          long(all.n_items(params, Count(params.batch))),
          long(n_units * params.kv_heads * params.group * memory.n_state * std::int64_t{sizeof(float)}),
          long(n_slots * params.kv_heads * bytes_of_leaf(params, sizeof(BFloat16))),
          long(plan.n_floats * std::int64_t{sizeof(float)}));
    });
  }
  std::printf("],\n");
}

}  // namespace
}  // namespace tree_attn::emulated

int main(int n_arguments, char** arguments) {
  using namespace tree_attn::emulated;
  if (n_arguments != 2 || std::freopen(arguments[1], "w", stdout) == nullptr) {
    std::fprintf(stderr, "Run: holders FILE.json\n");
    return 2;
  }
  std::printf("{\n");
  print_rows();
  print_transposed();
  print_parts();
  print_warp_leaf();
  print_fibers();
  print_plans();
  print_shapes();
  print_schedules();
  std::printf("}\n");
}
