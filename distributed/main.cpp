// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The program `tree_attn`: one line for whatever goes wrong, on one rank or on all.
///
/// Run: tree_attn --help
/// Run: tree_attn decode --seq-len 4096 --verify
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <thread>

#include "distributed/input_error.hpp"
#include "distributed/mapped_file.hpp"
#include "distributed/output_file.hpp"
#include "distributed/program.hpp"

namespace {

using namespace tree_attn;

constexpr int kBadInput = 2;

/// Leads the standard descriptors that the parent closed to /dev/null, the wrong way round: to read or to print fails there.
/// Left closed, their numbers would go to the next file or socket that is opened, and what is printed would end in it.
void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY);
  }
}

/// One line on standard error.
void complain(const std::string& line) { std::fprintf(stderr, "tree_attn: %s\n", readable(line, 900).c_str()); }

/// A usage error in one line, and where to read more.
std::string usage_error(const CLI::App& program, const CLI::ParseError& error) {
  const auto commands = program.get_subcommands();
  const std::vector<std::string> left = program.remaining();
  std::string line = error.what();
  if (commands.empty() && !left.empty()) line = "unknown command \"" + left[0] + "\"; there are oracle, decode, info";
  return line + " (tree_attn " + (commands.empty() ? "" : commands[0]->get_name() + " ") + "--help tells more)";
}

/// A rank that waited in vain ends all ranks. Rank 0 speaks; the others give it a moment, in case it is the one that hangs,
/// and then each other: the first to speak takes the rest down.
[[noreturn]] void give_up(const MpiSession& session, const std::string& line) {
  if (session.rank() != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(2) + std::chrono::milliseconds(500) * (session.rank() - 1));
  }
  complain(line);
  session.abandon(kBadInput);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error of the write, with a line and a clean end
  std::string command_line;
  for (int i = 0; i < argc; ++i) command_line += (i ? " " : "") + std::string(argv[i]);
  MpiSession session(&argc, &argv);
  const bool speaks = session.rank() == 0;
  end_on_cut_file(session.rank());

  // Read the command line: every rank has the same one, and all come to the same end.
  CLI::App program("Tree Attention: exact attention decoding over sharded keys and values (arXiv:2408.04093).", "tree_attn");
  program.set_version_flag("--version", "tree_attn " TREE_ATTN_VERSION);
  program.require_subcommand(1);
  double timeout = session.timeout;
  // Not CLI::PositiveNumber, which lets NaN pass (a deadline that never comes) and prints the largest double.
  const auto is_positive = [](const std::string& text) {
    double seconds = 0;
    return CLI::detail::lexical_cast(text, seconds) && seconds > 0 ? "" : text + " is not a positive number";
  };
  program
      .add_option("--timeout", timeout,
                  "Seconds that a rank waits for the others (with --verify, also for the oracle) before it gives up")
      ->check(is_positive)
      ->capture_default_str();
  program.fallthrough();
  Command oracle = add_oracle(program), decode = add_decode(program, command_line), info = add_info(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& request) {
    return speaks ? program.exit(request) : 0;
  } catch (const CLI::ParseError& error) {
    if (speaks) complain(usage_error(program, error));
    return kBadInput;
  }
  session.timeout = timeout;

  // Run it. What goes wrong on every rank has been agreed on; what goes wrong on one ends all.
  try {
    const int status = (program.got_subcommand("oracle")   ? oracle
                        : program.got_subcommand("decode") ? decode
                                                           : info)(session);
    // A full disk behind "> FILE" shows here at the latest.
    flush_standard_output();
    return status;
  } catch (const InputError& error) {
    if (speaks) complain(error.what());
    return kBadInput;
  } catch (const std::bad_alloc&) {
    give_up(session, "rank " + std::to_string(session.rank()) + ": not enough memory");
  } catch (const std::exception& error) {
    give_up(session, error.what());
  }
}
