// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The subcommands of the program `tree_attn`.
///
/// Each function adds a subcommand to the command line, and returns a function that runs it: this returns the exit status (0
/// done, 1 a check failed) or throws InputError (status 2, one line). Rank 0 alone prints.
#pragma once

#include "distributed/transport/ranks.hpp"
#include "reference/data/input_error.hpp"
#include "reference/data/workload.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <functional>
#include <string>

namespace tree_attn {

/// Runs a subcommand after the command line is parsed. Ranks that are threads call it at the same time.
using Command = std::function<int(const Ranks&)>;

/// Throws InputError with one line of texts and numbers.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw InputError(line_of(parts...));
}

/// A check for options whose value is a name. In a script, an empty name usually comes from an unset variable.
inline std::string not_empty(const std::string& name) { return name.empty() ? "must not be empty" : ""; }

/// Names the tensors of IN that the command has not read, in one line on standard error. For rank 0, once the output is
/// written. @param expected the tensor of --expect; may be empty
inline void name_ignored(const SafetensorsFile& in, const std::string& expected = {}) {
  if (const std::string names = ignored_tensors(in, expected); !names.empty())
    std::fprintf(stderr, "tree_attn: %s: ignored: %s\n", readable(in.path(), 200).c_str(), names.c_str());
}

/// `tree_attn oracle IN OUT [--scale S] [--causal]`
Command add_oracle(CLI::App& program);
/// `tree_attn decode [IN [OUT]] ...`
Command add_decode(CLI::App& program, std::string command_line);
/// `tree_attn predict ...`
Command add_predict(CLI::App& program, std::string command_line);
/// `tree_attn generate MODEL [TEXT] ...`
Command add_generate(CLI::App& program, std::string command_line);
/// `tree_attn info`
Command add_info(CLI::App& program);

}  // namespace tree_attn
