// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn predict`: what each algorithm sends, holds and takes on a given cluster, without running it (section
/// 6).
///
/// Run: tree_attn predict --seq-len 5120000 --ranks 128 --ranks-per-node 8
#include "distributed/program/decode_options.hpp"
#include "distributed/program/option_values.hpp"
#include "distributed/program/program.hpp"
#include "distributed/program/progress.hpp"
#include "distributed/program/report.hpp"
#include "reference/data/output_file.hpp"
#include "reference/state/subtree.hpp"

#include <algorithm>
#include <memory>
#include <vector>

namespace tree_attn {
namespace {

/// The options of `predict`; see its help.
struct PredictOptions : ShapeOptions {
  SeenRule rule;
  std::string command_line, report, order{name_of(LeafOrder::kContiguous)};
  int ranks = 8, ranks_per_node = 0, radix = 0;
  std::vector<double> latency, bandwidth;  ///< us and GB/s, inside a node and between nodes; empty: not given
  double memory_bandwidth = kPaperCluster.memory_bytes_per_us / kGigabytePerSecond;
  Cluster cluster = kPaperCluster;  ///< its links and its memory bandwidth are replaced by the values above
};

/// GPUs of a node, if --ranks-per-node does not say otherwise: as in the paper's cluster.
constexpr int kRanksPerNode = 8;

/// Sets two values of a list, if there is one: for links inside a node, and between nodes. @throws InputError
void set_links(const std::string& name, const std::vector<double>& values, double unit, double& inside, double& between) {
  if (values.empty()) return;
  if (values.size() != 2)
    refuse(name, " lists ", values.size(), values.size() == 1 ? " value" : " values",
           "; it takes two, for links inside a node and between nodes");
  inside = values[0] * unit, between = values[1] * unit;
}

/// @throws InputError
Cluster cluster_of(const PredictOptions& options) {
  Cluster cluster = options.cluster;
  Link &inside = cluster.network.inside, &between = cluster.network.between;
  set_links("--bandwidth", options.bandwidth, kGigabytePerSecond, inside.bytes_per_us, between.bytes_per_us);
  set_links("--latency", options.latency, 1, inside.latency_us, between.latency_us);
  cluster.memory_bytes_per_us = options.memory_bandwidth * kGigabytePerSecond;
  return cluster;
}

/// Beyond these limits there is no network, and a predicted time has more digits than a table has room for.
const auto is_bandwidth = number_check("in 0.001 to 1e6 GB/s", [](double x) { return x >= 1e-3 && x <= 1e6; });
const auto is_microseconds = number_check("in 0 to 1e9 us", [](double x) { return x >= 0 && x <= 1e9; });

/// The checked shape, and the ranks. @throws InputError
PredictionHeader header_of(const PredictOptions& options) {
  WorkloadShape shape = synthetic_shape(options, order_named(options.order));
  shape.rule = options.rule;
  // All ranks together may send about p^2 states. Their bytes are counted in 64 bits.
  const double state = static_cast<double>(shape.batch) * static_cast<double>(shape.heads) *
                       static_cast<double>(shape.value_dim + 2) * sizeof(float);
  if (state > 0x1p33)
    refuse("--batch ", shape.batch, " with --heads ", shape.heads, ": the states of one subtree have ", state / 0x1p30,
           " GiB, which exceeds the limit of 8 GiB");
  if (options.ranks_per_node > options.ranks)
    refuse("--ranks-per-node ", options.ranks_per_node, " is larger than --ranks ", options.ranks);
  const int per_node = options.ranks_per_node > 0 ? options.ranks_per_node : std::min(kRanksPerNode, options.ranks);
  return {options.command_line, std::move(shape), Topology::pretend(options.ranks, per_node), cluster_of(options)};
}

void run_predict(const PredictOptions& options) {
  PredictionHeader header = header_of(options);
  std::optional<OutputFile> report;
  if (!options.report.empty()) report.emplace(options.report);

  const int p = header.topology.size();
  const std::vector<KeyRange> ranges =
      header.shape.order == LeafOrder::kDealt ? dealt_ranges(p) : coarse_ranges(header.shape.n_keys, p, kLeafKeys);
  const PlanOptions plan{.radix = options.radix, .network = header.cluster.network};
  std::vector<NamedPrediction> predictions;
  Progress progress(true, all_algorithms().size());
  for (const Algorithm& algorithm : all_algorithms()) {
    progress.next(algorithm.name);
    std::string name(algorithm.name);
    if (std::string why = why_not_predicted(algorithm, header.shape, header.topology, ranges, plan); !why.empty()) {
      header.left_out.push_back({std::move(name), std::move(why)});
      continue;
    }
    predictions.push_back({std::move(name),
                           algorithm.radix_of(header.topology, ranges, plan.for_step(header.shape, header.shape.n_queries)),
                           predict(algorithm, header.shape, header.topology, ranges, plan, header.cluster)});
  }
  progress.end();

  if (report) {
    report->write(json(header, predictions));
    report->finish();
  }
  std::fputs(table(header, predictions).c_str(), stdout);
  flush_standard_output();
  if (report) report->put_in_place();
}

}  // namespace

Command add_predict(CLI::App& program, std::string command_line) {
  auto options = std::make_shared<PredictOptions>();
  options->command_line = std::move(command_line);
  CLI::App* command = program.add_subcommand(
      "predict", "Predict messages, bytes, memory and time of a step on a given cluster, without running it");
  add_shape_options(*command, *options, "Keys and values");

  const auto add = adder(*command);
  add("--order", options->order, "contiguous: ranks hold chunks of the sequence; dealt: leaves go round the ranks",
      one_of({"contiguous", "dealt"}))
      ->capture_default_str();
  add_window_options(*command, options->rule);

  const std::string cluster = "The cluster (default: H100, NVLink 4, InfiniBand NDR)";
  const auto add_cluster = adder(*command, cluster);
  add_cluster("--ranks", options->ranks, "Ranks", within(1, 4096))->capture_default_str();
  add_cluster("--ranks-per-node", options->ranks_per_node,
              "Ranks of a node; the last node may have fewer (default: 8, or all if there are fewer)", within(1, 4096));
  add_cluster("--radix", options->radix,
              "Nodes, or blocks of nodes, that one round joins, at least 2 (default: by these links)", within(2, 1 << 20));
  const auto add_pair = [&](const std::string& name, std::vector<double>& values, const std::string& what, auto check,
                            std::vector<double> defaults) {
    add_list_option(*command, name, values, what, check)->group(cluster)->default_str(CLI::detail::join(defaults, ","));
  };
  const Link &inside = kPaperCluster.network.inside, &between = kPaperCluster.network.between;
  add_pair("--bandwidth", options->bandwidth, "GB/s of a rank inside its node and between nodes, in each direction",
           is_bandwidth, {inside.bytes_per_us / kGigabytePerSecond, between.bytes_per_us / kGigabytePerSecond});
  add_pair("--latency", options->latency, "us of a message inside a node and between nodes", is_microseconds,
           {inside.latency_us, between.latency_us});
  add_cluster("--overhead", options->cluster.network.overhead_us, "us that each message costs its sender, and its receiver",
              is_microseconds)
      ->capture_default_str();
  add_cluster("--memory-bandwidth", options->memory_bandwidth, "GB/s at which a rank decodes keys and values", is_bandwidth)
      ->capture_default_str();
  add_cluster("--merge-time", options->cluster.merge_us, "us of a merge step", is_microseconds)->capture_default_str();
  add_cluster("--store-latency", options->cluster.store_us,
              "us until a GPU of the node reads what a kernel has stored; for one-shot", is_microseconds)
      ->capture_default_str();
  add("--report", options->report, "Machine-readable report to write (JSON)", not_empty);
  command->footer(
      "\nNeeds no mpirun and no GPU. Examples:\n"
      "  tree_attn predict --seq-len 5120000 --ranks 128\n"
      "  tree_attn predict --seq-len 640000 --ranks 2 --bandwidth 25,3 --latency 5,10 --memory-bandwidth 900 --overhead "
      "0.3");
  return [options](const Ranks& ranks) {
    run_on_all(ranks, [&] {
      if (ranks.rank() == 0) run_predict(*options);
    });
    return 0;
  };
}

}  // namespace tree_attn
