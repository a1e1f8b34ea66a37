// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --transport nccl` on emulated devices, with the stand-in for NCCL: ranks as threads and as
/// processes.
#include "tree_attn/tests/distributed/program/file_workload.hpp"
#include "tree_attn/tests/distributed/program/hanging.hpp"
#include "tree_attn/tests/support/algorithm_names.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdlib>

namespace {

/// Environment of the commands below.
struct NcclVariables {
  explicit NcclVariables(const std::string& fault = "", const std::string& library = TREE_ATTN_NCCL_STAND_IN) {
    ::setenv("TREE_ATTN_NCCL_LIBRARY", library.c_str(), 1);
    ::setenv("TREE_ATTN_NCCL_FAULT", fault.c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  }
  NcclVariables(const NcclVariables&) = delete;
  NcclVariables& operator=(const NcclVariables&) = delete;
  ~NcclVariables() {
    for (const char* name : {"TREE_ATTN_NCCL_LIBRARY", "TREE_ATTN_NCCL_FAULT", "NCCL_SOCKET_IFNAME"}) ::unsetenv(name);
  }
};

const Words kDecode{"decode", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--backend", "emulated"};

}  // namespace

TEST_CASE("decode --transport nccl: bits, counts and predictions, as threads and as processes") {
  const NcclVariables variables;
  const Scratch scratch;
  // Where the library adds, it counts by itself.
  const auto sends_by_itself = [](const tree_attn::Algorithm& each) { return each.rounding.weight_error_per_lse == 0; };
  const Words plans{"--compare", tree_attn::test::others(sends_by_itself), "--report", scratch.path("report")};
  const auto runs_of = [&](const Words& words) {
    check_silent_success(run(words));
    return nlohmann::json::parse(Scratch::read(scratch.path("report")));
  };
  for (const Words& shape : {Words{"--seq-len", "500", "--window", "100", "--sinks", "70", "--verify"},
                             Words{"--seq-len", "300", "--steps", "5", "--ranks-per-node", "2"}}) {
    const nlohmann::json of_host = runs_of(ranks(3, kDecode + shape + plans));
    for (const Words& command : {alone(kDecode + shape + plans + Words{"--transport", "nccl", "--devices", "0-2"}),
                                 ranks(3, kDecode + shape + plans + Words{"--transport", "nccl"})}) {
      const nlohmann::json over_nccl = runs_of(command);
      CHECK(of_host["machine"]["nccl"].is_null());
      CHECK(over_nccl["machine"]["nccl"] == "2.29.7");
      REQUIRE(over_nccl["runs"].size() == of_host["runs"].size());
      for (std::size_t i = 0; i < over_nccl["runs"].size(); ++i) {
        const nlohmann::json &ours = over_nccl["runs"][i], &theirs = of_host["runs"][i];
        CAPTURE(ours["algorithm"]);
        CHECK(ours["transport"] == "nccl");
        CHECK(ours["same_bits_on_all_ranks"] == true);
        for (const char* same : {"output_digest", "messages_per_step", "bytes_per_step", "bytes_between_nodes_per_step",
                                 "merge_steps", "collectives_per_step", "predicted"}) {
          CAPTURE(same);
          CHECK(ours[same] == theirs[same]);
        }
        for (const char* counted : {"messages_per_step", "bytes_per_step", "bytes_between_nodes_per_step", "merge_steps"})
          CHECK(ours[counted] == ours["predicted"][counted]);
      }
    }
  }
}

TEST_CASE("decode --transport nccl: the kernels of one-shot store into windows of NCCL, or of the host") {
  const Scratch scratch;
  const Words one_shot{"--seq-len",   "500",    "--steps",   "3",        "--transport", "nccl",
                       "--algorithm", "gather", "--compare", "one-shot", "--report",    scratch.path("report")};
  for (const char* fault : {"", "version 22809", "window"}) {
    CAPTURE(fault);
    const NcclVariables variables(fault);
    for (const Words& job :
         {alone(kDecode + Words{"--devices", "0-2"}), ranks(3, kDecode + Words{"--ranks-per-node", "2"})}) {
      const bool has_windows = std::string(fault) != "window";
      if (!has_windows) check_one_line(run(job + one_shot), "do not all reach each other's memory");
      check_silent_success(run(job + one_shot + (has_windows ? Words{} : Words{"--windows", "host"})));
      const nlohmann::json runs = nlohmann::json::parse(Scratch::read(scratch.path("report")))["runs"];
      CHECK(runs[1]["output_digest"] == runs[0]["output_digest"]);
      // NCCL has windows for kernels from 2.29 on.
      const bool is_old = std::string(fault).starts_with("version"), are_threads = job.front() != TREE_ATTN_MPIEXEC;
      CHECK(runs[1]["windows"] == (!has_windows ? "host" : !is_old ? "nccl" : are_threads ? "process" : "ipc"));
      for (const char* counted : {"messages_per_step", "bytes_per_step", "bytes_between_nodes_per_step", "merge_steps"})
        CHECK(runs[1][counted] == runs[1]["predicted"][counted]);
    }
  }
}

TEST_CASE("decode --transport nccl: paper and packed call ncclAllReduce, whose messages are not counted") {
  const NcclVariables variables;
  const Scratch scratch;
  for (const Words& job : {alone(kDecode + Words{"--devices", "0-4"}), ranks(2, kDecode)}) {
    check_silent_success(run(job + Words{"--seq-len", "400", "--transport", "nccl", "--algorithm", "paper", "--compare",
                                         "packed", "--verify", "--report", scratch.path("report")}));
    const nlohmann::json runs = nlohmann::json::parse(Scratch::read(scratch.path("report")))["runs"];
    for (const nlohmann::json& run : runs) {
      CHECK(run["collectives_per_step"] == (run["algorithm"] == "paper" ? 3 : 2));
      CHECK(run["same_bits_on_all_ranks"] == true);
      for (const char* counted : {"messages_per_step", "bytes_per_step", "merge_steps"}) {
        CHECK(run[counted] == 0);
        CHECK(run["predicted"][counted] == 0);
      }
    }
  }
}

TEST_CASE("decode --transport nccl: NCCL's log goes to standard error, or where a variable says") {
  const NcclVariables variables;
  const Scratch scratch;
  const Words small = kDecode + Words{"--seq-len", "64", "--transport", "nccl"}, log{"env", "NCCL_DEBUG=INFO", kProgram};
  for (const Words& command : {log + small, ranks(2, small, log)}) {
    const Result result = run(command, {.err_is_terminal = true});
    CAPTURE(result.err);
    CHECK(result.status == 0);
    CHECK(result.out.find("INFO") == std::string::npos);
    CHECK(result.err.find("stand-in INFO ncclGetUniqueId") != std::string::npos);
  }
  // NCCL would empty a file of errors: its log stays in standard output.
  CHECK(run(log + small).out.find("stand-in INFO ncclGetUniqueId\n") != std::string::npos);
  const Result elsewhere = run(Words{"env", "NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=" + scratch.path("log"), kProgram} + small);
  check_silent_success(elsewhere);
  CHECK(Scratch::read(scratch.path("log")) == "stand-in INFO ncclGetUniqueId\n");
}

TEST_CASE("decode --transport nccl: learned sinks are refused in one line") {
  const NcclVariables variables;
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(1, 2, 1, 1, 100, 8, 8);
  workload.sink = {1, 2};
  workload.write(scratch.path("in"), "F32");
  check_one_line(run(ranks(2, {"decode", scratch.path("in"), "--backend", "emulated", "--transport", "nccl"})),
                 "--transport nccl: no kernel adds the tensor \"sink\"; use --transport mpi or shared");
}

TEST_CASE("decode --transport nccl: what is missing or does not fit is one line") {
  const Words small = kDecode + Words{"--seq-len", "64", "--transport", "nccl"};
  {
    const NcclVariables none("", "/nowhere/libnccl.so.2");
    check_one_line(run(ranks(2, small)), "--transport nccl: TREE_ATTN_NCCL_LIBRARY is /nowhere/libnccl.so.2");
  }
  // Where the loader looks first lies a file that is no library: this machine may have NCCL elsewhere.
  const NcclVariables none("", "");
  const Scratch scratch;
  scratch.write("libnccl.so.2", "");
  check_one_line(
      run(Words{"env", "LD_LIBRARY_PATH=" + scratch.folder().string(), kProgram} + small + Words{"--devices", "0-1"}),
      "--transport nccl: libnccl.so.2 was not found; pip install nvidia-nccl-cu13 or apt-get install libnccl2, or "
      "set TREE_ATTN_NCCL_LIBRARY to its path");
}

TEST_CASE("decode --transport nccl: processes end within the deadline too, in one line") {
  const NcclVariables variables;
  const Words small = kDecode + Words{"--seq-len", "256", "--transport", "nccl", "--timeout", "1"};
  std::vector<Words> commands;
  const Words lines{" waits for all ranks to join NCCL (rank 0 listens on lo 127.0.0.1; NCCL_SOCKET_IFNAME ",
                    "over NCCL",
                    "rank 1: NCCL 2.29.7: ncclRecv: unhandled system error",
                    "rank 1: NCCL 2.29.7: an asynchronous error: remote process",
                    "is NCCL 2.12.0, older than 2.14.3",
                    "do not all reach each other's memory",
                    "rank 1 has NCCL 2.27.7, but rank 0 has 2.29.7"};
  for (const std::string fault : {"join 2", "silent 1 1", "call 1 1", "async 1 1", "version 21200", "window"})
    commands.push_back(ranks(3, small + (fault == "window" ? Words{"--algorithm", "one-shot"} : Words{}),
                             {"env", "TREE_ATTN_NCCL_FAULT=" + fault, kProgram}));
  // One process has another library.
  commands.push_back(ranks(3, small,
                           {"sh", "-c",
                            "if [ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 1 ]; then export TREE_ATTN_NCCL_FAULT='version "
                            "22707'; fi; exec \"$0\" \"$@\"",
                            kProgram}));
  // What takes longer is killed.
  const std::vector<Result> results = run_all(commands, {.deadline = 20});
  for (std::size_t i = 0; i < commands.size(); ++i) check_one_line(results[i], lines[i]);
}

TEST_CASE("decode --transport nccl, and one-shot: when a rank is killed, all end within the deadline and nothing is left") {
  using Clock = std::chrono::steady_clock;
  const NcclVariables variables;
  // Under TSan nine ranks on two cores may not answer for longer.
  const int timeout = tree_attn::test::kIsSanitized ? 30 : 3;
  const Words hours = kDecode + Words{"--seq-len", "1024", "--repeat", "1000000", "--timeout", std::to_string(timeout)};
  const std::vector<Words> jobs{
      {"--transport", "nccl"}, {"--transport", "nccl", "--algorithm", "one-shot"}, {"--algorithm", "one-shot"}};
  at_once(jobs, [&](const Words& job) {
    CAPTURE(on_one_line(job.back()));
    Signal kill{1, SIGKILL};
    Clock::time_point killed;
    const Result result = run(ranks(3, hours + job), {.deadline = 42 + timeout, .meanwhile = [&](pid_t mpirun) {
                                                        kill(mpirun);
                                                        killed = Clock::now();
                                                      }});
    CAPTURE(result.err);
    CHECK(Clock::now() - killed < std::chrono::seconds(timeout + 2));
    // The launcher sees a rank die, and ends the others before their deadline: its status is that of the rank, and no rank
    // has anything to say.
    CHECK((result.status == 128 + SIGKILL || result.status == SIGKILL));
    CHECK(lines_of_ours(result.err).empty());
    CHECK(result.out.find(" keys") == std::string::npos);
    CHECK(!any_left(kill.processes));
  });
  check_no_memory_left();
}

TEST_CASE("decode --transport nccl: a kernel of one-shot that waits in vain names the step, the rank and the row") {
  const Words small =
      kDecode + Words{"--seq-len", "256", "--transport", "nccl", "--timeout", "1", "--algorithm", "one-shot"};
  const NcclVariables variables("stray 1");
  for (const Words& job : {alone(small + Words{"--devices", "0-1"}), ranks(2, small)}) {
    const Result result = run(job);
    check_one_line(result, "rank 0, step 1: no states from rank 1, row ");
    check_one_line(result, ", for 1 s");
  }
}
