// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Who holds what in the kernels, as JSON for docs/tools/kernel_figures.py: asked of the kernels' own functions.
///
/// Run: holders holders.json
#include <cstdio>
#include <string>
#include <vector>

#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/state/forest.hpp"

namespace tree_attn::emulated {
namespace {

/// What lanes hand each other in __shfl_xor_sync(), in the order of the calls: [exchange][lane].
std::vector<std::vector<unsigned>> received;
std::vector<std::size_t> n_calls;

/// The exchange of the emulator, and a note of what came.
float watched_exchange(unsigned mask, float value, int flip) {
  const float other = __shfl_xor_sync(mask, value, flip);
  const std::size_t call = n_calls[threadIdx.x]++;
  if (received.size() <= call) received.resize(call + 1, std::vector<unsigned>(32, 0));
  received[call][threadIdx.x] = static_cast<unsigned>(other);
  return other;
}
template <class T>
T watched_exchange(unsigned mask, T value, int flip) {
  return __shfl_xor_sync(mask, value, flip);
}

}  // namespace
}  // namespace tree_attn::emulated

// From here on the functions of the kernels use it.
#define __shfl_xor_sync watched_exchange
#include "gpu/parts/bulk_ring.cuh"
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/schedule.hpp"
#include "gpu/parts/workers.hpp"

