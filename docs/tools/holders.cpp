// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Contents of the lanes in the kernels, as JSON for docs/tools/kernel_figures.py, by the kernels' own functions.
///
/// Run: holders holders.json
#include "gpu/engine/pipelines.cuh"
#include "gpu/engine/units.hpp"
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"

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
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      for (int c = 0; c < 2; ++c)
        std::printf("%s[%d, %d, %d]", lane + slot + c == 0 ? "" : ", ", lane, Tile::row(lane, slot),
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
  print_schedules();
  std::printf("}\n");
}
