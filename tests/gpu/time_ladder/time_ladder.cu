// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times of all steps of the ladder on a GPU, beside those of a kernel that only reads the same bytes (section 6).
///
/// Run: time_ladder [--quick] [--steps NAME,NAME] [--json FILE]
/// A decode step of batch 1 reads every key and value once, so a kernel can be no faster than one that does nothing else;
/// that one is timed here, in the same run, on the same bytes. Inputs that the L2 cache could hold take turns with copies of
/// themselves. Before a step is timed its output is held against a sum in double on the host; the output is poisoned before.
#include "gpu/platform/device.hpp"
#include "tests/gpu/time_ladder/clocks.cuh"
#include "tests/gpu/time_ladder/input.cuh"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::cuda {
namespace {

constexpr Shape kQuickShapes[] = {{"BF16, 16/16 heads, 8k keys", DType::BF16, 16, 16, 1 << 13},
                                  {"BF16, 32/8 heads, 8k keys", DType::BF16, 32, 8, 1 << 13},
                                  {"F32, 16/16 heads, 8k keys", DType::F32, 16, 16, 1 << 13}};
constexpr Shape kShapes[] = {{"BF16, 16/16 heads, 8k keys", DType::BF16, 16, 16, 1 << 13},
                             {"BF16, 16/16 heads, 64k keys", DType::BF16, 16, 16, 1 << 16},
                             {"BF16, 16/16 heads, 1M keys", DType::BF16, 16, 16, 1 << 20},
                             {"BF16, 32/8 heads, 8k keys", DType::BF16, 32, 8, 1 << 13},
                             {"BF16, 32/8 heads, 64k keys", DType::BF16, 32, 8, 1 << 16},
                             {"BF16, 32/8 heads, 1M keys", DType::BF16, 32, 8, 1 << 20},
                             {"F32, 16/16 heads, 64k keys", DType::F32, 16, 16, 1 << 16}};

/// Reads 16 bytes a thread, eight reads in flight, and does nothing with them that could be left out.
__global__ void __launch_bounds__(1024) read_all(const Bytes16* from, std::int64_t n, std::uint32_t* sink) {
  constexpr int kInFlight = 8;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  std::uint32_t all = 0;
  for (; at + (kInFlight - 1) * step < n; at += kInFlight * step) {
    Bytes16 bytes[kInFlight];
    TREE_ATTN_UNROLL
    for (int i = 0; i < kInFlight; ++i) bytes[i] = load16_global(from + at + i * step);
    TREE_ATTN_UNROLL
    for (int i = 0; i < kInFlight; ++i) all ^= bytes[i].word[0] ^ bytes[i].word[1] ^ bytes[i].word[2] ^ bytes[i].word[3];
  }
  for (; at < n; at += step) all ^= load16_global(from + at).word[0];
  if (all == 0xDEADBEEF) *sink = all;
}

/// Time of reading keys and values: the best of some shapes of the grid.
double time_of_read(const Shape& shape, const Input& input, int n_multiprocessors, Stream stream) {
  DeviceBuffer<std::uint32_t> sink(1);
  double best = std::numeric_limits<double>::infinity();
  for (const unsigned n_threads : {256u, 512u, 1024u}) {
    for (const unsigned n_blocks : {1u, 2u, 4u}) {
      if (n_threads * n_blocks > 2048) continue;
      const Launch config{.grid = {n_blocks * static_cast<unsigned>(n_multiprocessors)}, .block = {n_threads}};
      const auto run = [&](int i) {
        launch(read_all, config, stream, reinterpret_cast<const Bytes16*>(input.cache(i)), shape.n_bytes() / 16,
               sink.data());
      };
      best = std::min(best, time_of(stream, input.n_sets, run).graph);
    }
  }
  return best;
}

/// A line of the table.
struct Line {
  std::string shape, step, path;
  std::string note;  ///< why there are no times; empty if there are
  LaunchPlan plan;
  std::int64_t n_bytes = 0;
  Times times;
  double read = 0;  ///< seconds of the read kernel on the same bytes
};

/// @param want some heads and what must come out
Line time_step(const LadderStep& step, const Shape& shape, const Input& input,
               const std::vector<std::pair<std::int64_t, Row>>& want, Stream stream) {
  Line line{
      .shape = shape.name, .step = step.name, .path = "", .note = "", .plan = {}, .n_bytes = shape.n_bytes(), .times = {}};
  const DecodeParams& first = input.params.front();
  if (line.note = step.refusal(first, shape.dtype); !line.note.empty()) return line;
  line.plan = step.plan(first, shape.dtype, {});
  line.path = line.plan.path;
  DeviceBuffer<float> floats(line.plan.n_floats), out(first.n_rows() * kDim), lse(first.n_rows());
  DeviceBuffer<unsigned> counters(line.plan.n_counters);
  counters.fill(0);
  const auto run = [&](int i) {
    const DecodeParams& params = input.params[static_cast<std::size_t>(i)];
    step.run(params, shape.dtype, {.out = out.data(), .lse = lse.data()}, line.plan, {floats.data(), counters.data()},
             stream);
  };
  const auto poison = [&] {
    out.fill(0xFF), lse.fill(0xFF);
    check(cudaDeviceSynchronize(), "poisoning the output");
  };

  // Right, before it is timed.
  poison();
  run(0);
  const std::vector<float> out_before = out.download(), lse_before = lse.download();
  for (const auto& [head, row] : want)
    if (line.note = against(row, head, out_before, lse_before); !line.note.empty()) return line;

  line.times = time_of(stream, input.n_sets, run);

  // Still the same bits, by a graph, on the last copy of the input.
  Graph graph(stream, [&] { run(input.n_sets - 1); });
  poison();
  graph.replay(stream);
  const std::vector<float> out_behind = out.download(), lse_behind = lse.download();
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  if (!same(out_before, out_behind) || !same(lse_before, lse_behind)) line.note = "WRONG: other bits when replayed";
  return line;
}

// ---- Reports

void print(const Line& line, double ceiling) {
  if (!line.note.empty()) {
    std::printf("| %s | %s | | | %s | | | | |\n", line.shape.c_str(), line.step.c_str(), line.note.c_str());
  } else {
    const double rate = static_cast<double>(line.n_bytes) / line.times.graph;
    const int n_parts = line.plan.n_blocks > 0 ? line.plan.n_blocks : line.plan.n_splits;
    std::printf("| %s | %s | %s | %d x %d | %.1f | %.1f | %.0f | %.2f | %.2f |\n", line.shape.c_str(), line.step.c_str(),
                line.path.c_str(), n_parts, line.plan.n_threads, 1e6 * line.times.event, 1e6 * line.times.graph, 1e-9 * rate,
                line.read / line.times.graph, rate / ceiling);
  }
  std::fflush(stdout);
}

void write_json(const std::string& file, const std::string& device_name, double ceiling, const std::vector<Line>& lines) {
  std::ofstream out(file);
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::localtime(&now));
  out << "{\n  \"device\": \"" << device_name << "\",\n  \"date\": \"" << date
      << "\",\n  \"read_bytes_per_second\": " << ceiling;
  out << ",\n  \"lines\": [";
  const char* separator = "\n";
  for (const Line& line : lines) {
    out << separator << "    {\"shape\": \"" << line.shape << "\", \"step\": \"" << line.step << "\"";
    out << ", \"bytes\": " << line.n_bytes;
    if (line.note.empty()) {
      out << ", \"path\": \"" << line.path << "\", \"n_splits\": " << line.plan.n_splits
          << ", \"n_blocks\": " << line.plan.n_blocks << ", \"n_threads\": " << line.plan.n_threads
          << ", \"event_seconds\": " << line.times.event << ", \"graph_seconds\": " << line.times.graph
          << ", \"read_seconds\": " << line.read << "}";
    } else {
      out << ", \"note\": \"" << line.note << "\"}";
    }
    separator = ",\n";
  }
  out << "\n  ]\n}\n";
  if (!out.flush()) throw std::runtime_error("cannot write " + file);
}

