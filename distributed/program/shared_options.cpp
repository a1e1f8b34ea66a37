// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Lists the options of a command line, and compares them over the ranks.
#include "tree_attn/distributed/program/shared_options.hpp"

#include "tree_attn/distributed/program/program.hpp"

#include <algorithm>
#include <span>
#include <sstream>
#include <string_view>

namespace tree_attn {
namespace {

/// Options that may differ: rank 0 alone writes files, and machines have different numbers of cores, by which no bit
/// changes.
constexpr std::string_view kMayDiffer[] = {"OUT", "--report", "--threads"};
/// Files that every rank reads.
constexpr std::string_view kReadByAll[] = {"IN", "MODEL", "TEXT", "--questions"};

std::string line_of(const CLI::Option& option) {
  const std::string name = option.get_name();
  const bool is_given = option.count() > 0;
  const std::string value = is_given ? CLI::detail::join(option.results(), " ") : option.get_default_str();
  if (!is_given && value.empty()) return "no " + name;
  const bool has_no_value = option.get_items_expected_max() == 0 || std::ranges::count(kReadByAll, name) > 0;
  return has_no_value ? name : name + " " + value;
}

void add_lines(const CLI::App& command, std::vector<std::string>& lines) {
  for (const CLI::Option* option : command.get_options()) {
    if (std::ranges::count(kMayDiffer, option->get_name()) == 0) lines.push_back(line_of(*option));
  }
}

}  // namespace

std::vector<std::string> shared_options(const CLI::App& program) {
  const CLI::App& command = *program.get_subcommands().front();
  std::vector<std::string> lines{"the command " + command.get_name()};
  add_lines(program, lines);
  add_lines(command, lines);
  return lines;
}

void agree_on_options(const Ranks& ranks, const std::vector<std::string>& mine) {
  // A value may have line breaks, but no argument of a program has a 0.
  std::string own;
  for (const std::string& line : mine) own += line + '\0';
  std::string of_root = own;
  of_root.resize(ranks.broadcast_from_root(own.size()));
  ranks.broadcast(std::as_writable_bytes(std::span(of_root)), 0, "the options of rank 0");
  run_on_all(ranks, [&] {
    if (own == of_root) return;
    std::istringstream these(own), those(of_root);
    std::string line, other;
    do {
      if (!std::getline(these, line, '\0')) line = "no more options";
      if (!std::getline(those, other, '\0')) other = "no more options";
    } while (line == other);
    throw InputError("has " + readable(line, 200) + ", but rank 0 has " + readable(other, 200) +
                     ": all ranks need the same");
  });
}

}  // namespace tree_attn
