// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn decode --backend emulated`: the kernels behind the same command line, with the same promises.
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/distributed/program/file_workload.hpp"

TEST_CASE("emulated: the program says which kernel was picked, and for how many keys") {
  for (const auto& [dtype, picked] :
       std::vector<std::pair<std::string, std::string>>{{"f32", "F32 on scalar"}, {"bf16", "BF16 on tensor"}}) {
    const Result result = run(ranks(2, {"decode", "--seq-len", "700", "--heads", "4", "--head-dim", "64", "--dtype", dtype,
                                        "--backend", "emulated", "--shards", "384,316"}));
    CHECK(result.status == 0);
    CHECK(result.out.find("kernel: short-end of " + picked + " cores: 4 blocks of ") != std::string::npos);
    CHECK(result.out.find("(384 keys of rank 0)") != std::string::npos);
  }
}

TEST_CASE("emulated: shapes that no kernel takes are refused with their numbers, and nothing is written") {
  const Scratch scratch;
  FileWorkload::draw(1, 1, 1, 1, 10, 8, 577).write(scratch.path("in"), "F32");
  const std::vector<std::pair<Words, std::string>> all{
      {{"--seq-len", "777", "--head-dim", "600"}, "--backend emulated: no kernel supports d_h 600, d_v 600: more than 576"},
      // Moments make a value d_v + d_v + d_h long.
      {{"--seq-len", "777", "--head-dim", "193", "--moments", "2"},
       "--backend emulated: no kernel supports d_h 193, d_v 579: more than 576"},
      {{"in", "out"}, "--backend emulated: no kernel supports d_h 8, d_v 577: more than 576"}};
  std::vector<Words> commands;
  for (const auto& [options, why] : all) {
    commands.push_back(alone(Words{"decode"} + options + Words{"--backend", "emulated"}));
    commands.push_back(ranks(3, Words{"decode"} + options + Words{"--backend", "emulated"}));
  }
  const std::vector<Result> results = run_all(commands, {.folder = scratch.folder().string()});
  for (std::size_t i = 0; i < results.size(); ++i) check_one_line(results[i], all[i / 2].second);
  CHECK(scratch.names() == std::vector<std::string>{"in"});
}
