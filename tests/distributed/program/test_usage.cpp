// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The command line without mpirun: help, and one line for everything that is wrong with it.
#include "reference/cpu/leaf_kernel.hpp"
#include "tests/distributed/program/command.hpp"
#include "tests/support/algorithm_names.hpp"

TEST_CASE("usage: help and version are there for the program and every command") {
  std::vector<Words> all{alone({"--version"}), alone({"decode", "-h"}), alone({"--help"}), alone({})};
  const Words commands{"decode", "generate", "info", "oracle", "predict"};
  for (const std::string& command : commands) all.push_back(alone({command, "--help"}));
  const std::vector<Result> results = run_all(all);
  for (const Result& result : results) {
    check_silent_success(result);
    // Made for a terminal of a usual width.
    std::istringstream text(result.out);
    for (std::string line; std::getline(text, line);) CHECK(line.size() <= 140);
  }
  CHECK(results[0].out == "tree_attn " TREE_ATTN_VERSION "\n");
  CHECK(results[1].out == results[4].out);
  CHECK(results[2].out == results[3].out);
  // Every option of every command is tried by the test of options that differ between ranks.
  for (std::size_t i = 0; i < commands.size(); ++i) {
    CHECK(results[2].out.find(commands[i]) != std::string::npos);
    CHECK(results[4 + i].out.find("Usage: ") != std::string::npos);
  }
  for (const std::string& name : tree_attn::test::names()) CHECK(results[4].out.find(name + ":") != std::string::npos);
}

TEST_CASE("usage: what is wrong with a command line is said in one line, as tests/data/refused.json lists") {
  const Scratch scratch;
  std::vector<Ending> all;
  const auto rows = nlohmann::json::parse(Scratch::read(TREE_ATTN_TEST_DATA "/refused.json"));
  for (const auto& row : rows) {
    all.push_back({alone(row[0].get<Words>()), row[1].get<std::string>()});
    std::ranges::replace(all.back().command, "LAYER", kLayer);
  }
  CHECK(all.size() > 100);
  check_endings(all, {.folder = scratch.folder().string()});
  CHECK(scratch.names().empty());
}

TEST_CASE("usage: what is just within a limit is taken, as tests/data/taken.json lists") {
  std::vector<Ending> all;
  for (const auto& row : nlohmann::json::parse(Scratch::read(TREE_ATTN_TEST_DATA "/taken.json")))
    all.push_back({alone(row.get<Words>()), ""});
  CHECK(all.size() > 15);
  check_endings(all);
}

TEST_CASE("usage: long work shows its phases where a terminal is, and nothing else there") {
  const Scratch scratch;
  const Around around{.folder = scratch.folder().string()};
  const struct {
    Words command;
    std::vector<std::string> phases;
  } cases[] = {
      {{"decode", "--seq-len", "64", "--heads", "4", "--verify", "--compare", "ring"},
       {"keys and values", "two-level", "ring", "oracle", "error bounds"}},
      {{"predict", "--ranks", "8"}, {"two-level", "ring-state"}},
      {{"oracle", kLayer, "out"}, {"oracle"}},
      {{"generate", TREE_ATTN_TEST_DATA "/recall/model.safetensors", "text", "--ask", "a", "--tokens", "1"}, {"reading"}}};
  scratch.write("text", "A text of a few words.");
  for (const auto& [command, phases] : cases) {
    CAPTURE(command[0]);
    const Result piped = run(alone(command), around),
                 shown = run(Words{"env", "TREE_ATTN_PROGRESS=1"} + alone(command), around);
    CHECK(shown.status == 0);
    CHECK(piped.err.find('\r') == std::string::npos);
    for (const std::string& phase : phases) CHECK(shown.err.find("] " + phase + "\x1b[K") != std::string::npos);
    // The line is removed: what stays is what a pipe has.
    const std::size_t end = shown.err.rfind("\r\x1b[K");
    REQUIRE(end != std::string::npos);
    CHECK(shown.err.substr(end + 4) == piped.err);
  }
}

TEST_CASE("usage: without a launcher MPI is not started") {
  // An MPI that cannot start ends the process.
  const Words without_mpi{"env", "OMPI_MCA_pml=none"};
  for (const Words& arguments : {Words{"--version"}, {"decode", "--seq-len", "64"}, {"predict", "--ranks", "8"}}) {
    CAPTURE(arguments[0]);
    CHECK(run(without_mpi + alone(arguments)).status == 0);
    CHECK(run(without_mpi + ranks(1, arguments)).status != 0);
  }
}

TEST_CASE("usage: integers are decimal, and a leading zero is refused everywhere") {
  std::vector<Ending> all;
  for (const std::string option : {"--seq-len", "--heads", "--kv-heads", "--head-dim", "--batch", "--steps", "--repeat",
                                   "--warmup", "--threads", "--radix", "--ranks-per-node", "--seed"}) {
    for (const std::string number : {"010", "00", "0x10", "+1", "1 ", "1e6"}) {
      const std::string why = number.starts_with("0") && number != "0x10" ? " has a leading zero" : " is not an integer";
      all.push_back({alone({"decode", option, number}), option + ": " + number + why});
    }
  }
  check_endings(all);
}

namespace {

/// Checks that a decode is refused by what is missing, and that info says so in the same words, or has a row of facts about
/// it. @returns the words
std::string check_refused_as_by_info(const Result& decode, const Result& info, const std::string& line) {
  check_one_line(decode, line);
  check_silent_success(info);
  const std::string why = lines_of_ours(decode.err).at(0).substr(std::string("tree_attn: ").size());
  const std::string facts = on_one_line(info.out);
  const bool is_row = facts.find(" not here: " + why + " ") != std::string::npos ||
                      (why.find("not built in") == std::string::npos && facts.find(" not here: lib") != std::string::npos);
  CHECK_MESSAGE(is_row, why);
  return why;
}

}  // namespace

