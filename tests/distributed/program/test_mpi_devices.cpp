// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --devices`, whose ranks are threads of one process, and `--transport nccl` on emulated devices,
/// with the stand-in for NCCL: they compute and count what processes over MPI do.
#include "tests/distributed/program/command.hpp"
#include "tests/distributed/program/file_workload.hpp"
#include "tests/support/algorithm_names.hpp"

namespace {

/// The report of a command, its runs without times, transport and launches.
nlohmann::json report_of_runs(const Words& command, const std::string& transport) {
  nlohmann::json report = report_of(command);
  for (nlohmann::json& run : report["runs"]) {
    CHECK(run["transport"] == transport);
    CHECK(run["same_bits_on_all_ranks"] == true);
    for (const char* own : {"latency_us", "combine_us", "transport", "launches_per_step"}) run.erase(own);
  }
  return report;
}

void check_predicted(const nlohmann::json& run) {
  for (const char* count : {"messages_per_step", "bytes_per_step", "bytes_between_nodes_per_step", "merge_steps"})
    CHECK_MESSAGE(run[count] == run["predicted"][count], count);
}

/// The program with the stand-in for NCCL in its environment, and other variables.
Words with_nccl(const Words& variables = {}) {
  return Words{"env", "TREE_ATTN_NCCL_LIBRARY=" TREE_ATTN_NCCL_STAND_IN, "NCCL_SOCKET_IFNAME=lo"} + variables +
         Words{kProgram};
}
/// with_nccl() with a fault that the stand-in injects.
Words with_nccl(const std::string& fault) { return with_nccl(Words{"TREE_ATTN_NCCL_FAULT=" + fault}); }

const Words kDecode = "decode --heads 4 --kv-heads 2 --head-dim 64 --backend emulated"_words;

}  // namespace

