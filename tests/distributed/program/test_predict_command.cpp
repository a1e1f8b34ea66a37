// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn predict`: its table, its report, and what it refuses.
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/distributed/measure/predict.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace {

using Json = nlohmann::json;

/// The report of a prediction.
Json predicted(const Scratch& scratch, const Words& arguments) {
  const std::string path = scratch.path("report");
  const Result result = run(alone(Words{"predict", "--report", path} + arguments));
  check_silent_success(result);
  std::istringstream text(result.out);
  for (std::string line; std::getline(text, line);) CHECK((line.size() <= 120 || line.starts_with("inside a node")));
  return Json::parse(Scratch::read(path));
}

}  // namespace

TEST_CASE("predict: table and report have every algorithm on the paper's cluster, as the library predicts them") {
  const Scratch scratch;
  const std::string path = scratch.path("report");
  const Result result = run(alone({"predict", "--seq-len", "640000", "--ranks", "64", "--report", path}));
  check_silent_success(result);
  const Json report = Json::parse(Scratch::read(path));
  std::vector<tree_attn::Algorithm> algorithms;
  for (const auto& all : {tree_attn::algorithms(), tree_attn::kernel_algorithms()})
    algorithms.insert(algorithms.end(), all.begin(), all.end());
  REQUIRE(report["runs"].size() == algorithms.size());
  const tree_attn::WorkloadShape shape{{.dtype = tree_attn::DType::BF16, .value_dtype = tree_attn::DType::BF16}, 640000, {}};
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    const tree_attn::Prediction wanted = predict(algorithms[i], shape, tree_attn::Topology::pretend(64, 8),
                                                 tree_attn::coarse_ranges(640000, 64, tree_attn::kLeafKeys),
                                                 {.network = tree_attn::kPaperCluster.network}, tree_attn::kPaperCluster);
    const Json& each = report["runs"][i];
    CAPTURE(each.dump());
    CHECK(each["algorithm"] == std::string(algorithms[i].name));
    const Json given{{"ranks", 64},    {"nodes", 8},      {"batch", 1},        {"heads", 16},
                     {"kv_heads", 16}, {"head_dim", 128}, {"seq_len", 640000}, {"dtype", "bf16"}};
    for (const auto& [key, value] : given.items()) CHECK_MESSAGE(each[key] == value, key);
    const Json& fields = each["predicted"];
    const Json numbers{{"messages_per_step", wanted.messages},
                       {"bytes_per_step", wanted.bytes},
                       {"bytes_between_nodes_per_step", wanted.bytes_between_nodes},
                       {"merge_steps", wanted.merge_steps},
                       {"rounds", wanted.rounds},
                       {"peak_elements", wanted.peak_elements},
                       {"peak_kv_bytes_per_rank", wanted.peak_kv_bytes},
                       {"peak_bytes_per_rank", wanted.peak_bytes},
                       {"step_us", *wanted.step_us}};
    for (const auto& [key, value] : numbers.items()) CHECK_MESSAGE(fields[key] == value, key);
  }
  const Json cluster = report["cluster"];
  CHECK(cluster["inside"] == Json{{"latency_us", 1.5}, {"bytes_per_us", 450e3}});
  CHECK(cluster["between"] == Json{{"latency_us", 3.0}, {"bytes_per_us", 50e3}});
  CHECK(cluster["overhead_us"] == 0.0);
  CHECK(cluster["memory_bytes_per_us"] == 3e6);
  CHECK(cluster["store_us"] == 0.6);
  CHECK(report["left_out"].empty());
  CHECK(report["command"].get<std::string>().find("predict --seq-len 640000") != std::string::npos);

  std::istringstream text(result.out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    CHECK(line.size() <= 140);
    lines.push_back(line);
  }
  REQUIRE(lines.size() == algorithms.size() + 5);
  CHECK(lines[0] == "640000 keys, 1 x 16 heads (16 kv) of 128, BF16; 64 ranks on 8 nodes");
  CHECK(lines[1] ==
        "inside a node 1.5 us and 450 GB/s, between nodes 3 us and 50 GB/s, 0 us per message, 0.6 us per store; "
        "memory 3000 GB/s; 0 us per merge");
  for (std::size_t i = 0; i < algorithms.size(); ++i) CHECK(lines[i + 5].starts_with(std::string(algorithms[i].name) + " "));
  // 10240 keys at 3 TB/s and 14.07 us of messages.
  CHECK(
      std::ranges::any_of(lines, [](const auto& line) { return line.starts_with("fused") && line.find("42.0 us") < 140; }));
}

