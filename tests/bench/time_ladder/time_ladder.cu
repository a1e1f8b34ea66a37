// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Times of all steps of the ladder on a GPU, beside those of a kernel that only reads the same bytes (section 6).
///
/// Run: time_ladder [--quick] [--steps NAME,NAME] [--shape NAME;NAME] [--lean] [--names]
/// A decode step of batch 1 reads every key and value once, so a kernel can be no faster than one that does nothing else;
/// that one is timed here, in the same run, on the same bytes. Inputs that the L2 cache could hold take turns with copies of
/// themselves; both kernels are then timed on one of them alone, which stays in the cache: that shows what a step takes
/// without the memory, for its arithmetic, addresses, start and end. In a graph, launches of the last two steps may begin
/// before those before them have ended; the read and other libraries do not. So these steps are timed without that too, and
/// compared by those times. Before a step is timed its output is held against a sum
/// in double on the host; the output is poisoned before. It prints one line of JSON per device, shape and step;
/// `./run bench --backend cuda` makes tables of them. With --lean it compares builds that differ in their kernels: a line
/// per shape and step with its times in a graph, those of the read, and a digest of the output bits, in less than a second.
/// With --names it prints the names of the shapes alone, and needs no device.
#include "gpu/backend/workspace.hpp"
#include "tests/bench/time_ladder/clocks.cuh"
#include "tests/bench/time_ladder/program.hpp"
#include "tests/bench/time_ladder/shapes.hpp"

