// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode`: runs one or more algorithms on the same input and compares them.
#include "distributed/program/decode_options.hpp"
#include "distributed/program/fingerprint.hpp"
#include "distributed/program/measure.hpp"
#include "distributed/program/memory.hpp"
#include "distributed/program/not_finite.hpp"
#include "distributed/program/program.hpp"
#include "distributed/program/progress.hpp"
#include "gpu/backend/backends.hpp"
#include "reference/data/output_file.hpp"
#include "reference/oracle/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <memory>
#include <utility>

namespace tree_attn {
namespace {

/// The cache of this rank with all keys and values that it holds before the first step.
/// @throws InputError if there is no memory for it
OpenShard fill_shard(const Backend& backend, Workload& workload, KeyRange range, double scale) {
  const OwnedLeaves leaves(range, workload.shape().order);
  const std::int64_t n = leaves.n_keys(workload.longest_at_start());
  const std::string who = "--backend " + std::string(backend.name()) + ": ";
  const auto bytes_per_position = static_cast<double>(backend.stored(workload.shape()).held_bytes_per_position());
  try {
    OpenShard shard = open_shard(backend, workload.shape(), leaves, workload.longest_at_start(), scale, {},
                                 workload.shape().scales, workload.shape().n_queries);
    fill_at_start(*shard.cache, workload, workload.lengths_at_start());
    return shard;
  } catch (const std::bad_alloc&) {
    refuse(who,
           refused_memory(line_of("keys and values of ", n, " positions"), static_cast<double>(n) * bytes_per_position));
  } catch (const std::runtime_error& error) {  // of the device
    refuse(who, error.what());
  }
}

/// Largest absolute difference between the output and the expected tensor; NaN if any difference is NaN, because one of the
/// elements is NaN or both are the same Inf.
double distance_from(const TensorView& expected, const DecodeOutput& output) {
  double largest = 0;
  const auto [b, n_h, l, d_v] = expected.shape;
  std::vector<double> row(static_cast<std::size_t>(d_v));
  auto element = output.out.begin();
  for (std::int64_t r = 0; r < b * n_h * l; ++r) {
    load_row(expected, r / (n_h * l), r / l % n_h, r % l, row.data());
    for (const double wanted : row) {
      const double error = std::abs(wanted - double{*element++});
      if (std::isnan(error)) return error;
      largest = std::max(largest, error);
    }
  }
  return largest;
}

/// The files to write: OUT and the report, if requested.
struct Outputs {
  std::optional<OutputFile> out, report;

