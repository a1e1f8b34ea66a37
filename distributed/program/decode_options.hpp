// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The options of `tree_attn decode`, and the checks that the parser cannot make.
#pragma once

#include "distributed/exchange/decoder.hpp"
#include "distributed/program/job.hpp"
#include "distributed/program/report.hpp"
#include "gpu/backend/backends.hpp"
#include "reference/data/workload.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// The shape of a synthetic workload, of `decode` and `predict`.
struct ShapeOptions {
  std::int64_t seq_len = 4096, heads = 16, kv_heads = 0, head_dim = 128, batch = 1;
  std::string dtype = "bf16";
};

/// Options of how shards are decoded and combined, which `decode` and `generate` share.
struct ClusterOptions : RankOptions {
  std::string command_line;  ///< as typed
  std::string algorithm = "two-level";
  std::vector<std::string> compare;
};

/// The options of the formula, which `decode` and `oracle` share.
struct FormulaOptions {
  std::optional<double> scale;
  SeenRule rule;
  double softcap = 0;
  std::int64_t value_dim = 0;
};

/// The options of `decode`; see its help.
struct DecodeOptions : ShapeOptions, ClusterOptions, FormulaOptions {
  std::string in, out, report, expect;
  std::vector<std::int64_t> shards;
  std::uint64_t seed = 1;
  std::optional<std::string> order;
  double tolerance = 1e-5;
  int steps = 1, repeat = 1, warmup = 0;
  bool verify = false;
};

/// Adds the options of the shape to a group of the subcommand. What this and the functions below set must live until the
/// command line is parsed.
void add_shape_options(CLI::App& command, ShapeOptions& options, const std::string& group);

/// The types of synthetic tensors and of caches: those that the kernels support; and the help that lists them.
std::vector<std::string> dtype_options();
std::string dtype_help();
/// The type of that name, "bf16".
DType dtype_named(std::string_view name);

/// Adds --window and --sinks.
void add_window_options(CLI::App& command, SeenRule& rule);
/// Adds --scale, --value-dim, --causal, --window, --sinks and --softcap.
void add_formula_options(CLI::App& command, FormulaOptions& options);
/// Adds --devices.
void add_devices_option(CLI::App& command, std::string& devices);
/// Adds the options of the ranks and the algorithm.
void add_cluster_options(CLI::App& command, ClusterOptions& options);

/// algorithms(), then kernel_algorithms().
std::vector<const Algorithm*> all_algorithms();
/// The radix of a plan of the algorithm; 0 if it has none.
int radix_of(const Algorithm& algorithm, const Topology& topology, std::span<const KeyRange> ranges,
             const PlanOptions& options);
/// The algorithm, and then those to compare it with. @throws InputError for a radix that none of them has
std::vector<const Algorithm*> chosen_algorithms(const ClusterOptions& options);

/// The group of the options that apply to synthetic input only.
inline const std::string kSyntheticGroup = "Synthetic input (without IN)";
/// Adds the options to the subcommand.
void add_decode_options(CLI::App& command, DecodeOptions& options);

/// The header of a report. @param transport of the states
RunHeader header_of(const ClusterOptions& options, const Backend& backend, const Transport& transport,
                    const RankLayout& layout);

/// Checks the options against the backend, the order of leaves and the number of ranks. @throws InputError
void check_cluster(const ClusterOptions& options, const Backend& backend, LeafOrder order, int n_ranks);
/// Refuses shapes that the backend does not support, cuts inside a leaf if an algorithm promises bits, and shards that one
/// cannot combine, see Algorithm::refusal. @param shape as the cache stores it
/// @throws InputError
void check_algorithms(std::span<const Algorithm* const> chosen, const Backend& backend, Transport& transport,
                      std::span<const KeyRange> ranges, const WorkloadShape& shape);
/// "1 rank", "8 ranks".
std::string ranks_text(int n_ranks);

/// Checks the options against each other, the number of ranks and the shape. @throws InputError
void check_workload(const DecodeOptions& options, int n_ranks, const WorkloadShape& shape);

/// The order of leaves of that name, "contiguous" or "dealt".
LeafOrder order_named(std::string_view name);
/// The order of leaves: that of --order. Without it dealt for synthetic input that grows, if all algorithms take it, and
/// contiguous otherwise.
LeafOrder order_of(const DecodeOptions& options, std::span<const Algorithm* const> chosen);

/// The shape of a synthetic workload. @throws InputError
WorkloadShape synthetic_shape(const ShapeOptions& options, LeafOrder order = LeafOrder::kContiguous);

}  // namespace tree_attn
