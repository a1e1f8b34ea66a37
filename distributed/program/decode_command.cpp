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
#include <array>
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
  const auto bytes_per_position = static_cast<double>(backend.stored(workload.shape()).bytes_per_position());
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

/// The tensor of --expect, with the shape of the output. @throws InputError
TensorView expected_tensor(const SafetensorsFile& file, const std::string& name, const WorkloadShape& shape) {
  const TensorView expected = view4(file, name, "b, n_h, l, d_v");
  const std::array<std::int64_t, 4> axes{shape.batch, shape.heads, shape.n_queries, shape.value_dim};
  if (expected.shape != axes) {
    refuse(readable(file.path(), 200), ": tensor \"", readable(name), "\" has shape [",
           CLI::detail::join(expected.shape, ", "), "], but the output has [", CLI::detail::join(axes, ", "), "]");
  }
  return expected;
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

/// Request of the command line, checked: the input, how it is decoded and where the results are written.
struct Setup {
  std::optional<SafetensorsFile> file;
  std::unique_ptr<Workload> workload;
  std::vector<const Algorithm*> chosen;
  const Backend* backend = nullptr;
  std::optional<Outputs> outputs;  ///< on rank 0

  /// @throws InputError
  Setup(const DecodeOptions& options, const Ranks& ranks, const RankLayout& layout) {
    backend = &backend_of_rank(options, ranks.rank(), layout);
    chosen = chosen_algorithms(options);
    const LeafOrder order = order_of(options, chosen);
    check_cluster(options, *backend, order, ranks.size());
    if (!options.in.empty()) file = SafetensorsFile::open(options.in);
    if (!file && !options.expect.empty())
      refuse("--expect ", readable(options.expect), ": needs IN, the file that contains the tensor");
    if (!file && options.value_dim > 0) refuse("--value-dim ", options.value_dim, ": needs IN, a file without the tensor v");
    WorkloadShape synthetic = file ? WorkloadShape{} : synthetic_shape(options, order);
    synthetic.rule = options.rule, synthetic.softcap = options.softcap;
    workload = file ? open_workload(*file, options.steps, order, options.rule, options.softcap, options.value_dim)
                    : make_workload(synthetic, options.seed, options.steps);
    if (file && !options.expect.empty()) expected_tensor(*file, options.expect, workload->shape());
    check_workload(options, ranks.size(), workload->shape());
    if (ranks.rank() == 0) outputs.emplace(options);
  }
};

/// The positions of every rank, in the order of the topology. @param n_keys to cut evenly
std::vector<KeyRange> cut_sequence(const DecodeOptions& options, const Topology& topology, std::int64_t n_keys) {
  if (options.shards.empty()) return coarse_ranges(n_keys, topology.size(), kLeafKeys);
  std::vector<std::int64_t> lengths;
  for (const int rank : topology.order()) lengths.push_back(options.shards[static_cast<std::size_t>(rank)]);
  return ranges_of_lengths(lengths);
}

/// The range of every rank in the tree, in the order of the topology. In the contiguous order the last rank holds all keys
/// that are appended: its range is open, and begins between two leaves.
std::vector<KeyRange> ranges_in_tree(const DecodeOptions& options, const Topology& topology, const Workload& workload) {
  if (workload.shape().order == LeafOrder::kDealt) return dealt_ranges(topology.size());
  if (workload.steps() == 1) return cut_sequence(options, topology, workload.shape().n_keys);
  std::vector<KeyRange> ranges = cut_sequence(options, topology, workload.n_keys_at_start() / kLeafKeys * kLeafKeys);
  ranges.back().end = kOpenEnd;
  return ranges;
}

int run_decode(const DecodeOptions& options, const Ranks& ranks) {
  const bool is_root = ranks.rank() == 0;

  // Check everything that can be wrong before any rank waits for another.
  const RankLayout layout = layout_of(options, ranks);
  const Topology& topology = layout.topology;
  std::optional<Setup> setup;
  run_on_all(ranks, [&] { setup.emplace(options, ranks, layout); });
  Workload& workload = *setup->workload;
  const WorkloadShape& shape = workload.shape();

  // Cut the sequence, check the memory, and fill the cache.
  const std::vector<KeyRange> ranges = ranges_in_tree(options, topology, workload);
  const double scale = options.scale ? *options.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const std::unique_ptr<Transport> transport = open_transport(options, *setup->backend, ranks, topology);
  Bench bench{ranks,          *transport,     *setup->backend,
              workload,       ranges,         scale,
              options.warmup, options.repeat, plan_options(options, layout, *transport)};
  run_on_all(ranks, [&] {
    const std::string subject = setup->file ? readable(options.in, 200) + ": decoding " + axes_text(shape)
                                            : line_of("--seq-len ", shape.n_keys, " with --batch ", shape.batch);
    const MemoryUse use{.keys_in_memory = !setup->file || shape.order == LeafOrder::kDealt,
                        .algorithms = setup->chosen,
                        .oracle = options.verify};
    check_memory(subject, bench, layout.machines, use);
  });
  agree_on_input(ranks, workload, setup->file ? &*setup->file : nullptr, ranges);
  std::optional<OpenShard> shard;
  Progress progress(is_root, 1 + setup->chosen.size() + (options.verify ? 2 : 0));
  run_on_all(ranks, [&] {
    progress.next("keys and values");
    check_algorithms(setup->chosen, *setup->backend, *transport, ranges, shape);
    shard = fill_shard(*setup->backend, workload, topology.range_of(ranks.rank(), ranges), scale);
  });

  // Run one algorithm after the other on the same input.
  std::vector<Measurement> measurements;
  for (const Algorithm* algorithm : setup->chosen) {
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
    const Verifier verify(workload, scale, ranks.size(), *setup->backend, [&](double done) { progress.part(done); });
    progress.next("error bounds");
    for (std::size_t i = 0; i < measurements.size(); ++i) {
      Measurement& m = measurements[i];
      m.errors = verify(*setup->chosen[i], m.output);
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
    Outputs& outputs = *setup->outputs;
    const ReportHeader report{header_of(options, *setup->backend, *transport, layout), shape, options.steps};
    if (outputs.out) write_tensors(*outputs.out, shape, measurements[0].output);
    if (outputs.report) outputs.report->write(json(report, measurements));
    outputs.finish();
    std::fputs(table(report, measurements).c_str(), stdout);
    if (!kernel.empty())
      std::printf("kernel: %s (%lld keys of rank 0)\n", kernel.c_str(), static_cast<long long>(n_positions));
    if (const auto& errors = measurements[0].errors; errors && errors->quantisation)
      std::printf("quantisation: out differs by at most %.1e of its largest element from that of k and v before rounding\n",
                  *errors->quantisation);
    for (const Measurement& m : measurements) {
      if (options.expect.empty()) break;
      const double distance = distance_from(expected_tensor(*setup->file, options.expect, shape), m.output);
      const std::string name = "\"" + readable(options.expect) + "\"";
      std::printf("%s: differs from %s by at most %.2e\n", m.algorithm.c_str(), name.c_str(), distance);
      if (!(distance <= options.tolerance))
        failed.push_back(m.algorithm + " differs from " + name + " by more than --tolerance");
    }
    flush_standard_output();  // the table comes before the messages on standard error
    outputs.put_in_place();

    if (setup->file) name_ignored(*setup->file, options.expect);
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
