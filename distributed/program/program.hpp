// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The subcommands of the program `tree_attn`.
///
/// Each adds itself to the command line, and returns what to run: a function that gives the exit status (0 done, 1 a check
/// failed) or throws InputError (status 2, one line). Rank 0 alone prints.
#pragma once

#include "distributed/transport/mpi_ranks.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace tree_attn {

/// A subcommand, once the command line is read.
using Command = std::function<int(const MpiRanks&)>;

/// A check for options that name something: in a script, an empty name is a variable that was never set.
inline std::string not_empty(const std::string& name) { return name.empty() ? "the empty string names nothing" : ""; }

/// `tree_attn oracle IN OUT [--scale S] [--causal]`
Command add_oracle(CLI::App& program);
/// `tree_attn decode [IN [OUT]] ...`
Command add_decode(CLI::App& program, std::string command_line);
/// `tree_attn info`
Command add_info(CLI::App& program);

}  // namespace tree_attn