namespace tree_attn {
namespace {

/// A stored number that no kernel of the library knows, so that what is watched here is watched here alone.
struct Watched {
  float x;
};
float widen(Watched number) { return number.x; }

}  // namespace

namespace emulated {
namespace {

using WatchedTeam = Team<Watched, 16, 1>;

/// Scores of eight keys of which all but one are zero; of that one, lane i has the number 2^i to add.
__global__ void watch_scores(int key) {
  const int lane = static_cast<int>(threadIdx.x) % WatchedTeam::kLanes;
  const float q[WatchedTeam::kNumbers] = {static_cast<float>(1 << lane)};
  score_of_eight<WatchedTeam>(
      q,
      [key](int i, int) {
        const float numbers[4] = {i == key ? 1.0f : 0.0f};
        Bytes16 bytes;
        std::memcpy(&bytes, numbers, sizeof bytes);
        return bytes;
      },
      1, lane);
}

/// [[begin, end], ...] of the subtrees that cover a run.
std::string cover_of(Run run) {
  std::string text;
  for (const Subtree& at : cover(run.begin, run.end))
    text += (text.empty() ? "[" : ", [") + std::to_string(at.begin()) + ", " + std::to_string(at.end()) + "]";
  return "[" + text + "]";
}

void print_exchanges() {
  std::printf("  \"exchanges\": [");
  for (int key = 0; key < kTogether; ++key) {
    received.clear();
    n_calls.assign(32, 0);
    launch(watch_scores, {.grid = {1}, .block = {32}}, Stream{}, key);
    std::printf("%s\n    [", key == 0 ? "" : ",");
    for (std::size_t call = 0; call < received.size(); ++call) {
      std::printf("%s[", call == 0 ? "" : ", ");
      for (int lane = 0; lane < WatchedTeam::kLanes; ++lane)
        std::printf("%s%u", lane == 0 ? "" : ", ", received[call][static_cast<std::size_t>(lane)]);
      std::printf("]");
    }
    std::printf("]");
  }
  std::printf("],\n");
}

/// Who holds which component of a row of 128, in a team and in a tile.
void print_rows() {
  using Row = Team<BFloat16, 16, 1>;
  using Tile = WarpTile<BFloat16, 128, 1>;
  std::printf("  \"team\": [");
  for (int lane = 0; lane < Row::kLanes; ++lane)
    std::printf("%s[%d, %d]", lane == 0 ? "" : ", ", Row::component(lane, 0), Row::component(lane, Row::kNumbers - 1));
  std::printf("],\n  \"tile\": [");
  for (int lane = 0; lane < Tile::kLanes; ++lane) {
    for (int slot = 0; slot < Tile::kSlots; ++slot) {
      for (int c = 0; c < 2; ++c)
        std::printf("%s[%d, %d, %d]", lane + slot + c == 0 ? "" : ", ", lane, Tile::row(lane, slot),
                    Tile::component(lane, c));
    }
  }
  std::printf("],\n");
}

/// A run of 1000 positions over three blocks of four teams.
void print_parts() {
  const Run whole{0, 1000};
  std::printf("  \"parts\": [");
  for (int split = 0; split < 3; ++split) {
    const Run run = part_of(whole, split, 3);
    std::printf("%s\n    {\"run\": [%ld, %ld], \"forest\": %s, \"teams\": [", split == 0 ? "" : ",", long(run.begin),
                long(run.end), cover_of(run).c_str());
    for (int team = 0; team < 4; ++team) {
      const Run part = part_of(run, team, 4);
      std::printf("%s{\"run\": [%ld, %ld], \"forest\": %s}", team == 0 ? "" : ", ", long(part.begin), long(part.end),
                  cover_of(part).c_str());
    }
    std::printf("]}");
  }
  std::printf("],\n  \"joined\": %s,\n", cover_of(whole).c_str());
}

/// What a team holds after every group of eight of the positions 64 to 320.
void print_climb() {
  Forest<float> forest(1, 1);
  std::printf("  \"climb\": [");
  for (std::int64_t group = 8; group < 40; ++group) {
    tree_attn::set_empty(forest.slot(), 1);
    forest.push({kTogetherLevel, group});
    std::printf("%s[", group == 8 ? "" : ", ");
    for (const Subtree& at : forest.subtrees())
      std::printf("%s[%d, %ld]", &at == forest.subtrees().data() ? "" : ", ", at.level, long(at.index));
    std::printf("]");
  }
  std::printf("],\n");
}

/// A batch of four lengths, two heads each, on six multiprocessors: a block a split, and equal runs.
void print_schedules() {
  const SettingsScope scope({.n_multiprocessors = 6});
  const std::vector<std::int64_t> lengths = {1500, 200, 0, 700};
  DeviceProblem problem;
  problem.lengths = lengths.data();
  problem.batch = 4, problem.kv_heads = 2, problem.end = 1500;
  const int n_splits = choose_splits(problem, problem.n_rows(), 16);
  std::printf("  \"lengths\": [1500, 200, 0, 700],\n  \"splits\": [");
  for (std::int64_t row = 0; row < problem.n_rows(); ++row) {
    for (int split = 0; split < n_splits; ++split) {
      const Run run = part_of(problem.padded(row), split, n_splits);
      std::printf("%s[%ld, %ld, %ld]", row + split == 0 ? "" : ", ", long(row), long(run.begin), long(run.end));
    }
  }
  std::printf("],\n  \"equal_runs\": [");
  const Schedule schedule(problem, 1, 6);
  for (std::int64_t block = 0; block < 6; ++block) {
    std::printf("%s[", block == 0 ? "" : ", ");
    const std::int64_t begin = schedule.begin_of(block), end = schedule.begin_of(block + 1);
    for (std::int64_t cell = begin; cell < end;) {
      const Segment segment = schedule.segment_at(problem, cell, end);
      std::printf("%s[%ld, %ld, %ld, %ld]", cell == begin ? "" : ", ", long(segment.line), long(segment.run.begin),
                  long(segment.run.end), long(segment.last - segment.first));
      cell = segment.last;
    }
    std::printf("]");
  }
  std::printf("]\n");
}

/// What every step picks for BF16, 64k keys and rows of 128 on 132 multiprocessors, and the bytes that one of its blocks has
/// asked for and not yet received.
void print_plans() {
  using Row = Team<BFloat16, 16, 1>;
  using Tile = WarpTile<BFloat16, 128, 1>;
  const SettingsScope scope({.n_multiprocessors = 132});
  std::printf("  \"plans\": [");
  for (const std::int64_t group : {1, 4}) {
    DeviceProblem problem;
    problem.kv_heads = group == 1 ? 16 : 8, problem.group = group, problem.end = 65536;
    problem.d_h = problem.d_v = 128;
    for (const LadderStep* step : ladder()) {
      const Plan plan = step->plan(problem, Storage::BF16, {});
      const std::string name = step->name, path = plan.path;
      const bool first = group == 1 && step == ladder()[0];
      // Stages that are not being read; without a ring what the lanes load at once: a row, or eight rows.
      const std::int64_t tile_bytes = kItem * Tile::kDim * sizeof(BFloat16), n_warps = plan.n_threads / kWarp;
      const std::int64_t n_ahead = plan.n_stages - 1, rows_at_once = name == "fused" ? 1 : kTogether;
      const std::int64_t team_threads =
          plan.n_threads > BulkShape<Row>::kTeamThreads ? BulkShape<Row>::kTeamThreads : plan.n_threads;
      const std::int64_t in_flight =
          plan.n_stages == 0 ? rows_at_once * 256 * (name == "fused" ? 1 : plan.n_threads / Row::kLanes)
          : path == "tensor"
              ? n_warps * n_ahead * tile_bytes
              : static_cast<std::int64_t>(LaneRing<Row>::n_bytes(static_cast<int>(n_ahead), static_cast<int>(team_threads)));
      const std::int64_t n_rows = path == "tensor" ? n_strips<Tile>(problem) : problem.n_rows();
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
}  // namespace emulated
}  // namespace tree_attn

int main(int n_arguments, char** arguments) {
  using namespace tree_attn::emulated;
  if (n_arguments != 2 || std::freopen(arguments[1], "w", stdout) == nullptr) {
    std::fprintf(stderr, "Run: holders FILE.json\n");
    return 2;
  }
  std::printf("{\n");
  print_exchanges();
  print_rows();
  print_parts();
  print_climb();
  print_plans();
  print_schedules();
  std::printf("}\n");
}