#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::cuda {
namespace {

/// Steps that take one key after the other are not timed for more: they need seconds.
constexpr std::int64_t kMostOfChains = 1 << 13;

/// Time of each kernel with --lean.
constexpr double kLeanSeconds = 0.1;

/// Times of a step, or the reason for none.
struct Timed {
  std::string note;  ///< empty if there are times; "WRONG: ..." if the output is
  LaunchPlan plan;
  Times times;
  double apart = 0;   ///< seconds in a graph, if no launch begins before the one before it has ended; 0 if none does anyway
  double cached = 0;  ///< likewise; seconds in a graph, with the input in the L2 cache; 0 if it does not fit
  std::uint64_t digest = 0;  ///< of the bits of the output
};

/// FNV-1a of the bits of some numbers, from that of others on.
std::uint64_t digest_of(const std::vector<float>& numbers, std::uint64_t digest) {
  for (const float number : numbers) digest = (digest ^ std::bit_cast<std::uint32_t>(number)) * 0x100000001B3;
  return digest;
}

/// @param want some rows and what must come out
Timed time_step(const LadderStep& step, const Shape& shape, const Input& input,
                const std::vector<std::pair<std::int64_t, Row>>& want, bool is_lean, Stream stream) {
  Timed timed;
  const DecodeParams& first = input.params.front();
  if (timed.note = step.refusal(first, shape.dtype); !timed.note.empty()) return timed;
  if (step.max_splits == 1 && shape.n_keys() > kMostOfChains) {
    timed.note = "not timed: more than " + short_number(kMostOfChains) + " keys";
    return timed;
  }
  timed.plan = step.plan(first, shape.dtype, {});
  LaunchPlan plan = timed.plan;
  const DeviceWorkspace workspace(plan);
  DeviceBuffer<float> out(first.n_rows() * first.d_v), lse(first.n_rows());
  const auto run = [&](int i) {
    const DecodeParams& params = input.params[static_cast<std::size_t>(i)];
    step.run(params, shape.dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(), stream);
  };
  const auto poison = [&] {
    out.fill(0xFF), lse.fill(0xFF);
    check(cudaDeviceSynchronize(), "poisoning the output");
  };

  // Right, before it is timed.
  poison();
  run(0);
  const std::vector<float> out_before = out.download(), lse_before = lse.download();
  for (const auto& [index, row] : want)
    if (timed.note = against(row, index, out_before, lse_before); !timed.note.empty()) return timed;

  timed.digest = digest_of(lse_before, digest_of(out_before, 0xCBF29CE484222325));
  const auto in_graph = [&](int n_sets) {
    return time_in_graph(stream, n_sets, run, guess_of(stream, n_sets, run), is_lean ? kLeanSeconds : 0.5);
  };
  if (is_lean)
    timed.times.graph = in_graph(input.n_sets);
  else
    timed.times = time_of(stream, input.n_sets, run);
  plan.overlaps = false;
  if (timed.plan.overlaps) timed.apart = in_graph(input.n_sets);
  if (fits_in_l2(shape.n_bytes()) && !is_lean) timed.cached = in_graph(1);
  plan = timed.plan;

  // Still the same bits, by a graph, on the last copy of the input.
  Graph graph(stream, [&] { run(input.n_sets - 1); });
  poison();
  graph.replay(stream);
  const std::vector<float> out_after = out.download(), lse_after = lse.download();
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  if (!same(out_before, out_after) || !same(lse_before, lse_after)) timed.note = "WRONG: other bits when replayed";
  return timed;
}

void print(const LadderStep& step, const Shape& shape, double read, const Timed& timed, bool is_lean) {
  JsonLine line(is_lean ? "variant" : "step");
  line.add("shape", shape.name).add("step", step.name).add("bytes", shape.n_bytes());
  if (!timed.note.empty()) {
    line.add("note", timed.note);
    return;
  }
  line.add("path", timed.plan.path).add("n_splits", timed.plan.n_splits).add("n_blocks", timed.plan.n_blocks);
  line.add("n_threads", timed.plan.n_threads);
  if (is_lean)
    line.add("digest", std::to_string(timed.digest));
  else
    line.add("event_seconds", timed.times.event);
  line.add("graph_seconds", timed.times.graph).add("read_seconds", read);
  if (timed.apart > 0) line.add("apart_seconds", timed.apart);
  if (timed.cached > 0) line.add("cached_seconds", timed.cached);
}

/// Device memory that is free.
std::int64_t free_bytes() {
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

/// Tests whether a step was requested: all are, if none is named.
bool wanted(const std::string& steps, const std::string& name) {
  return steps.empty() || ("," + steps + ",").find("," + name + ",") != std::string::npos;
}

/// Times all steps for one shape. @returns how many of them computed something wrong
int time_shape(const Shape& shape, const std::string& steps, bool is_lean, Stream stream) {
  const int n_sets = n_sets_past_l2(shape.n_bytes());
  if (n_sets * shape.allocated_bytes() + (std::int64_t{1} << 30) > free_bytes()) {
    JsonLine("shape").add("shape", shape.name).add("note", "no room on this device");
    return 0;
  }
  const Input input(shape, n_sets, stream);
  const auto read_of = [&](int n) {
    return time_of_read(
        shape.n_bytes(), n, [&](int i) { return input.cache(i); }, stream, is_lean ? kLeanSeconds / 4 : 0.5);
  };
  const double read = read_of(n_sets);
  {
    JsonLine line("shape");
    line.add("shape", shape.name)
        .add("dtype", name_of(shape.dtype))
        .add("heads", shape.heads)
        .add("kv_heads", shape.kv_heads);
    line.add("dim", shape.key_dim).add("value_dim", shape.value_dim).add("n_queries", shape.n_queries);
    line.add("lengths", shape.lengths).add("n_sets", n_sets).add("bytes", shape.n_bytes());
    line.add("read_seconds", read);
    if (shape.softcap > 0) line.add("softcap", shape.softcap);
    if (fits_in_l2(shape.n_bytes()) && !is_lean) line.add("cached_read_seconds", read_of(1));
  }
  // A build that is compared has the digest of the others; a sum over a million keys takes longer than its times.
  std::vector<std::pair<std::int64_t, Row>> want;
  for (const std::int64_t row : {std::int64_t{0}, shape.n_rows() - 1})
    if (!is_lean || shape.n_keys() <= 1 << 16) want.emplace_back(row, reference_row(shape, row));
  int n_wrong = 0;
  for (const LadderStep* step : all_kernels()) {
    if (!wanted(steps, step->name)) continue;
    const Timed timed = time_step(*step, shape, input, want, is_lean, stream);
    print(*step, shape, read, timed, is_lean);
    n_wrong += timed.note.starts_with("WRONG");
  }
  return n_wrong;
}

/// @returns the exit status: 1 if a step computes something wrong
int time_all(const Options& asked) {
  const std::vector<Shape> list = shapes_of(asked);
  if (asked.has("--names")) {
    for (const Shape& shape : list) std::puts(shape.name.c_str());
    return 0;
  }
  const OwnedStream stream;
  const std::string steps = asked.text("--steps");
  const bool is_lean = asked.has("--lean");
  const auto is_wanted = [&](const LadderStep* step) { return wanted(steps, step->name); };
  if (std::ranges::none_of(all_kernels(), is_wanted)) throw std::runtime_error("no step is named " + steps);

  // The ceiling: a read of 4 GiB, or of what there is room for.
  if (!is_lean) {
    const std::int64_t n_bytes = std::min(std::int64_t{1} << (is_rehearsal() ? 20 : 32), free_bytes() / 2) / 16 * 16;
    DeviceBuffer<unsigned char> large(n_bytes);
    const double seconds = time_of_read(
        n_bytes, 1, [&](int) { return large.data(); }, stream);
    JsonLine("device")
        .add("device", device().name)
        .add("n_multiprocessors", device().n_multiprocessors)
        .add("library", kEqualRuns.name)
        .add("read_bytes_per_second", static_cast<double>(n_bytes) / seconds);
  }
  int n_wrong = 0;
  for (const Shape& shape : list) n_wrong += time_shape(shape, steps, is_lean, stream);
  return n_wrong > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tree_attn::cuda

int main(int argc, char** argv) {
  return tree_attn::run_program(argc, argv,
                                "time_ladder [--quick] [--steps NAME,NAME] [--shape NAME;NAME] [--lean] [--names]",
                                tree_attn::cuda::time_all);
}
