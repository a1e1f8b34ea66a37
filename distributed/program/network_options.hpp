// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The links of a cluster as options: `decode` and `generate` choose a radix by them, `predict` a time as well.
#pragma once

#include "tree_attn/distributed/plan/network.hpp"

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// --latency, --bandwidth and --overhead.
struct NetworkOptions {
  std::vector<double> latency, bandwidth;  ///< us and GB/s, inside a node and between nodes; empty: not given
  std::optional<double> overhead;          ///< us

  /// The first of them that is given; empty if none is.
  std::string_view given() const {
    return !latency.empty() ? "--latency" : !bandwidth.empty() ? "--bandwidth" : overhead ? "--overhead" : "";
  }
};

/// Whether the text is a bandwidth in GB/s, from 0.001 to 1e6, or a time in us, at most 1e9: empty, or why not. Beyond these
/// limits there is no network, and a predicted time has more digits than a table has room for.
std::string is_bandwidth(const std::string& text);
std::string is_microseconds(const std::string& text);

/// Adds the options to a group of the subcommand. `options` must live until the command line is parsed.
/// @param defaults shown in the help; null: those of the transport
void add_network_options(CLI::App& command, NetworkOptions& options, const std::string& group, const Network* defaults);

/// The links of the options; those that are not given are those of `others`.
/// @throws InputError unless a list has two values
Network network_of(const NetworkOptions& options, const Network& others);

}  // namespace tree_attn
