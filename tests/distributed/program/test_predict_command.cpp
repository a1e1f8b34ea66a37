// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn predict`: its table, its report, and what it refuses.
#include "distributed/exchange/decoder.hpp"
#include "distributed/program/predict.hpp"
#include "tests/distributed/program/command.hpp"

#include <algorithm>

namespace {

using Json = nlohmann::json;

/// The report of a prediction, whose table fits a terminal.
Json predicted(const Words& arguments) {
  const Words command = alone(Words{"predict"} + arguments);
  std::istringstream text(run(command).out);
  for (std::string line; std::getline(text, line);) CHECK((line.size() <= 120 || line.starts_with("inside a node")));
  return report_of(command);
}

}  // namespace

TEST_CASE("predict: the report has every algorithm on the cluster of the command line, as the library predicts them") {
  // Both clusters have several nodes, for which no kernel exchanges by itself.
  const auto algorithms = tree_attn::algorithms();
  struct Case {
    Words options;
    tree_attn::Cluster cluster = tree_attn::kPaperCluster;
    std::int64_t n_keys = 640000;
    int ranks = 64, ranks_per_node = 8, radix = 0;
  };
  tree_attn::Cluster mine = tree_attn::kPaperCluster;
  mine.network.inside = {7, 8.32 * 1e3}, mine.network.between = {11, 0.832 * 1e3}, mine.network.overhead_us = 0.5;
  mine.memory_bytes_per_us = 104.8576 * 1e3, mine.merge_us = 2, mine.store_us = 4;
  for (const Case& c :
       {Case{"--seq-len 640000 --ranks 64"_words},
        Case{"--seq-len 2048 --ranks 4 --ranks-per-node 2 --radix 3 --latency 7,11 --bandwidth 8.32,0.832 --overhead 0.5 "
             "--memory-bandwidth 104.8576 --merge-time 2 --store-latency 4"_words,
             mine, 2048, 4, 2, 3}}) {
    const tree_attn::Topology topology = tree_attn::Topology::pretend(c.ranks, c.ranks_per_node);
    const tree_attn::WorkloadShape shape{
        {.dtype = tree_attn::DType::BF16, .value_dtype = tree_attn::DType::BF16}, c.n_keys, {}};
    const Json report = predicted(c.options);
    CHECK(report["left_out"].size() == 1);
    REQUIRE(report["runs"].size() == algorithms.size());
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      const tree_attn::Prediction wanted =
          predict(algorithms[i], shape, topology, tree_attn::coarse_ranges(c.n_keys, c.ranks, tree_attn::kLeafKeys),
                  {.radix = c.radix, .network = c.cluster.network}, c.cluster);
      const Json& each = report["runs"][i];
      CAPTURE(each.dump());
      CHECK(each["algorithm"] == std::string(algorithms[i].name));
      const Json given{{"ranks", c.ranks}, {"nodes", topology.n_nodes()}, {"batch", 1},     {"heads", 16}, {"kv_heads", 16},
                       {"head_dim", 128},  {"seq_len", c.n_keys},         {"dtype", "bf16"}};
      for (const auto& [key, value] : given.items()) CHECK_MESSAGE(each[key] == value, key);
      const Json numbers{{"messages_per_step", wanted.messages},
                         {"bytes_per_step", wanted.bytes},
                         {"bytes_between_nodes_per_step", wanted.bytes_between_nodes},
                         {"merge_steps", wanted.merge_steps},
                         {"rounds", wanted.rounds},
                         {"peak_elements", wanted.peak_elements},
                         {"peak_kv_bytes_per_rank", wanted.peak_kv_bytes},
                         {"peak_bytes_per_rank", wanted.peak_bytes},
                         {"step_us", *wanted.step_us}};
      for (const auto& [key, value] : numbers.items()) CHECK_MESSAGE(each["predicted"][key] == value, key);
    }
  }
}

