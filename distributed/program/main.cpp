// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The program `tree_attn`. Every error, on one rank or on all, is reported in one line.
///
/// Run: tree_attn --help
/// Run: tree_attn decode --seq-len 4096 --verify
#include "distributed/program/machine.hpp"
#include "distributed/program/mpi_session.hpp"
#include "distributed/program/program.hpp"
#include "reference/data/input_error.hpp"
#include "reference/data/mapped_file.hpp"
#include "reference/data/output_file.hpp"
#include "reference/decode/pass_time.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <limits>
#include <new>
#include <string_view>

namespace {

using namespace tree_attn;

constexpr int kBadInput = 2;
/// Simulated ranks wait for each other in the time of the simulator, which has no deadline.
constexpr double kTimeout = kSimulated ? std::numeric_limits<double>::infinity() : 60;

/// Parses a positive number of seconds. CLI::PositiveNumber would accept NaN, a deadline that never expires, and print the
/// largest double.
bool read_timeout(const std::string& text, double& seconds) {
  return CLI::detail::lexical_cast(text, seconds) && seconds > 0;
}

/// Finds --timeout, which already applies to MPI_Init and is needed before the command line is parsed. The parser reports
/// invalid values later.
double find_timeout(int argc, char** argv) {
  constexpr std::string_view kName = "--timeout";
  double timeout = kTimeout, seconds = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kName)) continue;
    const bool has_value = word.size() > kName.size() && word[kName.size()] == '=';
    const bool next = word == kName && i + 1 < argc;
    if ((has_value || next) && read_timeout(has_value ? std::string(word.substr(kName.size() + 1)) : argv[i + 1], seconds))
      timeout = seconds;
  }
  return timeout;
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
    line = "unknown command \"" + left[0] + "\"; use one of oracle, decode, predict, info";
  return line + " (see tree_attn " + (commands.empty() ? "" : commands[0]->get_name() + " ") + "--help)";
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is then a write error, reported in one line
  std::string command_line;
  for (int i = 0; i < argc; ++i) command_line += (i ? " " : "") + std::string(argv[i]);
  MpiSession session(&argc, &argv, kSimulated ? kTimeout : find_timeout(argc, argv));
  const bool is_root = session.ranks().rank() == 0;
  if (const auto line = foreign_launcher(session.launch(), session.ranks().size(), mpi_library())) {
    if (session.launch().rank == 0) complain(*line);
    return kBadInput;
  }
  end_on_cut_file([](const void* ranks) { return static_cast<const MpiSession*>(ranks)->claim_last_word(); }, &session);

  // Parse the command line. All ranks have the same one, so all get the same result.
  CLI::App program("Tree Attention: exact attention decoding over sharded keys and values (arXiv:2408.04093).", "tree_attn");
  program.set_version_flag("--version", "tree_attn " TREE_ATTN_VERSION);
  program.require_subcommand(1);
  double timeout = kTimeout;
  const auto is_positive = [](const std::string& text) {
    double seconds = 0;
    return read_timeout(text, seconds) ? "" : text + " is not a positive number";
  };
  program
      .add_option("--timeout", timeout,
                  "End the job if a rank does not answer for this many seconds; computing counts as answering; inf: never")
      ->check(is_positive)
      ->capture_default_str();
  program.fallthrough();
  Command oracle = add_oracle(program), decode = add_decode(program, command_line),
          predict = add_predict(program, command_line), info = add_info(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& request) {
    return is_root ? program.exit(request) : 0;
  } catch (const CLI::ParseError& error) {
    if (is_root) complain(usage_error(program, error));
    return kBadInput;
  }

  if (kSimulated && std::isfinite(timeout)) {
    if (is_root) complain("--timeout: simulated ranks have no deadline");
    return kBadInput;
  }

  // Run the command. All ranks have agreed on an InputError; any other exception on one rank ends the job.
  try {
    const int status = (program.got_subcommand("oracle")    ? oracle
                        : program.got_subcommand("decode")  ? decode
                        : program.got_subcommand("predict") ? predict
                                                            : info)(session.ranks());
    // If standard output is a file on a full disk, this reports the error.
    flush_standard_output();
    session.ranks().doing("after all output was written");
    return status;
  } catch (const InputError& error) {
    if (is_root) complain(error.what());
    return kBadInput;
  } catch (const std::bad_alloc&) {
    session.abandon("rank " + std::to_string(session.ranks().rank()) + ": not enough memory");
  } catch (const std::exception& error) {
    session.abandon(readable(error.what(), 900));
  }
}