TEST_CASE("usage: a backend that is not there is refused by what is missing, and never replaced") {
  const Result info = run(alone({"info"}));
  std::string there;
  for (const auto& [name, may_be_missing] : {std::pair{"cpu", false}, {"emulated", false}, {"cuda", true}}) {
    const std::string backend = name;
    const Result result = run(alone({"decode", "--seq-len", "64", "--backend", backend}));
    if (may_be_missing && result.status != 0) {  // not built in, or without a GPU
      const std::string why = check_refused_as_by_info(result, info, "--backend " + backend + ": ");
      const bool is_built = why.find("not built in (") == std::string::npos;
      CHECK_MESSAGE(why.find(is_built ? "driver" : "nvcc") != std::string::npos, why);
      continue;
    }
    check_silent_success(result);
    CHECK(result.out.find("backend " + backend + ",") != std::string::npos);
    there += (there.empty() ? "" : ", ") + backend;
  }
  CHECK(info.out.find("backends       " + there) != std::string::npos);
}

TEST_CASE("usage: an instruction set that the processor does not have is refused, by decode and by info in the same words") {
  const auto with = [](const std::string& name, const Words& arguments) {
    return run(Words{"env", "TREE_ATTN_INSTRUCTION_SET=" + name} + alone(arguments));
  };
  const Result info = with("x86-64-v9", {"info"});
  const std::string why = "TREE_ATTN_INSTRUCTION_SET is 'x86-64-v9'; this processor runs ";
  check_refused_as_by_info(with("x86-64-v9", {"decode", "--seq-len", "64"}), info, "--backend cpu: " + why);
  CHECK(info.out.find("decodes with") == std::string::npos);
  // The states of emulated kernels are merged on the host, by the same loops.
  check_one_line(with("x86-64-v9", {"decode", "--seq-len", "64", "--backend", "emulated"}), why);
  for (const tree_attn::LeafKernel* kernel : tree_attn::leaf_kernels()) {
    const Result named = with(std::string(kernel->name), {"info"});
    check_silent_success(named);
    CHECK(named.out.find(" cores, decodes with " + std::string(kernel->name) + "\n") != std::string::npos);
  }
}

TEST_CASE("usage: the launcher of another MPI is found out, and one of its processes says so") {
  const auto started = [](const std::string& rank) {
    return run(Words{"env", "SLURM_PROCID=" + rank, "SLURM_STEP_NUM_TASKS=3"} + alone({"decode", "--seq-len", "64"}));
  };
  const Result first = started("0"), second = started("1");
  check_one_line(first, "Slurm's srun started 3 processes, but ");
  CHECK(first.err.find("sees one rank in each; start it with") != std::string::npos);
  CHECK(second.status == 2);
  CHECK(second.out == "");
  CHECK(lines_of_ours(second.err).empty());
}

TEST_CASE("usage: an option with a list takes one argument, so that IN and OUT may follow it") {
  const Scratch scratch;
  check_success(
      run(alone({"decode", "--shards", "512", "--compare", "gather", kLayer, "out"}), {.folder = scratch.folder().string()}),
      {kLayerIgnored});
  CHECK(scratch.names() == std::vector<std::string>{"out"});
}

TEST_CASE("usage: a disk that fills up leaves no part of a file, and what was there stays") {
  const Scratch scratch;
  const std::string old = scratch.write("old", "as it was");
  // A file that grows beyond blocks of 512 bytes fails, as if the disk were full.
  const auto check_full = [&](const std::string& n_blocks, const Words& arguments) {
    check_one_line(
        run(by_shell("ulimit -f " + n_blocks + "; exec \"$0\" \"$@\"", arguments), {.folder = scratch.folder().string()}),
        "old: cannot write: File too large");
  };
  check_full("200", {"oracle", kLayer, "old"});
  check_full("200", {"decode", kLayer, "old"});
  check_full("2", {"decode", "--seq-len", "64", "--report", "old"});
  CHECK((Scratch::read(old) == "as it was"));
  CHECK(scratch.names() == std::vector<std::string>{"old"});

  // What goes to a terminal may go to a full disk too.
  for (const Words& arguments :
       {Words{"decode", "--seq-len", "64"}, Words{"info"}, Words{"--version"}, Words{"decode", "--help"}}) {
    check_one_line(run(redirected(">/dev/full", arguments)), "cannot write to standard output");
  }
}

TEST_CASE("usage: a progress bar is shown on a terminal, and not elsewhere") {
  const Words command = alone({"decode", "--seq-len", "256", "--compare", "ring", "--verify"});
  const Result elsewhere = run(command);
  check_silent_success(elsewhere);
  CHECK((elsewhere.out + elsewhere.err).find('\r') == std::string::npos);
  if (::access("/dev/ptmx", R_OK | W_OK) != 0 || !std::filesystem::exists("/dev/pts/ptmx")) {
    MESSAGE("no pseudo terminal here: the bar itself is not tested");
    return;
  }
  const Result on_terminal = run(command, {.err_is_terminal = true});
  CHECK(on_terminal.status == 0);
  CHECK(on_terminal.err.find("\r[##") != std::string::npos);
  // It wipes itself out at the end.
  CHECK(on_terminal.err.ends_with("\r\033[K"));
}