TEST_CASE("predict: the table of the paper's cluster, and what is left out of it") {
  // Under mpirun too, one rank predicts and prints.
  const Result result = run(ranks(2, "predict --seq-len 640000 --ranks 64"_words));
  check_silent_success(result);
  std::istringstream text(result.out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  // After the table an empty line, and one for each that is left out.
  REQUIRE(lines.size() == tree_attn::all_algorithms().size() + 5 + 1);
  CHECK(lines[0] == "640000 keys, 1 x 16 heads (16 kv) of 128, BF16; 64 ranks on 8 nodes");
  CHECK(lines[1] ==
        "inside a node 1.5 us and 450 GB/s, between nodes 3 us and 50 GB/s, 0 us per message, 0.6 us per store; "
        "memory 3000 GB/s; 0 us per merge");
  // 10240 keys at 3 TB/s and 14.07 us of messages.
  CHECK(
      std::ranges::any_of(lines, [](const auto& line) { return line.starts_with("fused") && line.find("42.0 us") < 140; }));
  // Without --ranks-per-node: 8 ranks to a node, or all.
  for (const auto& [options, n_nodes] :
       {std::pair("--ranks 5"_words, 1), {"--ranks 9"_words, 2}, {"--ranks 9 --ranks-per-node 2"_words, 5}})
    CHECK(predicted(options)["runs"][0]["nodes"] == n_nodes);

  // One-shot is for one node of up to 16 ranks, for few rows, for one order, and for all keys.
  const std::string large = "a node of 17 ranks; at most 16; use two-level";
  for (const auto& [options, why] :
       {std::pair("--ranks 16 --ranks-per-node 16"_words, std::string()),
        {"--ranks 17 --ranks-per-node 17"_words, large},
        {"--ranks 4 --ranks-per-node 2"_words,
         "its kernels reach the devices of one node, and the ranks are on 2; use two-level"},
        {"--ranks 4 --batch 64"_words, "rank 0 has 520 KiB of states; at most 128; use two-level"},
        {"--ranks 4 --order dealt"_words, "takes --order contiguous alone"},
        {"--ranks 4 --window 9"_words, "its kernel has no window and no learned sinks; use two-level"}}) {
    CHECK(predicted(options)["left_out"] == (why.empty() ? Json::object() : Json{{"one-shot", why}}));
    const std::string out = run(alone(Words{"predict"} + options)).out;
    CHECK(out.ends_with("\nwithout one-shot: " + why + "\n") == !why.empty());
  }
  for (const char* ring : {"ring", "ring-state"})
    CHECK(predicted("--ranks 1025 --seq-len 131200"_words)["left_out"][ring] ==
          "the rounds of 1025 ranks are too many to walk through");
  // Of eight shards the window sees the first and the last: two messages each, seven times.
  const Words window = "predict --seq-len 640000 --ranks 8 --window 4096 --sinks 4"_words;
  CHECK(run(alone(window)).out.find("-       7        28") != std::string::npos);
}

TEST_CASE("predict: no keys, no batch and more ranks than leaves are predicted too") {
  for (const Words& arguments :
       {Words{"--seq-len", "0"}, Words{"--batch", "0"}, Words{"--seq-len", "100", "--ranks", "16"}, Words{"--ranks", "1"},
        // The limits of all options.
        "--seq-len 16000000 --head-dim 65536 --heads 16 --ranks 128 --bandwidth 0.001,1e6 --latency 0,1e9 --overhead 1e9 "
        "--memory-bandwidth 0.001 --merge-time 1e9 --store-latency 1e9"_words}) {
    CAPTURE(arguments[0]);
    const Json report = predicted(arguments);
    for (const Json& each : report["runs"]) {
      CHECK(each["predicted"]["step_us"] >= 0.0);
      if (arguments[0] == "--batch") CHECK(each["predicted"]["bytes_per_step"] == 0);
    }
  }
}