struct Options {
  bool quick = false;
  std::string json, steps;
};

/// Whether a step was asked for: all are, if none is named.
bool wanted(const std::string& steps, const std::string& name) {
  return steps.empty() || ("," + steps + ",").find("," + name + ",") != std::string::npos;
}

/// @returns the exit status: 1 if a step computes something wrong
int time_all(const Options& options) {
  const Device here = device();
  int id = 0, l2_bytes = 0;
  check(cudaGetDevice(&id), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, id), "cudaDeviceGetAttribute");
  Stream stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");

  // The ceiling: a read of 4 GiB, or of what there is room for.
  std::size_t free_bytes = 0, all_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  const auto n_large = static_cast<std::int64_t>(std::min<std::size_t>(std::size_t{1} << 32, free_bytes / 2));
  const Shape large{"", DType::F32, 1, 1, n_large / (8 * kDim)};
  const double read_of_large = time_of_read(large, Input(large, 1, stream), here.n_multiprocessors, stream);
  const double ceiling = static_cast<double>(large.n_bytes()) / read_of_large;
  std::printf("%s, %d multiprocessors, L2 %.0f MB; reading %.1f GB: %.0f GB/s\n\n", here.name.c_str(),
              here.n_multiprocessors, 1e-6 * l2_bytes, 1e-9 * static_cast<double>(large.n_bytes()), 1e-9 * ceiling);
  std::printf(
      "| shape | step | path | blocks or splits x threads | us, alone | us, in a graph | GB/s | of a read of the same bytes "
      "| of a long read |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");

  std::vector<Line> lines;
  for (const Shape& shape : options.quick ? std::span<const Shape>(kQuickShapes) : std::span<const Shape>(kShapes)) {
    const std::int64_t n_uncached = (4 * std::int64_t{l2_bytes} + shape.n_bytes() - 1) / shape.n_bytes();
    const int n_sets = static_cast<int>(std::max<std::int64_t>(1, n_uncached));
    check(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
    if (static_cast<std::size_t>(n_sets * shape.n_bytes()) + (std::size_t{1} << 30) > free_bytes) {
      std::printf("| %s | | | | no room on this device | | | | |\n", shape.name);
      continue;
    }
    const Input input(shape, n_sets, stream);
    const double read = time_of_read(shape, input, here.n_multiprocessors, stream);
    const std::int64_t last = shape.heads - 1;
    const std::vector<std::pair<std::int64_t, Row>> want{{0, reference_row(shape, 0)}, {last, reference_row(shape, last)}};
    for (const LadderStep* step : ladder()) {
      if (!wanted(options.steps, step->name)) continue;
      Line line = time_step(*step, shape, input, want, stream);
      line.read = read;
      print(line, ceiling);
      lines.push_back(std::move(line));
    }
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");

  if (!options.json.empty()) write_json(options.json, here.name, ceiling, lines);
  if (lines.empty()) throw std::runtime_error("nothing was timed: no room, or no step of that name");
  const auto is_wrong = [](const Line& line) { return line.note.starts_with("WRONG"); };
  return std::any_of(lines.begin(), lines.end(), is_wrong) ? 1 : 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  tree_attn::cuda::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      options.quick = true;
    } else if ((argument == "--json" || argument == "--steps") && i + 1 < argc) {
      (argument == "--json" ? options.json : options.steps) = argv[++i];
    } else {
      std::fprintf(stderr, "Run: time_ladder [--quick] [--steps NAME,NAME] [--json FILE]\n");
      return 2;
    }
  }
  try {
    return tree_attn::cuda::time_all(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "time_ladder: %s\n", error.what());
    return 1;
  }
}
