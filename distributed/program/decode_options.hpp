// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The options of `tree_attn decode`, some of which other commands share, and what they mean together.
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
  int repeat = 1, warmup = 0;
  bool verify = false;
  double tolerance = 1e-5;
  std::vector<std::int64_t> shards;
  std::uint64_t seed = 1;
  std::optional<std::string> order;
  int steps = 1;
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
void add_devices_option(CLI::App& command, std::vector<int>& devices);
/// Adds the options of the ranks and the algorithm.
void add_cluster_options(CLI::App& command, ClusterOptions& options);

/// The group of the options that apply to synthetic input only.
inline const std::string kSyntheticGroup = "Synthetic input (without IN)";
/// Adds the options to the subcommand.
void add_decode_options(CLI::App& command, DecodeOptions& options);

/// "1 rank", "8 ranks".
std::string ranks_text(int n_ranks);

/// The order of leaves of that name, "contiguous" or "dealt".
LeafOrder order_named(std::string_view name);
/// The shape of a synthetic workload. @throws InputError
WorkloadShape synthetic_shape(const ShapeOptions& options, LeafOrder order = LeafOrder::kContiguous);

/// Algorithms and order of leaves, resolved.
struct Combining {
  std::vector<const Algorithm*> algorithms;  ///< that of --algorithm, then those to compare it with
  LeafOrder order = LeafOrder::kContiguous;
};
/// Resolves the options of the ranks and the algorithm.
/// @param order that of --order; empty: dealt if `deals` and all algorithms take it, and
/// contiguous otherwise
/// @throws InputError
Combining resolve(const ClusterOptions& options, const std::optional<std::string>& order, bool deals,
                  const RankLayout& layout);
/// Refuses shapes that the backend does not support, and shards that an algorithm cannot combine, see Algorithm::refusal.
/// @param ranges of every rank, in the order of the topology @param shape as the cache stores it @throws InputError
void check_shards(std::span<const Algorithm* const> algorithms, const RankLayout& layout, std::span<const KeyRange> ranges,
                  const WorkloadShape& shape);

/// Task of `decode`: what its options resolve to, and its input.
struct DecodeTask : Combining {
  std::optional<SafetensorsFile> file{};  ///< IN
  std::unique_ptr<Workload> workload{};
  std::optional<TensorView> expected{};  ///< the tensor of --expect, with the shape of the output
  /// Positions of every rank in the tree, in the order of the topology. Where keys are appended in the contiguous order, the
  /// last range is open; unless --shards says otherwise, it takes all of them.
  std::vector<KeyRange> ranges{};
  double scale = 1;
};
/// Resolves the options of `decode`, and opens the input. @throws InputError
DecodeTask resolve(const DecodeOptions& options, const RankLayout& layout);

/// The header of a report. @param shape of the cache @param transport of the states
RunHeader header_of(const ClusterOptions& options, const RankLayout& layout, const Transport& transport,
                    const AttentionShape& shape);

}  // namespace tree_attn