TEST_CASE("devices: output, counts and predictions of threads, and over NCCL, are those of processes over MPI") {
  const Scratch scratch;
  FileWorkload workload = FileWorkload::draw(3, 4, 2, 2, 1000, 16, 24);
  workload.lengths = {1000, 0, 437};
  workload.write(scratch.path("in"), "BF16");
  // A sink that takes all of the weight, one that takes none, and two between.
  workload.sink = {1, 90, -INFINITY, -2};
  workload.write(scratch.path("sinks"), "F16");
  struct Job {
    int n_ranks;
    std::string devices;
    Words arguments;
    bool over_nccl;
  };
  for (const auto& [n_ranks, devices, arguments, over_nccl] :
       {Job{5, "0,7,3-5",
            Words{"decode", scratch.path("in"), scratch.path("out")} +
                "--threads 1 --shards 0,64,512,0,424 --ranks-per-node 3"_words,
            false},
        Job{3, "0-2", "decode --seq-len 300 --heads 4 --head-dim 16 --steps 20 --threads 1"_words, false},
        Job{3, "0-2",
            Words{"decode", scratch.path("sinks"), scratch.path("out")} + "--backend emulated --window 90 --verify"_words,
            true},
        Job{3, "0-2", kDecode + "--seq-len 500 --window 100 --sinks 70 --verify"_words, true},
        Job{3, "0-2", kDecode + "--seq-len 300 --steps 5 --ranks-per-node 2"_words, true}}) {
    CAPTURE(nlohmann::json(arguments).dump());
    // Where the library of NCCL adds, it counts by itself.
    const auto sends_by_itself = [](const tree_attn::Algorithm& each) { return each.rounding.weight_error_per_lse == 0; };
    const Words command =
        arguments + Words{"--compare", over_nccl ? tree_attn::test::others(sends_by_itself) : tree_attn::test::others()};
    const Words nccl = command + Words{"--transport", "nccl"}, threads{"--devices", devices};
    const nlohmann::json of_mpi = report_of_runs(ranks(n_ranks, command), "mpi");
    const std::string out = Scratch::read(scratch.path("out"));
    CHECK(of_mpi["machine"]["nccl"].is_null());
    CHECK(of_mpi["runs"].size() > 5);
    for (const nlohmann::json& run : of_mpi["runs"]) check_predicted(run);
    if (!over_nccl) {
      CHECK(report_of_runs(alone(command + threads), "threads")["runs"] == of_mpi["runs"]);
      CHECK((Scratch::read(scratch.path("out")) == out));
      continue;
    }
    for (const Words& other : {with_nccl() + nccl + threads, ranks(n_ranks, nccl, with_nccl())}) {
      const nlohmann::json report = report_of_runs(other, "nccl");
      CHECK(report["machine"]["nccl"] == "2.29.7");
      CHECK(report["runs"] == of_mpi["runs"]);
    }
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("devices: one-shot has the bits of gather as threads and processes, in every memory, and counts as predicted") {
  struct Job {
    int n_ranks;  ///< 0: threads of one process
    Words more;
    const char* windows;
  };
  const Words common = "decode --backend emulated --algorithm gather --compare one-shot --heads 4 --head-dim 32"_words,
              steps = "--seq-len 900 --steps 3"_words, nccl = steps + Words{"--transport", "nccl"},
              devices{"--devices", "0-2"};
  for (const auto& [n_ranks, more, windows] :
       {Job{0, steps + Words{"--devices", "0-3"}, "process"},
        Job{0, "--devices 5,3,9 --seq-len 768 --kv-heads 1 --shards 64,0,704"_words, "process"}, Job{3, steps, "ipc"},
        Job{3, steps + "--transport shared --dtype bf16"_words, "ipc"}, Job{0, nccl + devices, "process"},
        Job{3, nccl, "ipc"}}) {
    CAPTURE(nlohmann::json(more).dump());
    const Words words = common + more + Words{"--verify"};
    const nlohmann::json runs = runs_of(n_ranks == 0 ? with_nccl() + words : ranks(n_ranks, words, with_nccl()));
    REQUIRE(runs.size() == 2);
    const nlohmann::json &gather = runs[0], &one_shot = runs[1];
    CHECK(one_shot["algorithm"] == "one-shot");
    CHECK(one_shot["output_digest"] == gather["output_digest"]);
    CHECK(one_shot["same_bits_on_all_ranks"] == true);
    CHECK(one_shot["windows"] == windows);
    CHECK(gather["windows"].is_null());
    check_predicted(one_shot);
    CHECK(one_shot["merge_steps"] == gather["merge_steps"]);
  }
}

TEST_CASE("devices: a batch of nothing merges nothing, counted and predicted, also where its sequence grows") {
  const Words command =
      "decode --devices 0-4 --backend emulated --batch 0 --heads 1 --head-dim 3 --seq-len 72 --steps 8 --order contiguous "
      "--compare gather,ring,leaders,one-shot"_words;
  for (const nlohmann::json& run : runs_of(alone(command))) {
    CAPTURE(run["algorithm"]);
    CHECK(run["merge_steps"] == 0);
    CHECK(run["predicted"]["merge_steps"] == 0);
  }
}

TEST_CASE("devices: ranks that are threads have no launcher, and as many devices as a process may have") {
  check_one_line(run(ranks(2, {"decode", "--seq-len", "64", "--devices", "0-3"})), "the ranks are threads of one process");
  check_silent_success(run(alone({"info", "--devices", "1000-1255"})));
}

TEST_CASE("nccl: paper and packed call ncclAllReduce, whose messages are not counted") {
  const Words both = kDecode + "--seq-len 400 --transport nccl --algorithm paper --compare packed --verify"_words;
  for (const Words& command : {with_nccl() + both + Words{"--devices", "0-4"}, ranks(2, both, with_nccl())}) {
    for (const nlohmann::json& run : runs_of(command)) {
      CHECK(run["collectives_per_step"] == (run["algorithm"] == "paper" ? 3 : 2));
      CHECK(run["same_bits_on_all_ranks"] == true);
      check_predicted(run);
      for (const char* counted : {"messages_per_step", "bytes_per_step", "merge_steps"}) CHECK(run[counted] == 0);
    }
  }
}

TEST_CASE("nccl: what is missing, does not fit or fails is one line, and processes end within the deadline") {
  const Scratch scratch;
  // Where the loader looks first lies a file that is no library: this machine may have NCCL elsewhere.
  scratch.write("libnccl.so.2", "");
  const Words small = kDecode + "--seq-len 256 --transport nccl --timeout 2"_words, one_shot{"--algorithm", "one-shot"},
              devices{"--devices", "0-1"};
  const auto on_three = [&](const std::string& fault, const std::string& line, const Words& more = {}) {
    return Ending{ranks(3, small + more, with_nccl(fault)), line};
  };
  // What takes longer is killed.
  check_endings(
      {{ranks(2, small, with_nccl(Words{"TREE_ATTN_NCCL_LIBRARY=/nowhere/libnccl.so.2"})),
        "--transport nccl: TREE_ATTN_NCCL_LIBRARY is /nowhere/libnccl.so.2"},
       {with_nccl(Words{"TREE_ATTN_NCCL_LIBRARY=", "LD_LIBRARY_PATH=" + scratch.folder().string()}) + small + devices,
        "--transport nccl: libnccl.so.2 was not found; pip install nvidia-nccl-cu13 or apt-get install libnccl2, or set "
        "TREE_ATTN_NCCL_LIBRARY to its path"},
       on_three("join 2", " for all ranks to join NCCL (rank 0 listens on lo 127.0.0.1; NCCL_SOCKET_IFNAME "),
       on_three("silent 1 1", "over NCCL"),
       on_three("call 1 1", "rank 1: NCCL 2.29.7: ncclRecv: unhandled system error"),
       on_three("async 1 1", "rank 1: NCCL 2.29.7: an asynchronous error: remote process"),
       on_three("version 21200", "is NCCL 2.12.0, older than 2.14.3"),
       // One process has another library.
       {ranks(
            3, small,
            Words{
                "sh", "-c",
                "[ \"${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" = 1 ] && export TREE_ATTN_NCCL_FAULT='version 22707'; exec \"$0\" "
                "\"$@\""} +
                with_nccl()),
        "--transport nccl: ranks 0 and 1 differ in NCCL (2.29.7 and 2.27.7)"}},
      {.deadline = 20});
}

TEST_CASE("nccl: its log goes to standard error, or where a variable says") {
  const Scratch scratch;
  const Words small = kDecode + "--seq-len 64 --transport nccl"_words, log = with_nccl(Words{"NCCL_DEBUG=INFO"});
  const std::string line = "stand-in INFO ncclGetUniqueId";
  for (const Words& command : {log + small, ranks(2, small, log)}) {
    const Result result = run(command, {.err_is_terminal = true});
    CAPTURE(result.err);
    CHECK(result.status == 0);
    CHECK(result.out.find(line) == std::string::npos);
    CHECK(result.err.find(line) != std::string::npos);
  }
  // NCCL would empty a file of errors: its log stays in standard output.
  CHECK(run(log + small).out.find(line) != std::string::npos);
  check_silent_success(run(with_nccl(Words{"NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=" + scratch.path("log")}) + small));
  CHECK(Scratch::read(scratch.path("log")) == line + "\n");
}
