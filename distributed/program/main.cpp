// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The program `tree_attn`. Every error, on one rank or on all, is reported in one line.
///
/// Run: tree_attn --help
/// Run: tree_attn decode --seq-len 4096 --verify
#include "distributed/program/decode_options.hpp"
#include "distributed/program/machine.hpp"
#include "distributed/program/option_values.hpp"
#include "distributed/program/program.hpp"
#include "distributed/transport/error_line.hpp"
#include "distributed/transport/mpi_session.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "reference/data/input_error.hpp"
#include "reference/data/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace tree_attn;

constexpr int kBadInput = 2;
constexpr double kTimeout = 60;

/// The value of an option that is needed before the command line is parsed. The parser reports invalid values later.
std::optional<std::string> find_value(int argc, char** argv, std::string_view name) {
  std::optional<std::string> value;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == name && i + 1 < argc) value = argv[i + 1];
    if (word.starts_with(name) && word.substr(name.size()).starts_with('=')) value = word.substr(name.size() + 1);
  }
  return value;
}

/// --timeout, which already applies to MPI_Init.
double find_timeout(int argc, char** argv) {
  const std::optional<std::string> text = find_value(argc, argv, "--timeout");
  double seconds = 0;
  return text && is_positive_or_inf(*text).empty() && CLI::detail::lexical_cast(*text, seconds) ? seconds : kTimeout;
}

/// Opens /dev/null on the standard descriptors that the parent closed, in the wrong direction so that reads and writes fail.
/// Otherwise the next file or socket opened would get their numbers and receive the output.
void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY);
  }
}

/// One line on standard error.
void complain(const std::string& line) { std::fprintf(stderr, "tree_attn: %s\n", readable(line, 900).c_str()); }

/// A usage error in one line, with a reference to the help.
std::string usage_error(const CLI::App& program, const CLI::ParseError& error) {
  const auto commands = program.get_subcommands();
  const std::vector<std::string> left = program.remaining();
  std::string line = error.what();
  if (commands.empty() && !left.empty())
    line = "unknown command \"" + left[0] + "\"; use one of oracle, decode, generate, predict, info";
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

/// The lines of the options that must not differ. A 0 ends each: a value may have line breaks, but no argument has a 0.
void add_lines(const CLI::App& command, std::string& lines) {
  for (const CLI::Option* option : command.get_options()) {
    if (std::ranges::count(kMayDiffer, option->get_name()) == 0) lines += line_of(*option) + '\0';
  }
}

/// Refuses lines unlike those of rank 0, before any rank waits for a message that depends on them. Collective.
/// @throws InputError on every rank, naming the first rank that differs and its first line that does
void agree_on_options(const Ranks& ranks, const std::string& own) {
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

  /// Parses the command line. @param is_root whether to print
  /// @returns the exit status if there is nothing to run @throws InputError
  std::optional<int> parse(int argc, char** argv, bool is_root) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::Success& request) {
      const int status = is_root ? app_.exit(request) : 0;
      flush_standard_output();
      return status;
    } catch (const CLI::ParseError& error) {
      throw InputError(usage_error(app_, error));
    }
    return std::nullopt;
  }

  /// What all ranks must have in common: the command, then the options of the program and of the command, see add_lines().
  std::string shared_lines() const {
    const CLI::App& command = *app_.get_subcommands().front();
    std::string lines = "the command " + command.get_name() + '\0';
    add_lines(app_, lines);
    add_lines(command, lines);
    return lines;
  }

  /// Runs the command on one rank. @returns the exit status
  int run(const Ranks& ranks) const {
    const int status = commands_.at(app_.get_subcommands().front()->get_name())(ranks);
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

/// Runs work, and reports an error in one line. All ranks have agreed on an InputError, and rank 0 prints it; any other
/// exception, also while that is printed, is of one rank, which ends the job.
/// @param abandon prints the line of an error and ends all ranks
/// @returns the exit status
template <class Work, class Abandon>
int guard(bool is_root, const Work& work, const Abandon& abandon) {
  try {
    try {
      return work();
    } catch (const InputError& error) {
      if (is_root) complain(error.what());
    }
  } catch (const std::exception& error) {
    abandon(error);
  }
  return kBadInput;
}

/// The ranks are threads of this process, one per device of the list, or one; MPI is not started.
int run_alone(int argc, char** argv, const std::optional<std::string>& list) {
  return guard(
      true,
      [&] {
        Program program(argc, argv);
        if (const std::optional<int> parsed = program.parse(argc, argv, true)) return *parsed;
        const int n_ranks = list ? static_cast<int>(devices_of(*list).size()) : 1;
        int status = 0;
        run_threads(Topology::pretend(n_ranks, n_ranks), find_timeout(argc, argv),
                    ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                      const int mine = program.run(ranks);
                      if (ranks.rank() == 0) status = mine;
                    }));
        return status;
      },
      [&](const std::exception& error) { complain(error_line(error, list ? "--devices " + *list : "")); });
}

/// The ranks are the processes of an MPI job.
int run_processes(int argc, char** argv) {
  MpiSession session(&argc, &argv, find_timeout(argc, argv));
  const Ranks& ranks = session.ranks();
  const bool is_root = ranks.rank() == 0;
  const auto work = [&] {
    if (const auto line = foreign_launcher(session.launch(), ranks.size(), mpi_library())) {
      if (session.launch().rank == (session.launch().knows_size ? 0 : 1)) complain(*line);
      return kBadInput;
    }
    const std::optional<std::string> devices = find_value(argc, argv, "--devices");
    if (devices && !session.launch().knows_size && ranks.size() == 1) return run_alone(argc, argv, devices);

    // A launcher may give every rank a command line of its own.
    Program program(argc, argv);
    std::optional<int> status;
    run_on_all(ranks, [&] {
      status = program.parse(argc, argv, is_root);
      if (!status && devices)
        throw InputError("--devices: the ranks are threads of one process, but " + session.launch().launcher +
                         " has started " + std::to_string(ranks.size()) + "; leave out either");
    });
    agree_on_options(ranks, status ? std::string("a request for help") + '\0' : program.shared_lines());
    return status ? *status : program.run(ranks);
  };
  return guard(is_root, work, [&](const std::exception& error) { session.abandon(error); });
}

/// NCCL writes its log to standard output, where our tables go, unless a variable names another file. It empties what it
/// opens: where standard error is a file, the log stays where it is.
void send_log_of_nccl_to_standard_error() {
  struct stat of {};
  const bool is_file = ::fstat(STDERR_FILENO, &of) == 0 && S_ISREG(of.st_mode);
  if (std::getenv("NCCL_DEBUG") != nullptr && !is_file) ::setenv("NCCL_DEBUG_FILE", "/dev/stderr", 0);
}

}  // namespace

int main(int argc, char** argv) try {
  open_standard_descriptors();
  send_log_of_nccl_to_standard_error();
  // A closed pipe and a limit of file sizes are then write errors, reported in one line.
  std::signal(SIGPIPE, SIG_IGN), std::signal(SIGXFSZ, SIG_IGN);
  // MPI starts before the command line is read where a launcher has started ranks: one that is refused tells the others.
  const LaunchedJob job = find_launched_job();
  const bool is_one = job.size == 1 && job.knows_size && find_value(argc, argv, "--devices");
  if (!job.launcher.empty() && !is_one) return run_processes(argc, argv);
  return run_alone(argc, argv, find_value(argc, argv, "--devices"));
} catch (const std::exception& error) {
  // Before the first rank has a name.
  complain(error_line(error, ""));
  return kBadInput;
}
