// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The options on which ranks must agree: all that are not named as exceptions.
#pragma once

#include "tree_attn/distributed/transport/ranks.hpp"

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace tree_attn {

/// The command of a parsed command line, then a line for each option of the program and of the command: "--steps 2",
/// "no --radix". Left out are options that may differ between ranks; of a file that every rank reads, only the name is
/// there, because machines may have it at different paths, and other checks compare the contents.
std::vector<std::string> shared_options(const CLI::App& program);

/// Refuses lines unlike those of rank 0, before any rank waits for a message that depends on them. Collective.
/// @throws InputError on every rank, naming the first rank that differs and its first line that does
void agree_on_options(const Ranks& ranks, const std::vector<std::string>& mine);

}  // namespace tree_attn
