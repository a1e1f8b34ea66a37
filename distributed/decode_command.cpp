// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode`: one problem, one or more algorithms, side by side.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>

#include "distributed/measure.hpp"
#include "distributed/program.hpp"
#include "distributed/report.hpp"
#include "reference/attention.hpp"

namespace tree_attn {
namespace {

struct DecodeOptions {
  std::string command_line, in, out, algorithm = "two-level", backend = "cpu", transport = "mpi", dtype = "bf16", report, expect;
  std::vector<std::string> compare;
  std::vector<std::int64_t> shards;
  std::int64_t seq_len = 4096, heads = 16, kv_heads = 0, head_dim = 128, batch = 1;
  std::uint64_t seed = 1;
  std::optional<double> scale;
  double tolerance = 1e-5;
  int ranks_per_node = 0, steps = 1, repeat = 1, warmup = 0;
  bool verify = false;
};

/// The numbers of the options that no parser can check alone. @throws InputError
void check(const DecodeOptions& options, int n_ranks, const ProblemShape& shape) {
  const auto refuse = [](const std::string& why) { throw InputError(why); };
  if (options.scale && !std::isfinite(*options.scale)) refuse("--scale " + std::to_string(*options.scale) + " is not a finite number");
  if (options.ranks_per_node > n_ranks) {
    refuse("--ranks-per-node " + std::to_string(options.ranks_per_node) + ": there are only " + std::to_string(n_ranks) + " ranks");
  }
  if (options.steps > 1 && options.steps > shape.n_keys) {
    refuse("--steps " + std::to_string(options.steps) + ": every step appends a key, and there are only " + std::to_string(shape.n_keys));
  }
  if (options.shards.empty()) return;
  if (static_cast<int>(options.shards.size()) != n_ranks) {
    refuse("--shards names " + std::to_string(options.shards.size()) + " shards, there are " + std::to_string(n_ranks) + " ranks");
  }
  std::int64_t sum = 0;
  for (const std::int64_t shard : options.shards) {
    if (shard < 0 || shard > shape.n_keys) refuse("--shards: " + std::to_string(shard) + " is not in 0 .. " + std::to_string(shape.n_keys) + ", the number of keys");
    sum += shard;
  }
  if (sum != shape.n_keys) refuse("--shards add up to " + std::to_string(sum) + " keys, there are " + std::to_string(shape.n_keys));
}

/// The shape of a made-up problem. @throws InputError
ProblemShape synthetic_shape(const DecodeOptions& options) {
  const std::int64_t kv_heads = options.kv_heads == 0 ? options.heads : options.kv_heads;
  if (options.heads % kv_heads != 0) {
    throw InputError("--heads " + std::to_string(options.heads) + " is not a multiple of --kv-heads " + std::to_string(kv_heads));
  }
  const std::map<std::string, Storage> storages{{"f32", Storage::F32}, {"f16", Storage::F16}, {"bf16", Storage::BF16}};
  ProblemShape shape{storages.at(options.dtype), options.batch, options.heads, kv_heads, options.head_dim, options.head_dim, 1, options.seq_len, {}};
  shape.lengths.assign(static_cast<std::size_t>(options.batch), options.seq_len);
  const double bytes = static_cast<double>(shape.bytes_per_position()) * static_cast<double>(options.seq_len);
  if (bytes > 0x1p46) throw InputError("--seq-len " + std::to_string(options.seq_len) + ": a cache of " + std::to_string(bytes / 0x1p40) + " TiB is over the limit of 64 TiB");
  return shape;
}

/// Largest distance of the output from a tensor that the input file brought along. @throws InputError
double distance_from(const SafetensorsFile& file, const std::string& name, const DecodeOutput& output, const ProblemShape& shape) {
  const TensorView expected = view4(file, name, "b, n_h, l, d_v");
  const std::array<std::int64_t, 4> axes{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
  if (expected.shape != axes) throw InputError(readable(file.path(), 200) + ": tensor \"" + readable(name) + "\" has not the shape of the output");
  double largest = 0;
  std::vector<double> row(static_cast<std::size_t>(axes[3]));
  for (std::int64_t r = 0; r < shape.n_rows(); ++r) {
    load_row(expected, r / (axes[1] * axes[2]), r / axes[2] % axes[1], r % axes[2], row.data());
    for (std::int64_t j = 0; j < axes[3]; ++j) {
      const double error = std::abs(row[static_cast<std::size_t>(j)] - static_cast<double>(output.out[static_cast<std::size_t>(r * axes[3] + j)]));
      largest = error <= largest ? largest : error;  // written so that NaN counts as the largest
    }
  }
  return largest;
}

/// A bar on a terminal, nothing elsewhere.
void show_progress(bool shown, std::size_t done, std::size_t all, std::string_view what) {
  if (!shown) return;
  constexpr std::size_t kWidth = 30;
  const std::size_t filled = all == 0 ? kWidth : done * kWidth / all;
  std::fprintf(stderr, "\r[%s%s] %s\033[K", std::string(filled, '#').c_str(), std::string(kWidth - filled, ' ').c_str(), std::string(what).c_str());
  if (done == all) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

int run_decode(const DecodeOptions& options, const MpiSession& session) {
  const bool speaks = session.rank() == 0;

  // Gather everything that can be wrong before any rank waits for another.
  std::optional<SafetensorsFile> file;
  std::unique_ptr<Problem> problem;
  std::vector<const Algorithm*> chosen;
  Backend backend;
  std::optional<std::string> trouble;
  try {
    backend = find_backend(options.backend);
    if (options.transport == "nccl") throw InputError("--transport nccl: not built in: it comes with the cuda backend; there is mpi");
    chosen.push_back(&find_algorithm(options.algorithm));
    for (const std::string& name : options.compare) chosen.push_back(&find_algorithm(name));
    if (!options.in.empty()) file = SafetensorsFile::open(options.in);
    if (file && !options.expect.empty()) view4(*file, options.expect, "b, n_h, l, d_v");
    if (!file && !options.expect.empty()) throw InputError("--expect " + readable(options.expect) + ": needs IN, the file that holds the tensor");
    const ProblemShape synthetic = file ? ProblemShape{} : synthetic_shape(options);
    problem = file ? open_problem(*file, options.steps) : make_problem(synthetic, options.seed, options.steps);
    check(options, session.size(), problem->shape());
  } catch (const InputError& error) {
    trouble = error.what();
  }
  session.agree(trouble);
  const std::uint64_t header = file ? file->header_hash() : 0;
  session.agree(header == session.of_first(header) ? std::nullopt : std::optional("header of " + readable(options.in, 200) + " differs from rank 0's"));

  // Cut the sequence.
  const ProblemShape& shape = problem->shape();
  const Topology topology = session.topology(options.ranks_per_node);
  std::vector<std::int64_t> row_shards;
  for (const int rank : topology.row()) {
    if (!options.shards.empty()) row_shards.push_back(options.shards[static_cast<std::size_t>(rank)]);
  }
  const double scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  Bench bench{session, topology, backend, *problem, options.shards.empty() ? even_runs(shape.n_keys, session.size(), kLeafLength) : runs_of_lengths(row_shards),
              scale, options.warmup, options.repeat};

  // Run one algorithm after the other on the same input.
  const bool bar = speaks && isatty(STDERR_FILENO) != 0;
  const std::size_t n_stages = chosen.size() + (options.verify ? 1 : 0);
  std::vector<Measurement> measurements;
  for (const Algorithm* algorithm : chosen) {
    show_progress(bar, measurements.size(), n_stages, algorithm->name);
    measurements.push_back(measure(bench, *algorithm));
  }

  // Hold them against the oracle, on rank 0, and against what the file expects.
  std::vector<std::string> failed;
  if (speaks && options.verify) {
    show_progress(bar, measurements.size(), n_stages, "oracle");
    const Verifier verify(*problem, scale, session.size());
    for (Measurement& m : measurements) {
      m.errors = verify(m);
      if (!m.errors->passed) failed.push_back(m.algorithm + " is not within the bound of the oracle");
    }
  }
  for (const Measurement& m : measurements) {
    if (!m.same_bits_on_all_ranks) failed.push_back(m.algorithm + " ended with different bits on different ranks");
  }
  show_progress(bar, n_stages, n_stages, "");

  // Say and write what was found.
  trouble.reset();
  if (speaks) {
    try {
      const ReportHeader report{options.command_line, backend.name, options.transport, shape, options.steps, session.size(), topology.n_nodes()};
      std::fputs(table(report, measurements).c_str(), stdout);
      if (file && !options.expect.empty()) {
        for (const Measurement& m : measurements) {
          const double distance = distance_from(*file, options.expect, m.output, shape);
          std::printf("%s: at most %.2e from the tensor \"%s\" of the file\n", m.algorithm.c_str(), distance, readable(options.expect).c_str());
          if (!(distance <= options.tolerance)) failed.push_back(m.algorithm + " is not within --tolerance of \"" + readable(options.expect) + "\"");
        }
      }
      if (!options.out.empty()) {
        const std::vector<std::int64_t> rows{shape.batch, shape.heads, shape.n_queries};
        const std::vector<std::int64_t> vectors{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
        SafetensorsWriter writer;
        writer.add("out", "F32", vectors, std::as_bytes(std::span(measurements[0].output.out)));
        writer.add("lse", "F32", rows, std::as_bytes(std::span(measurements[0].output.lse)));
        writer.write(options.out);
      }
      if (!options.report.empty()) write_file(options.report, json(report, measurements));
    } catch (const InputError& error) {
      trouble = error.what();
    }
    for (const std::string& line : failed) std::fprintf(stderr, "tree_attn: check failed: %s\n", line.c_str());
  }
  session.agree(trouble);
  return session.sum(static_cast<std::int64_t>(failed.size())) > 0 ? 1 : 0;
}

}  // namespace

Command add_decode(CLI::App& program, std::string command_line) {
  auto options = std::make_shared<DecodeOptions>();
  options->command_line = std::move(command_line);
  CLI::App* command = program.add_subcommand("decode", "Decode with keys and values sharded over ranks: mpirun -n P tree_attn decode [IN [OUT]] ...");
  command->add_option("IN", options->in, "safetensors file with q, k, v, optional lengths; each rank reads only its own shard. Without it: made-up input");
  command->add_option("OUT", options->out, "safetensors file to write: F32 out and lse of the last step");

  command->add_option("--seq-len", options->seq_len, "Keys (made-up input)")->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))->capture_default_str();
  command->add_option("--heads", options->heads, "Query heads (made-up input)")->check(CLI::Range(1, 65536))->capture_default_str();
  command->add_option("--kv-heads", options->kv_heads, "Key/value heads (made-up input; default as many as query heads)")->check(CLI::Range(1, 65536));
  command->add_option("--head-dim", options->head_dim, "Size of a head (made-up input)")->check(CLI::Range(1, 65536))->capture_default_str();
  command->add_option("--batch", options->batch, "Batch entries (made-up input)")->check(CLI::Range(0, 1 << 20))->capture_default_str();
  command->add_option("--dtype", options->dtype, "Stored type (made-up input)")->check(CLI::IsMember({"f32", "f16", "bf16"}))->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of made-up input")->capture_default_str();
  command->add_option("--scale", options->scale, "Factor of q.k (default 1/sqrt(d_h))");

  std::string names;
  for (const Algorithm& algorithm : algorithms()) names += "\n  " + std::string(algorithm.name) + ": " + std::string(algorithm.brief);
  command->add_option("--algorithm", options->algorithm, "How shards are combined:" + names)->capture_default_str();
  command->add_option("--backend", options->backend, "cpu, emulated (the CUDA kernels on the CPU) or cuda")->capture_default_str();
  command->add_option("--transport", options->transport, "mpi, or nccl (cuda only)")->check(CLI::IsMember({"mpi", "nccl"}))->capture_default_str();
  command->add_option("--ranks-per-node", options->ranks_per_node, "Pretend that every R consecutive ranks are a node (default: found by shared memory)")->check(CLI::Range(1, 1 << 20));
  command->add_option("--shards", options->shards, "Keys per rank, n0,n1,..., zeros allowed (default: as even as leaves of 64 keys allow)")->delimiter(',');
  command->add_option("--steps", options->steps, "Decode T tokens: the last T keys arrive one a step, each with a new query")->check(CLI::Range(1, 1 << 30))->capture_default_str();

  command->add_option("--compare", options->compare, "Further algorithms, A,B,..., on the same input")->delimiter(',');
  command->add_option("--repeat", options->repeat, "Timed repetitions")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  command->add_option("--warmup", options->warmup, "Repetitions before them that are not timed")->check(CLI::Range(0, 1 << 20))->capture_default_str();
  command->add_flag("--verify", options->verify, "Also compute the oracle (rank 0); status 1 if the error is over the bound for the type");
  command->add_option("--expect", options->expect, "Also compare the output with this tensor of IN; status 1 if it is off by more than --tolerance");
  command->add_option("--tolerance", options->tolerance, "Largest difference that --expect allows")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_option("--report", options->report, "Machine-readable report to write (JSON)");
  return [options](const MpiSession& session) { return run_decode(*options, session); };
}

}  // namespace tree_attn