  /// Checks the paths, and that all files of the command line differ. @throws InputError
  explicit Outputs(const DecodeOptions& options) {
    std::vector<NamedFile> files;
    if (!options.in.empty()) files.push_back({"IN", options.in});
    if (!options.out.empty()) files.push_back({"OUT", options.out}), out.emplace(options.out);
    if (!options.report.empty()) files.push_back({"--report", options.report}), report.emplace(options.report);
    check_different(files);
  }
  /// Flushes both to the disk, so that only a rename can fail. @throws InputError
  void finish() {
    if (out) out->finish();
    if (report) report->finish();
  }
  /// Renames both, OUT last. @throws InputError
  void put_in_place() {
    if (report) report->put_in_place();
    if (out) out->put_in_place();
  }
};

/// Writes out and lse.
void write_tensors(OutputFile& file, const WorkloadShape& shape, const DecodeOutput& output) {
  const std::vector<std::int64_t> rows{shape.batch, shape.heads, shape.n_queries};
  const std::vector<std::int64_t> vectors{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
  SafetensorsWriter writer;
  writer.add("out", "F32", vectors, std::as_bytes(std::span(output.out)));
  writer.add("lse", "F32", rows, std::as_bytes(std::span(output.lse)));
  writer.write(file);
}

int run_decode(const DecodeOptions& options, const Ranks& ranks) {
  const bool is_root = ranks.rank() == 0;

  // Check everything that can be wrong before any rank waits for another.
  const RankLayout layout = layout_of(options, ranks);
  const Backend& backend = *layout.backend;
  DecodeTask task;
  std::optional<Outputs> outputs;  // on rank 0
  run_on_all(ranks, [&] {
    task = resolve(options, layout);
    if (is_root) outputs.emplace(options);
  });
  Workload& workload = *task.workload;
  const WorkloadShape& shape = workload.shape();

  // Check the memory, and fill the cache.
  const OpenTransport opened = open_transport(options, ranks, layout);
  Transport& transport = *opened.transport;
  const Bench bench{transport, backend, workload, task.ranges, options.warmup, options.repeat, opened.plan};
  run_on_all(ranks, [&] {
    const std::string subject = task.file ? readable(task.file->path(), 200) + ": decoding " + axes_text(shape)
                                          : line_of("--seq-len ", shape.n_keys, " with --batch ", shape.batch);
    const MemoryUse use{.keys_in_memory = !task.file || shape.order == LeafOrder::kDealt,
                        .algorithms = task.algorithms,
                        .oracle = options.verify};
    check_memory(subject, bench, layout.machines, use);
  });
  agree_on_input(ranks, workload, task.file ? &*task.file : nullptr);
  std::optional<OpenShard> shard;
  Progress progress(is_root, 1 + task.algorithms.size() + (options.verify ? 2 : 0));
  run_on_all(ranks, [&] {
    progress.next("keys and values");
    shard = fill_shard(backend, workload, layout.topology.range_of(ranks.rank(), task.ranges), task.scale);
  });

  // Run one algorithm after the other on the same input.
  std::vector<Measurement> measurements;
  for (const Algorithm* algorithm : task.algorithms) {
    progress.next(algorithm->name);
    measurements.push_back(measure(bench, *shard, *algorithm));
  }
  const std::string kernel = shard->session->describe();
  const std::int64_t n_positions = shard->cache->capacity();
  shard.reset();

  // Compare the outputs with the oracle on rank 0, and between ranks.
  std::vector<std::string> failed;
  if (is_root && options.verify) {
    progress.next("oracle");
    ranks.doing("in the oracle");
    const Verifier verify(workload, task.scale, ranks.size(), backend, [&](double done) { progress.part(done); });
    progress.next("error bounds");
    for (std::size_t i = 0; i < measurements.size(); ++i) {
      Measurement& m = measurements[i];
      m.errors = verify(*task.algorithms[i], m.output);
      if (!m.errors->passed) failed.push_back(m.algorithm + " exceeds the error bound of the oracle");
    }
  }
  for (const Measurement& m : measurements) {
    if (!m.same_bits_on_all_ranks) failed.push_back(m.algorithm + " has different bits on different ranks");
  }
  progress.end();

  // Read what is left to read of the input, write the temporary files, print, and only then rename: an error before that
  // leaves no output file.
  ranks.doing("while writing the results");
  run_on_all(ranks, [&] {
    if (!is_root) return;
    const ReportHeader report{header_of(options, layout, transport, shape), shape, workload.steps()};
    if (outputs->out) write_tensors(*outputs->out, shape, measurements[0].output);
    if (outputs->report) outputs->report->write(json(report, measurements));
    outputs->finish();
    std::fputs(table(report, measurements).c_str(), stdout);
    if (!kernel.empty())
      std::printf("kernel: %s (%lld keys of rank 0)\n", kernel.c_str(), static_cast<long long>(n_positions));
    for (const Measurement& m : measurements) {
      if (!task.expected) break;
      const double distance = distance_from(*task.expected, m.output);
      const std::string name = "\"" + readable(options.expect) + "\"";
      std::printf("%s: differs from %s by at most %.2e\n", m.algorithm.c_str(), name.c_str(), distance);
      if (!(distance <= options.tolerance))
        failed.push_back(m.algorithm + " differs from " + name + " by more than --tolerance");
    }
    flush_standard_output();  // the table comes before the messages on standard error
    outputs->put_in_place();

    if (task.file) name_ignored(*task.file, options.expect);
    for (const std::string& line : failed) std::fprintf(stderr, "tree_attn: check failed: %s\n", line.c_str());
    if (const std::string line = not_finite(measurements[0].output, workload); !line.empty())
      std::fprintf(stderr, "tree_attn: warning: %s\n", line.c_str());
  });
  return ranks.all_sum(std::ssize(failed)) > 0 ? 1 : 0;
}

}  // namespace

Command add_decode(CLI::App& program, std::string command_line) {
  auto options = std::make_shared<DecodeOptions>();
  options->command_line = std::move(command_line);
  CLI::App* command = program.add_subcommand(
      "decode", "Decode over keys and values that are sharded over ranks: mpirun -n P tree_attn decode [IN [OUT]] ...");
  add_decode_options(*command, *options);
  return [options, command](const Ranks& ranks) {
    // CLI's excludes() would repeat this in the help of every option. Ignoring the options would misreport what was
    // measured.
    for (const CLI::Option* option : std::as_const(*command).get_options()) {
      if (option->get_group() == kSyntheticGroup && !options->in.empty() && option->count() > 0)
        refuse(option->get_name(), " is for synthetic input, but the input is ", readable(options->in, 200));
    }
    return run_decode(*options, ranks);
  };
}

}  // namespace tree_attn
