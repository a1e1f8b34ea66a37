// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn info`: facts of all ranks and what follows from them, with libraries in the place of driver and NCCL.
#include "tree_attn/tests/distributed/program/command.hpp"

#include <filesystem>

namespace {

/// A program with the stand-ins, by a shell that may set variables by $RANK. @param set such as "STAND_IN_GPUS=2"
Words with_stand_ins(const std::string& set, const std::string& program = kProgram) {
  return {"sh", "-c",
          "RANK=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}; export LD_LIBRARY_PATH='" TREE_ATTN_STAND_IN "' " + set +
              "; exec \"$0\" \"$@\"",
          program};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("info: ranks with GPUs that reach each other, as processes and as threads") {
  const std::string set = "STAND_IN_GPUS=2";
  for (const Words& command :
       {ranks(2, {"info"}, with_stand_ins(set)), with_stand_ins(set) + Words{"info", "--devices", "0-1"}}) {
    const Result result = run(command);
    CAPTURE(result.out);
    check_silent_success(result);
    const std::string text = on_one_line(result.out);
    CHECK(has(text, " CUDA 13.0 2.29.7 Stand-in GPU 9.0 GPU-5f0c0000-0000-0000-0000-000000000000 1 0 "));
    CHECK(has(text, " CUDA 13.0 2.29.7 Stand-in GPU 9.0 GPU-5f0c0000-0000-0000-0000-000000000001 0 "));
    CHECK(has(result.out, "\nok       GPUs         2 x Stand-in GPU, compute capability 9.0, driver of CUDA 13.0\n"));
    CHECK(has(result.out, "\nok       peer access  all GPUs of a machine reach each other\n"));
    CHECK(has(text, " ok NCCL 2.29.7 found (" TREE_ATTN_STAND_IN "/libnccl.so.2)"));
    CHECK(has(result.out, "\nok       one-shot     possible"));
    const bool are_threads = command.back() == "0-1";
    if (result.out.find("(Open MPI v4") != std::string::npos)
      CHECK(has(result.out, "\nok       MPI          a message of more than 4096 bytes inside a node waits") ==
            !are_threads);
    CHECK(has(result.out, std::string("\nok       windows      with --transport nccl registered by NCCL 2.29.7; else ") +
                              (are_threads ? "in the memory of this process\n" : "opened by CUDA IPC\n")));
    CHECK(has(result.out, " for NCCL's bootstrap; NCCL_SOCKET_IFNAME chooses another\n"));
  }
}

TEST_CASE("info: what is wrong on one rank is found on all") {
  const auto on = [](int n_ranks, const std::string& set) { return ranks(n_ranks, {"info"}, with_stand_ins(set)); };
  const Words too_many = with_stand_ins("STAND_IN_GPUS=2") + Words{"info", "--devices", "0-3"};
  check_outputs({
      {on(2, "STAND_IN_GPUS=2 TREE_ATTN_NCCL_FAULT=\"version $((22907 - 301 * RANK))\""),
       "fails NCCL --transport nccl: 2.26.6 on rank 1, 2.29.7 on rank 0; install one version"},
      {on(2, "STAND_IN_GPUS=2 TREE_ATTN_NCCL_FAULT='version 22809'"),
       "opened by CUDA IPC, with --transport nccl too: NCCL 2.28.9 does not tell the host where a window is, 2.29.0 does"},
      {on(1, "TREE_ATTN_NCCL_FAULT='version 21402'"), " is NCCL 2.14.2, older than 2.14.3, the first with communicators"},
      {on(2, "STAND_IN_GPUS=$((2 - 2 * RANK))"), "fails GPUs --backend cuda: no GPU for rank 1 on "},
      {on(2, "STAND_IN_ERROR=999"), "fails GPUs --backend cuda: no driver for ranks 0, 1 on "},
      {on(3, "STAND_IN_GPUS=3 STAND_IN_APART=1"), "fails peer access --algorithm one-shot: the GPU of rank 0 on "},
      {on(2, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME=none"), "ok interface none for NCCL's bootstrap; "},
      {on(2, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME=lo"), "ok interface lo 127.0.0.1 for NCCL's bootstrap; "},
      // Every rank sees one GPU, which is number 0 for each: the identity tells them apart.
      {on(2, "STAND_IN_GPUS=1 STAND_IN_FIRST=$RANK"), "ok GPUs 2 x Stand-in GPU, "},
      {on(2, "STAND_IN_GPUS=1 STAND_IN_FIRST=$RANK"),
       " warning peer access not known: other GPUs of the machine are hidden from ranks 0, 1; "},
      // A device that is not there.
      {too_many, " fails GPUs --backend cuda: no GPU for ranks 2, 3 on "},
      {too_many, ": its machine has 2; start ranks where the GPUs are, or list devices that are there "},
  });
}

TEST_CASE("info: a decode on GPUs that cannot be ends with the line of info before it begins") {
  const Words decode{"decode", "--backend", "cuda", "--seq-len", "256", "--heads", "2", "--head-dim", "64", "--verify"};
  const Words generate{"generate", TREE_ATTN_TEST_DATA "/recall/model.safetensors", "--ask", "Q", "--backend", "cuda"};
  const auto on = [](const std::string& set) { return with_stand_ins(set, TREE_ATTN_ON_STAND_INS); };
  std::vector<Words> commands;
  for (const std::string set :
       {"STAND_IN_GPUS=0", "STAND_IN_GPUS=$((2 - 2 * RANK))", "STAND_IN_ERROR=999 STAND_IN_GPUS=2"}) {
    for (const Words& arguments : {Words{"info"}, decode, generate}) commands.push_back(ranks(2, arguments, on(set)));
  }
  const std::vector<Result> results = run_all(commands);
  for (std::size_t i = 0; i < commands.size(); ++i) {
    CAPTURE(nlohmann::json(commands[i]).dump());
    if (i % 3 == 0) {
      check_silent_success(results[i]);
      continue;
    }
    const std::string verdicts = on_one_line(results[i - i % 3].out);
    check_one_line(results[i], "--backend cuda: no ");
    const std::string line = lines_of_ours(results[i].err).at(0).substr(std::string("tree_attn: ").size());
    CHECK(has(verdicts, " fails GPUs " + line + " "));
  }

  std::vector<Ending> endings;
  // Where all have what they need, it runs; what only warns, or concerns another option, does not end it.
  for (const std::string set :
       {"STAND_IN_GPUS=2", "STAND_IN_GPUS=1", "STAND_IN_GPUS=2 STAND_IN_APART=0 TREE_ATTN_NCCL_FAULT=\"version $RANK\""})
    endings.push_back({ranks(2, decode, on(set)), ""});
  // What it was built for has to suit the GPU.
  endings.push_back({on("STAND_IN_GPUS=1 STAND_IN_MAJOR=12") + decode,
                     ": built for 80-real,90a-real, the Stand-in GPU needs 120-real; build with "});
  // Over NCCL more has to be right.
  for (const auto& [set, line] :
       {std::pair{"TREE_ATTN_NCCL_FAULT=\"version $((22907 - 301 * RANK))\"", "--transport nccl: 2.26.6 on rank 1, "},
        {"TREE_ATTN_NCCL_FAULT='version 21402'", " is NCCL 2.14.2, older than 2.14.3"},
        {"TREE_ATTN_NCCL_LIBRARY=/none", "--transport nccl: no NCCL for ranks 0, 1 on "}}) {
    const Words program = on(std::string("STAND_IN_GPUS=2 ") + set);
    endings.push_back({ranks(2, decode + Words{"--transport", "nccl"}, program), line});
  }
  // Ranks that are threads.
  const Words threads = on("STAND_IN_GPUS=2") + decode;
  endings.push_back({threads + Words{"--devices", "0-1"}, ""});
  endings.push_back({threads + Words{"--devices", "0-2"}, "--backend cuda: no GPU for rank 2 on "});
  // Kernels that store into each other's memory have to reach it; messages do not need that.
  const Words apart = on("STAND_IN_GPUS=2 STAND_IN_APART=0") + decode + Words{"--devices", "0-1"};
  endings.push_back({apart, ""});
  endings.push_back({apart + Words{"--compare", "one-shot"}, "--algorithm one-shot: the GPU of rank 0 on "});
  endings.push_back({apart + Words{"--compare", "one-shot", "--windows", "host"}, ""});
  check_endings(endings);
  const Result info = run(on("STAND_IN_GPUS=1") + Words{"info"});
  CHECK(has(info.out, "\nkernels        for 80-real,90a-real, by CUDA 13.0.88\n"));
}

TEST_CASE("gpus: a rank makes a context on its own GPU, and on no other") {
  const Scratch scratch;
  const std::string set = "STAND_IN_GPUS=3 STAND_IN_CONTEXTS=" + scratch.path("contexts") + "$RANK";
  const Words program = with_stand_ins(set, TREE_ATTN_ON_STAND_INS);
  // Of every process, the GPUs that it has used.
  const auto used = [&](const Words& command, int n_processes) {
    check_silent_success(run(command));
    std::string all;
    for (int rank = 0; rank < n_processes; ++rank) {
      const std::string file = scratch.path("contexts" + std::to_string(rank));
      all += Scratch::read(file) + ";";
      std::filesystem::remove(file);
    }
    return all;
  };
  const Words decode{"decode", "--backend", "cuda", "--seq-len",   "256",    "--heads",   "2",       "--head-dim",
                     "64",     "--steps",   "3",    "--algorithm", "gather", "--compare", "one-shot"};
  const Words model{"generate", TREE_ATTN_TEST_DATA "/recall/model.safetensors", "--ask", "Q", "--tokens", "2"};
  const Words generate = model + Words{"--backend", "cuda"};
  for (const Words& words : {decode, generate}) {
    CAPTURE(words[0]);
    CHECK(used(ranks(3, words, program), 3) == "GPUs: 0;GPUs: 1;GPUs: 2;");
    CHECK(used(program + words + Words{"--devices", "1-2"}, 1) == "GPUs: 1 2;");
  }
  // Other backends use none, and neither does info, which asks the driver.
  for (const Words& words : {model, Words{"info"}}) {
    CHECK(used(ranks(2, words, program), 2) == "GPUs:;GPUs:;");
    CHECK(used(program + words + Words{"--devices", "1-2"}, 1) == "GPUs:;");
  }

  // A GPU that is there, and cannot be used.
  const Words busy = with_stand_ins("STAND_IN_GPUS=3 STAND_IN_BUSY=1", TREE_ATTN_ON_STAND_INS);
  const std::string line = "rank 1: --backend cuda: GPU 1: cudaSetDevice: CUDA-capable device(s) is/are busy or unavailable";
  for (const Words& words : {decode, generate}) {
    check_one_line(run(ranks(3, words, busy)), line);
    check_one_line(run(busy + words + Words{"--devices", "0-2"}), line);
    check_silent_success(run(busy + words + Words{"--devices", "0,2"}));
  }
}
