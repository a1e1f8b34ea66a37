// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode`: one problem, one or more algorithms, side by side.
#include "distributed/measure/fingerprint.hpp"
#include "distributed/measure/measure.hpp"
#include "distributed/measure/memory.hpp"
#include "distributed/measure/overflow.hpp"
#include "distributed/measure/report.hpp"
#include "distributed/program/decode_options.hpp"
#include "distributed/program/machine.hpp"
#include "distributed/program/program.hpp"
#include "distributed/transport/mpi_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "reference/data/moment_workload.hpp"
#include "reference/data/output_file.hpp"
#include "reference/oracle/attention.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

namespace tree_attn {
namespace {

/// Refuses shapes that the backend does not take, and shards that cut a leaf whose sum no shard can share. @throws
/// InputError
void check_backend(const Backend& backend, const WorkloadShape& shape, std::span<const KeyRange> ranges,
                   std::span<const Algorithm* const> chosen) {
  const std::string name(backend.name());
  if (const std::string why = backend.refusal(shape); !why.empty())
    throw InputError("--backend " + name + ": no kernel takes " + why);
  const std::int64_t leaf = backend.leaf_keys(shape);
  for (const auto& [begin, position] : ranges) {
    if (position % leaf == 0 || position == shape.n_keys) continue;
    for (const Algorithm* algorithm : chosen) {
      if (!algorithm->keeps_bits) continue;
      throw InputError("--shards: a cut at key " + std::to_string(position) + " is inside a leaf of " +
                       std::to_string(leaf) + " keys, which the tensor cores of --backend " + name +
                       " add up at once: " + std::string(algorithm->name) +
                       " would not keep its bits; cut at multiples of " + std::to_string(leaf));
    }
  }
}

/// The cache of a rank with all that it holds before the first step. @throws InputError if there is no memory for it
std::unique_ptr<ShardDecoder> fill_shard(const Backend& backend, Workload& workload, KeyRange capacity, double scale) {
  try {
    auto shard = std::make_unique<ShardDecoder>(backend, workload.shape(), capacity, scale);
    fill_at_start(shard->cache(), workload, workload.lengths_at_start());
    return shard;
  } catch (const std::runtime_error& error) {  // of the device
    throw InputError("--backend " + std::string(backend.name()) + ": " + error.what());
  }
}

/// The tensor that the output is to be compared with. @throws InputError
TensorView expected_tensor(const SafetensorsFile& file, const std::string& name, const WorkloadShape& shape) {
  const TensorView expected = view4(file, name, "b, n_h, l, d_v");
  const std::array<std::int64_t, 4> axes{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
  if (expected.shape != axes) {
    const auto text = [](const std::array<std::int64_t, 4>& n) {
      return "[" + std::to_string(n[0]) + ", " + std::to_string(n[1]) + ", " + std::to_string(n[2]) + ", " +
             std::to_string(n[3]) + "]";
    };
    throw InputError(readable(file.path(), 200) + ": tensor \"" + readable(name) + "\" has shape " + text(expected.shape) +
                     ", the output has " + text(axes));
  }
  return expected;
}

/// Largest distance of the output from the tensor that the input file brought along; NaN where there is none, because either
/// is NaN or both are the same Inf.
double distance_from(const TensorView& expected, const DecodeOutput& output) {
  double largest = 0;
  const auto& axes = expected.shape;
  std::vector<double> row(static_cast<std::size_t>(axes[3]));
  for (std::int64_t r = 0; r < axes[0] * axes[1] * axes[2]; ++r) {
    load_row(expected, r / (axes[1] * axes[2]), r / axes[2] % axes[1], r % axes[2], row.data());
    for (std::int64_t j = 0; j < axes[3]; ++j) {
      const double error = std::abs(row[static_cast<std::size_t>(j)] -
                                    static_cast<double>(output.out[static_cast<std::size_t>(r * axes[3] + j)]));
      if (std::isnan(error)) return error;
      largest = std::max(largest, error);
    }
  }
  return largest;
}

/// OUT and the report, as far as they are asked for.
struct Outputs {
  std::optional<OutputFile> out, report;

  /// Checks their paths, and that no two files of the command line are one. @throws InputError
  explicit Outputs(const DecodeOptions& options) {
    std::vector<NamedFile> files;
    if (!options.in.empty()) files.push_back({"IN", options.in, find_identity(options.in)});
    if (!options.out.empty()) files.push_back({"OUT", options.out, out.emplace(options.out, Streams::kRefused).identity()});
    if (!options.report.empty())
      files.push_back({"--report", options.report, report.emplace(options.report, Streams::kAllowed).identity()});
    check_different(files);
  }
  std::vector<OutputFile*> files() {
    std::vector<OutputFile*> asked_for;
    if (out) asked_for.push_back(&*out);
    if (report) asked_for.push_back(&*report);
    return asked_for;
  }
};

/// A bar on a terminal, nothing elsewhere.
void show_progress(bool shown, std::size_t done, std::size_t all, std::string_view what) {
  if (!shown) return;
  constexpr std::size_t kWidth = 30;
  const std::size_t filled = all == 0 ? kWidth : done * kWidth / all;
  std::fprintf(stderr, "\r[%s%s] %s\033[K", std::string(filled, '#').c_str(), std::string(kWidth - filled, ' ').c_str(),
               std::string(what).c_str());
  if (done == all) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
}

int run_decode(const DecodeOptions& options, const MpiRanks& ranks) {
  const bool is_root = ranks.rank() == 0;

  ranks.doing("in reading the input");
  // Gather everything that can be wrong before any rank waits for another.
  std::optional<SafetensorsFile> file;
  std::optional<Outputs> outputs;
  std::unique_ptr<Workload> workload;
  std::vector<const Algorithm*> chosen;
  const Backend* backend = nullptr;
  std::optional<std::string> error;
  try {
    backend = &find_backend(options.backend);
    if (options.transport == "nccl") throw InputError("--transport nccl: not built in: this version has none; there is mpi");
    chosen.push_back(&find_algorithm(options.algorithm));
    for (const std::string& name : options.compare) chosen.push_back(&find_algorithm(name));
    if (!options.in.empty()) file = SafetensorsFile::open(options.in);
    if (!file && !options.expect.empty())
      throw InputError("--expect " + readable(options.expect) + ": needs IN, the file that holds the tensor");
    const WorkloadShape synthetic = file ? WorkloadShape{} : synthetic_shape(options);
    workload = file ? open_workload(*file, options.steps) : make_workload(synthetic, options.seed, options.steps);
    if (file && !options.expect.empty()) expected_tensor(*file, options.expect, workload->shape());
    check(options, ranks.size(), workload->shape());
    if (is_root) outputs.emplace(options);
  } catch (const InputError& exception) {
    error = exception.what();
  }
  ranks.throw_if_any_failed(error);

  // With moments, the same problem over longer values.
  const WorkloadShape& shape = workload->shape();
  const std::unique_ptr<Workload> enlarged = options.moments > 1 ? with_moments(*workload) : nullptr;
  Workload& reduced = enlarged ? *enlarged : *workload;

  // Cut the sequence.
  const Topology topology = ranks.topology(options.ranks_per_node);
  std::vector<std::int64_t> ordered_shards;
  for (const int rank : topology.order()) {
    if (!options.shards.empty()) ordered_shards.push_back(options.shards[static_cast<std::size_t>(rank)]);
  }
  const std::vector<KeyRange> ranges =
      options.shards.empty() ? even_ranges(shape.n_keys, ranks.size(), kLeafKeys) : ranges_of_lengths(ordered_shards);
  const double scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  MpiTransport transport(ranks, topology);
  Bench bench{ranks, transport, *backend, reduced, ranges, scale, options.warmup, options.repeat};
  const Topology machines = options.ranks_per_node == 0 ? topology : ranks.topology(0);
  int kv_shards_in_flight = 0;
  for (const Algorithm* algorithm : chosen)
    kv_shards_in_flight = std::max(kv_shards_in_flight, algorithm->kv_shards_in_flight);
  const std::string subject =
      file ? readable(options.in, 200) + ": decoding " + axes_text(shape)
           : "--seq-len " + std::to_string(shape.n_keys) + " with --batch " + std::to_string(shape.batch);
  try {
    check_memory(
        subject, bench, machines,
        {.keys_in_memory = !file || enlarged, .kv_shards_in_flight = kv_shards_in_flight, .oracle = options.verify});
  } catch (const InputError& exception) {
    error = exception.what();
  }
  ranks.throw_if_any_failed(error);
  agree_on_input(ranks, *workload, file ? &*file : nullptr, ranges);
  std::unique_ptr<ShardDecoder> shard;
  try {
    check_backend(*backend, reduced.shape(), ranges, chosen);
    shard = fill_shard(*backend, reduced, ranges[static_cast<std::size_t>(topology.index_of(ranks.rank()))], scale);
  } catch (const InputError& exception) {
    error = exception.what();
  }
  ranks.throw_if_any_failed(error);

  // Run one algorithm after the other on the same input.
  const bool bar = is_root && isatty(STDERR_FILENO) != 0;
  const std::size_t n_stages = chosen.size() + (options.verify ? 1 : 0);
  std::vector<Measurement> measurements;
  for (const Algorithm* algorithm : chosen) {
    show_progress(bar, measurements.size(), n_stages, algorithm->name);
    measurements.push_back(measure(bench, *shard, *algorithm));
  }

  // Hold them against the oracle, on rank 0, and against what the file expects.
  std::vector<std::string> failed;
  if (is_root && options.verify) {
    show_progress(bar, measurements.size(), n_stages, "oracle");
    ranks.doing("in the oracle");
    const Verifier verify(reduced, scale, ranks.size(), *backend);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      Measurement& m = measurements[i];
      m.errors = verify(*chosen[i], m.output);
      if (!m.errors->passed) failed.push_back(m.algorithm + " is not within the bound of the oracle");
    }
  }
  for (const Measurement& m : measurements) {
    if (!m.same_bits_on_all_ranks) failed.push_back(m.algorithm + " ended with different bits on different ranks");
  }
  show_progress(bar, n_stages, n_stages, "");

  std::vector<Moments> moments;
  for (Measurement& m : measurements) {
    if (enlarged) moments.push_back(take_moments(moment_layout(shape), m.output, workload->query(options.steps - 1), scale));
  }

  ranks.doing("in writing the results");
  // Write what was found, say it, and only then put the files in place: on any trouble before, nothing is there.
  if (is_root) {
    try {
      const ReportHeader report{options.command_line, options.backend, options.transport,  shape,
                                options.steps,        ranks.size(),    topology.n_nodes(), this_machine()};
      if (outputs->out) {
        const std::vector<std::int64_t> rows{shape.batch, shape.heads, shape.n_queries};
        const std::vector<std::int64_t> vectors{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
        SafetensorsWriter writer;
        writer.add("out", "F32", vectors, std::as_bytes(std::span(measurements[0].output.out)));
        writer.add("lse", "F32", rows, std::as_bytes(std::span(measurements[0].output.lse)));
        if (enlarged) {
          writer.add("variance", "F32", vectors, std::as_bytes(std::span(moments[0].variance)));
          writer.add("entropy", "F32", rows, std::as_bytes(std::span(moments[0].entropy)));
        }
        writer.write(*outputs->out);
      }
      if (outputs->report) outputs->report->write(json(report, measurements));
      for (OutputFile* each : outputs->files()) each->finish();
      std::fputs(table(report, measurements).c_str(), stdout);
      if (const std::string picked = shard->session().describe(); !picked.empty())
        std::printf("kernel: %s (%lld keys of rank 0)\n", picked.c_str(),
                    static_cast<long long>(shard->cache().capacity().size()));
      for (const Measurement& m : measurements) {
        if (!file || options.expect.empty()) break;
        const double distance = distance_from(expected_tensor(*file, options.expect, shape), m.output);
        std::printf("%s: at most %.2e from the tensor \"%s\" of the file\n", m.algorithm.c_str(), distance,
                    readable(options.expect).c_str());
        if (!(distance <= options.tolerance))
          failed.push_back(m.algorithm + " is not within --tolerance of \"" + readable(options.expect) + "\"");
      }
      flush_standard_output();  // the table first, then what is wrong with it
      OutputFile::put_in_place(outputs->files());
    } catch (const InputError& exception) {
      error = exception.what();
    }
    if (error) failed.clear();  // one line is enough
    for (const std::string& line : failed) std::fprintf(stderr, "tree_attn: check failed: %s\n", line.c_str());

    // Made-up input is finite, and may be too large for one rank.
    const int last = options.steps - 1;
    const std::string overflow = overflow_of(workload->query(last), file ? std::optional(workload->whole()) : std::nullopt,
                                             workload->lengths(last), measurements[0].output);
    if (!error && !overflow.empty()) std::fprintf(stderr, "tree_attn: warning: %s\n", overflow.c_str());
  }
  ranks.throw_if_any_failed(error);
  return ranks.all_sum(static_cast<std::int64_t>(failed.size())) > 0 ? 1 : 0;
}

}  // namespace

Command add_decode(CLI::App& program, std::string command_line) {
  auto options = std::make_shared<DecodeOptions>();
  options->command_line = std::move(command_line);
  CLI::App* command = program.add_subcommand(
      "decode", "Decode with keys and values sharded over ranks: mpirun -n P tree_attn decode [IN [OUT]] ...");
  const std::vector<const CLI::Option*> without_in = add_decode_options(*command, *options);
  return [options, without_in](const MpiRanks& ranks) {
    // Not CLI's excludes(), which fills the help with itself. Ignored in silence, they would be taken for what was measured.
    for (const CLI::Option* option : without_in) {
      if (!options->in.empty() && option->count() > 0) {
        throw InputError(option->get_name() + " is for made-up input, here it comes from " + readable(options->in, 200));
      }
    }
    return run_decode(*options, ranks);
  };
}

}  // namespace tree_attn