TEST_CASE("predict: one-shot is predicted too, by the latency of a store, and for up to 16 ranks of a node") {
  const Scratch scratch;
  // Shards of 4 MiB take 40 us at 104.8576 GB/s. 16 states of 130 floats are 704 packets of 16 bytes.
  const Words arguments{"--seq-len", "1024", "--ranks", "2", "--bandwidth", "11.264,1", "--memory-bandwidth", "104.8576"};
  const auto last = [](const Json& report) -> Json { return report["runs"].back(); };
  for (const auto& [more, latency] : {std::pair(Words{}, 0.6), std::pair(Words{"--store-latency", "2"}, 2.0)}) {
    const Json report = predicted(scratch, arguments + more);
    CHECK(report["left_out"].empty());
    CHECK(report["runs"].size() == tree_attn::algorithms().size() + tree_attn::kernel_algorithms().size());
    CHECK(last(report)["algorithm"] == "one-shot");
    const Json fields = last(report)["predicted"];
    CHECK(fields["messages_per_step"] == 2);
    CHECK(fields["bytes_per_step"] == 2 * 704 * 16);
    CHECK(fields["rounds"] == 1);
    CHECK(fields["step_us"].get<double>() == doctest::Approx(40 + latency + 1).epsilon(1e-12));
  }
  // Two nodes of two: the shard takes 40 us, the store of 704 packets one more, and then a state of 16 rows 1 + 8.32 us.
  const Json nodes = last(predicted(scratch, {"--seq-len", "2048", "--ranks", "4", "--ranks-per-node", "2", "--bandwidth",
                                              "11.264,1", "--latency", "9,1", "--memory-bandwidth", "104.8576"}));
  CHECK(nodes["radix"] == 2);
  CHECK(nodes["predicted"]["bytes_between_nodes_per_step"] == 4 * 8320);
  CHECK(nodes["predicted"]["rounds"] == 2);
  CHECK(nodes["predicted"]["step_us"].get<double>() == doctest::Approx(40 + 0.6 + 1 + 1 + 8.32).epsilon(1e-12));
  CHECK(last(predicted(scratch, {"--ranks", "16", "--ranks-per-node", "16"}))["algorithm"] == "one-shot");
  const Words large{"--ranks", "17", "--ranks-per-node", "17"};
  const std::string why = "a node of 17 ranks; at most 16; use two-level";
  CHECK(predicted(scratch, large)["left_out"] == Json{{"one-shot", why}});
  CHECK(run(alone(Words{"predict"} + large)).out.ends_with("\nwithout one-shot: " + why + "\n"));
  CHECK(run(alone({"predict", "--ranks", "4"})).out.find("without") == std::string::npos);
  CHECK(predicted(scratch, {"--ranks", "4", "--order", "dealt"})["left_out"] ==
        Json{{"one-shot", "takes --order contiguous alone"}});
}

TEST_CASE("predict: the cluster of the command line is the one that is predicted") {
  const Scratch scratch;
  // 4 ranks on 2 nodes: a shard of 4 MiB takes 40 us at 104.8576 GB/s; two exchanges of states of 8320 bytes.
  const Words arguments{"--seq-len", "2048", "--ranks",     "4",          "--ranks-per-node",   "2",
                        "--latency", "7,11", "--bandwidth", "8.32,0.832", "--memory-bandwidth", "104.8576"};
  const auto index = static_cast<std::size_t>(&tree_attn::find_algorithm("fused") - tree_attn::algorithms().data());
  const auto fused = [index](const Json& report) -> double { return report["runs"][index]["predicted"]["step_us"]; };
  CHECK(fused(predicted(scratch, arguments)) == doctest::Approx(40 + (7 + 1) + (11 + 10)).epsilon(1e-12));
  CHECK(fused(predicted(scratch, arguments + Words{"--overhead", "0.5", "--merge-time", "2"})) ==
        doctest::Approx(40 + (7 + 1) + (11 + 10) + 2 * (0.5 + 2)).epsilon(1e-12));
  // Without --ranks-per-node: 8 ranks to a node, or all.
  CHECK(predicted(scratch, {"--ranks", "5"})["runs"][0]["nodes"] == 1);
  CHECK(predicted(scratch, {"--ranks", "9"})["runs"][0]["nodes"] == 2);
  CHECK(predicted(scratch, {"--ranks", "9", "--ranks-per-node", "2"})["runs"][0]["nodes"] == 5);
  // Under mpirun too, one rank predicts and prints.
  const Result under_mpirun = run(ranks(2, {"predict", "--ranks", "4"}));
  check_silent_success(under_mpirun);
  CHECK(under_mpirun.out == run(alone({"predict", "--ranks", "4"})).out);
}

TEST_CASE("predict: no keys, no batch and more ranks than leaves are predicted too") {
  const Scratch scratch;
  for (const Words& arguments :
       {Words{"--seq-len", "0"}, Words{"--batch", "0"}, Words{"--seq-len", "100", "--ranks", "16"}, Words{"--ranks", "1"},
        // The limits of all options.
        "--seq-len 16000000 --head-dim 65536 --heads 16 --ranks 128 --bandwidth 0.001,1e6 --latency 0,1e9 --overhead 1e9 "
        "--memory-bandwidth 0.001 --merge-time 1e9 --store-latency 1e9"_words}) {
    CAPTURE(arguments[0]);
    const Json report = predicted(scratch, arguments);
    for (const Json& each : report["runs"]) {
      CHECK(each["predicted"]["step_us"] >= 0.0);
      if (arguments[0] == "--batch") CHECK(each["predicted"]["bytes_per_step"] == 0);
    }
  }
}
