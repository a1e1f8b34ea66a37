// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The options of `tree_attn decode`, and the checks that the parser cannot make.
#pragma once

#include "reference/data/workload.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tree_attn {

/// The options of `decode`; see its help.
struct DecodeOptions {
  std::string command_line, in, out, report, expect;
  std::string algorithm = "two-level", backend = "cpu", transport = "mpi", dtype = "bf16";
  std::vector<std::string> compare;
  std::vector<std::int64_t> shards;
  std::int64_t seq_len = 4096, heads = 16, kv_heads = 0, head_dim = 128, batch = 1;
  std::uint64_t seed = 1;
  std::optional<double> scale, model_bandwidth, model_merge_us, model_message_us;
  std::optional<int> threads, radix;
  double tolerance = 1e-5;
  int ranks_per_node = 0, steps = 1, repeat = 1, warmup = 0, moments = 1;
  bool verify = false;
};

/// Adds the options to the subcommand. `options` must live until the command line is parsed.
/// @returns the options that apply to synthetic input only
std::vector<const CLI::Option*> add_decode_options(CLI::App& command, DecodeOptions& options);

/// Checks the options against each other, the number of ranks and the shape. @throws InputError
void check(const DecodeOptions& options, int n_ranks, const WorkloadShape& shape);

/// The shape of a synthetic workload. @throws InputError
WorkloadShape synthetic_shape(const DecodeOptions& options);

}  // namespace tree_attn
