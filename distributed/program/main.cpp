// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The program `tree_attn`. Every error, on one rank or on all, is reported in one line.
///
/// Run: tree_attn --help
/// Run: tree_attn decode --seq-len 4096 --verify
#include "distributed/program/job.hpp"
#include "distributed/program/option_values.hpp"
#include "distributed/program/program.hpp"
#include "distributed/transport/launcher.hpp"
#include "reference/data/input_error.hpp"
#include "reference/data/output_file.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace tree_attn;

/// The names of the long options of a command line or a command.
std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// Letters to add, remove or replace until `a` is `b`: the Levenshtein distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  // edits[j] is the distance between the letters of a so far and the first j of b.
  std::vector<std::size_t> edits(b.size() + 1);
  std::iota(edits.begin(), edits.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(edits[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(edits[j + 1], std::min({replaced, edits[j] + 1, edits[j + 1] + 1}));
    }
  }
  return edits[b.size()];
}

/// The first of the names that are nearest to a word; empty if none is within a third of the letters of the word.
std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  const auto distance = [&](const std::string& name) { return edit_distance(word, name); };
  const auto found = std::ranges::min_element(names, {}, distance);
  return found != names.end() && distance(*found) <= word.size() / 3 ? *found : "";
}

/// A usage error in one line, with the name that a misspelt one is nearest to, and a reference to the help.
std::string usage_error(const CLI::App& program, const CLI::ParseError& error) {
  const auto commands = program.get_subcommands();
  const std::vector<std::string> left = program.remaining(true);
  std::string line = error.what(), near;
  if (commands.empty() && !left.empty() && !left[0].starts_with('-')) {
    line = "unknown command \"" + left[0] + "\"; use one of oracle, decode, generate, predict, info";
    near = nearest(left[0], {"oracle", "decode", "generate", "predict", "info"});
  } else if (const auto option = std::ranges::find_if(left, [](const auto& word) { return word.starts_with("--"); });
             option != left.end()) {
    std::vector<std::string> names = options_of(program);
    for (const CLI::App* command : commands) std::ranges::copy(options_of(*command), std::back_inserter(names));
    near = nearest(option->substr(0, option->find('=')), names);
  }
  if (!near.empty()) line += "; did you mean " + near + "?";
  if (std::ranges::count(left, "-n") > 0) line += "; mpirun -n starts ranks, --devices makes them threads";
  return line + " (see tree_attn " + (commands.empty() ? "" : commands[0]->get_name() + " ") + "--help)";
}

/// Options that may differ between ranks: rank 0 alone writes files, and machines have different numbers of cores, by which
/// no bit changes.
constexpr std::string_view kMayDiffer[] = {"OUT", "--report", "--threads"};
/// Files that every rank reads. Machines may have them at different paths, and other checks compare the contents.
constexpr std::string_view kReadByAll[] = {"IN", "MODEL", "TEXT", "--questions"};

/// "--steps 2", "no --radix"; of a file that every rank reads the name alone.
std::string line_of(const CLI::Option& option) {
  const std::string name = option.get_name();
  const bool is_given = option.count() > 0;
  const std::string value = is_given ? CLI::detail::join(option.results(), " ") : option.get_default_str();
  if (!is_given && value.empty()) return "no " + name;
  const bool has_no_value = option.get_items_expected_max() == 0 || std::ranges::count(kReadByAll, name) > 0;
  return has_no_value ? name : name + " " + value;
}

/// The command line, and the command that it names.
class Program {
 public:
  Program(int argc, char** argv) {
    const std::string command_line = CLI::detail::join(std::vector<std::string>(argv, argv + argc), " ");
    app_.set_version_flag("--version", "tree_attn " TREE_ATTN_VERSION);
    app_.require_subcommand(1);
    app_.add_option(
            "--timeout", timeout_,
            "End the job if a rank waits longer than this many seconds for another, which may be computing; inf: never")
        ->check(is_positive_or_inf)
        ->capture_default_str();
    app_.fallthrough();
    commands_ = {{"oracle", add_oracle(app_)},
                 {"decode", add_decode(app_, command_line)},
                 {"generate", add_generate(app_, command_line)},
                 {"predict", add_predict(app_, command_line)},
                 {"info", add_info(app_)}};
  }

  /// Parses the command line. Rank 0 prints what it asks for.
  /// @returns the exit status if there is nothing to run @throws InputError
  std::optional<int> parse(int argc, char** argv, const Ranks& ranks) {
    try {
      if (argc == 1) throw CLI::CallForHelp();
      app_.parse(argc, argv);
    } catch (const CLI::Success& request) {
      const int status = ranks.rank() == 0 ? app_.exit(request) : 0;
      flush_standard_output();
      return status;
    } catch (const CLI::ParseError& error) {
      throw InputError(usage_error(app_, error));
    }
    const CLI::Option* const devices = command().get_option_no_throw("--devices");
    if (devices != nullptr && devices->count() > 0 && !ranks.is_one_process())
      refuse("--devices: the ranks are threads of one process, but ", find_launched_job().launcher, " has started ",
             ranks.size(), "; leave out either");
    return std::nullopt;
  }

  /// The command.
  const CLI::App& command() const { return *app_.get_subcommands().front(); }
  /// The options of the program and of the command that must not differ between ranks.
  std::vector<Field> shared_options() const {
    std::vector<Field> fields;
    for (const CLI::App* const app : {&app_, &command()}) {
      for (const CLI::Option* option : app->get_options()) {
        if (std::ranges::count(kMayDiffer, option->get_name()) == 0) fields.emplace_back("an option", line_of(*option));
      }
    }
    return fields;
  }

  /// Runs the command on one rank. @returns the exit status
  int run(const Ranks& ranks) const {
    const int status = commands_.at(command().get_name())(ranks);
    // If standard output is a file on a full disk, this reports the error.
    flush_standard_output();
    ranks.doing("after all output was written");
    return status;
  }

 private:
  CLI::App app_{"Tree Attention: exact attention decoding over sharded keys and values (arXiv:2408.04093).", "tree_attn"};
  double timeout_ = kTimeout;
  std::map<std::string, Command> commands_;
};

}  // namespace

int main(int argc, char** argv) {
  return run_job(argc, argv, [&](const Ranks& ranks) {
    // A launcher may give every rank a command line of its own.
    Program program(argc, argv);
    std::optional<int> status;
    run_on_all(ranks, [&] { status = program.parse(argc, argv, ranks); });
    // Before any rank waits for a message that depends on an option. Other versions may have other options.
    require_equal(ranks, status ? "--help" : program.command().get_name() + " " TREE_ATTN_VERSION,
                  "all ranks to compare their options", status ? std::vector<Field>() : program.shared_options());
    return status ? *status : program.run(ranks);
  });
}
