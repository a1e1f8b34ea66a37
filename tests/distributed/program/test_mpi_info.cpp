// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn info`: facts of all ranks, with libraries in the place of driver and NCCL; decodes that they end.
#include "tests/distributed/program/command.hpp"

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
    const std::string both = " CUDA 13.0 2.29.7 Stand-in GPU 9.0 ";
    CHECK(has(text, both + "GPU-5f0c0000-0000-0000-0000-000000000000 1 0 "));
    CHECK(has(text, " NCCL " TREE_ATTN_STAND_IN "/libnccl.so.2 "));
    CHECK(has(text, both + "GPU-5f0c0000-0000-0000-0000-000000000001 0 "));
    CHECK(!has(text, " GPU one, "));
  }
}

TEST_CASE("info: what a rank does not have is a row, and no failure") {
  const auto on = [](int n_ranks, const std::string& set) { return ranks(n_ranks, {"info"}, with_stand_ins(set)); };
  const Words too_many = with_stand_ins("STAND_IN_GPUS=2") + Words{"info", "--devices", "0-3"};
  check_outputs({
      {on(2, "STAND_IN_GPUS=2 TREE_ATTN_NCCL_FAULT=\"version $((22907 - 301 * RANK))\""), " CUDA 13.0 2.26.6 Stand-in GPU "},
      {on(1, "TREE_ATTN_NCCL_FAULT='version 21402'"), " is NCCL 2.14.2, older than 2.14.3, the first with communicators"},
      {on(2, "TREE_ATTN_NCCL_LIBRARY=/none"), " NCCL not here: "},
      {on(2, "STAND_IN_GPUS=$((2 - 2 * RANK))"),
       " GPU not here for rank 1: the driver shows none (CUDA_VISIBLE_DEVICES is "},
      {on(2, "STAND_IN_ERROR=999"), " driver not here: cuInit: error 999; see docs/IV.7-many-gpus.md#no_driver"},
      // It reaches no other GPU.
      {on(3, "STAND_IN_GPUS=3 STAND_IN_APART=1"), " GPU-5f0c0000-0000-0000-0000-000000000001 0 "},
      {on(2, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME=none"), " ranks cores driver NCCL GPU "},
      {on(1, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME==l"), " ranks cores driver NCCL GPU "},
      {on(1, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME=docker,=lo"), " ranks cores driver NCCL GPU "},
      {on(1, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME==lo,none"), " lo 127.0.0.1 CUDA 13.0 "},
      {on(1, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME=^docker,none"), " ranks cores interface driver NCCL GPU "},
      {on(1, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME=^=l"), " lo 127.0.0.1 CUDA 13.0 "},
      {on(2, "STAND_IN_GPUS=2 NCCL_SOCKET_IFNAME=lo"),
       " lo 127.0.0.1 CUDA 13.0 2.29.7 Stand-in GPU 9.0 GPU-5f0c0000-0000-0000-0000-000000000001 "},
      // Every rank sees one GPU, which is number 0 for each: the identity tells them apart.
      {on(2, "STAND_IN_GPUS=1 STAND_IN_FIRST=$RANK"), " GPU-5f0c0000-0000-0000-0000-000000000001"},
      {on(2, "STAND_IN_GPUS=1"),
       " GPU one, GPU-5f0c0000-0000-0000-0000-000000000000, for ranks 0, 1; see docs/IV.7-many-gpus.md#one_gpu "},
      // Memory of the next rank: of its GPU, by CUDA IPC between processes that reach it, and pages without a name.
      {on(2, "STAND_IN_GPUS=2 STAND_IN_IPC=999"),
       " CUDA IPC not here: cuIpcOpenMemHandle_v2: error 999; see docs/IV.7-many-gpus.md#no_ipc "},
      {on(3, "STAND_IN_GPUS=3 STAND_IN_APART=1 STAND_IN_IPC=$((RANK == 2 ? 0 : 999))"),
       " GPU-5f0c0000-0000-0000-0000-000000000001 0 "},
      {{"sh", "-c", "(ulimit -f 0; exec \"$0\" \"$@\") | cat", kProgram, "info", "--devices", "0-1"},
       " memfd not here: memfd_create: File too large; see docs/IV.7-many-gpus.md#no_memfd "},
      // A device that is not there.
      {too_many, " GPU not here for ranks 2, 3: its machine has 2; see "},
      {with_stand_ins("STAND_IN_GPUS=1 STAND_IN_MAJOR=12", TREE_ATTN_ON_STAND_INS) + Words{"info"},
       " kernels not here: built for 80-real,90a-real, the Stand-in GPU needs 120-real; see "},
      {with_stand_ins("STAND_IN_GPUS=1", TREE_ATTN_ON_STAND_INS) + Words{"info"},
       " kernels for 80-real,90a-real, by CUDA 13.0.88 "},
  });
}

TEST_CASE("info: a decode on GPUs that cannot be ends on all ranks, in one line") {
  const Words decode{"decode", "--backend", "cuda", "--seq-len", "256", "--heads", "2", "--head-dim", "64", "--verify"};
  const Words generate{"generate", TREE_ATTN_TEST_DATA "/recall/model.safetensors", "--ask", "Q", "--backend", "cuda"};
  const auto on = [](const std::string& set) { return with_stand_ins(set, TREE_ATTN_ON_STAND_INS); };
  std::vector<Ending> endings;
  for (const Words& words : {decode, generate}) {
    endings.push_back({ranks(2, words, on("STAND_IN_GPUS=0")), "tree_attn: --backend cuda: cudaGetDevice: no CUDA-capable"});
    endings.push_back(
        {ranks(2, words, on("STAND_IN_GPUS=$((2 - 2 * RANK))")), "tree_attn: rank 1: --backend cuda: cudaGet"});
  }
  // Where all have what they need, it runs; what concerns another option does not end it.
  for (const std::string set : {"STAND_IN_GPUS=2", "STAND_IN_GPUS=1 STAND_IN_FIRST=$RANK",
                                "STAND_IN_GPUS=2 STAND_IN_APART=0 TREE_ATTN_NCCL_FAULT=\"version $RANK\""})
    endings.push_back({ranks(2, decode, on(set)), ""});
  // Ranks that share a GPU, by its identity, unless that is asked for.
  for (const Words& words : {decode, generate}) {
    endings.push_back({ranks(3, words, on("STAND_IN_GPUS=2")),
                       "tree_attn: one GPU, GPU-5f0c0000-0000-0000-0000-000000000000, for ranks 0, 2: start one rank"});
    endings.push_back({ranks(2, words + Words{"--share-gpus"}, on("STAND_IN_GPUS=1")), ""});
  }
  // Over NCCL more has to be right.
  for (const auto& [set, line] : {std::pair{"TREE_ATTN_NCCL_FAULT='version 21402'", " is NCCL 2.14.2, older than 2.14.3"},
                                  {"TREE_ATTN_NCCL_LIBRARY=/none", "--transport nccl: "}}) {
    const Words program = on(std::string("STAND_IN_GPUS=2 ") + set);
    endings.push_back({ranks(2, decode + Words{"--transport", "nccl"}, program), line});
  }
  // Ranks that are threads.
  const Words threads = on("STAND_IN_GPUS=2") + decode;
  endings.push_back({threads + Words{"--devices", "0-1"}, ""});
  endings.push_back({threads + Words{"--devices", "0-2"}, "--devices: there is no device 2, this machine has 2"});
  check_endings(endings);
}

TEST_CASE("gpus: a rank makes a context on its own GPU, and on no other") {
  const Scratch scratch;
  const std::string set = "STAND_IN_GPUS=3 STAND_IN_CONTEXTS=" + scratch.path("contexts") + "$RANK";
  const Words program = with_stand_ins(set, TREE_ATTN_ON_STAND_INS);
  // List the GPUs that each process has used, by the backend and by the driver itself.
  const auto used = [&](const Words& command, int n_processes) {
    check_silent_success(run(command));
    std::string all;
    for (int rank = 0; rank < n_processes; ++rank) {
      const std::string file = scratch.path("contexts" + std::to_string(rank));
      const std::string of_backend = Scratch::read(file), of_driver = Scratch::read(file + ".driver");
      all += (of_backend.empty() ? "GPUs:" : of_backend) + of_driver + ";";
      std::filesystem::remove(file), std::filesystem::remove(file + ".driver");
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
  // Other backends use none. Of info, a process offers the others of its machine memory of its own GPU, and threads do not.
  for (const auto& [words, of_two] : {std::pair{model, "GPUs:;GPUs:;"}, {Words{"info"}, "GPUs: 0;GPUs: 1;"}}) {
    CHECK(used(ranks(2, words, program), 2) == of_two);
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
