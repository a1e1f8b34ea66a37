// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reports of `decode`: the table for people, the JSON for programs, and counts that are as predicted.
#include "gpu/backend/backends.hpp"
#include "reference/cpu/leaf_kernel.hpp"
#include "tests/distributed/program/command.hpp"
#include "tests/support/algorithm_names.hpp"

#include <sched.h>

using Json = nlohmann::json;

TEST_CASE("report: every field is there with its type, one object an algorithm, in the order asked for, as in the table") {
  const Scratch scratch;
  const std::string path = scratch.path("report");
  const Result result =
      run(ranks(3,
                "decode --seq-len 1000 --heads 4 --kv-heads 2 --head-dim 32 --batch 2 --dtype f16 "
                "--steps 3 --repeat 4 --warmup 1 --ranks-per-node 2 --radix 3"_words +
                    Words{"--compare", tree_attn::test::others(), "--verify", "--report", path, "--threads", "2"}));
  check_silent_success(result);
  const Json report = Json::parse(Scratch::read(path));
  const Words algorithms = tree_attn::test::names();
  REQUIRE(report["runs"].size() == algorithms.size());
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    const Json& each = report["runs"][i];
    CAPTURE(each.dump());
    CHECK(each["algorithm"] == algorithms[i]);
    Json given = Json::parse(
        R"({"backend": "cpu", "arithmetic": "portable", "transport": "mpi", "dtype": "f16", "ranks": 3, "nodes": 2,
      "batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "seq_len": 1000, "steps": 3, "order": "dealt", "threads": 2, "radix": null,
      "same_bits_on_all_ranks": true, "passed": true})");
    if (tree_attn::find_algorithm(algorithms[i]).radix != nullptr) given["radix"] = 3;
    for (const auto& [key, value] : given.items()) CHECK_MESSAGE(each[key] == value, key);
    for (const char* key : {"collectives_per_step", "messages_per_step", "bytes_per_step", "bytes_between_nodes_per_step",
                            "merge_steps", "peak_kv_bytes_per_rank"}) {
      CHECK_MESSAGE(each[key].is_number_unsigned(), key);
    }
    for (const char* key : {"max_abs_error", "max_rel_error", "lse_max_error"}) {
      CHECK_MESSAGE(each[key].is_number_float(), key);
      CHECK_MESSAGE(each[key] < 1e-4, key);
    }
    CHECK(each["predicted"]["bytes_per_step"].is_number());
    CHECK(each["predicted"]["peak_elements"].is_number());
    for (const char* time : {"latency_us", "combine_us"}) {
      CHECK(each[time]["p10"] > 0.0);
      CHECK(each[time]["p10"] <= each[time]["median"]);
      CHECK(each[time]["median"] <= each[time]["p90"]);
    }
    for (const char* key : {"median", "p10", "p90"}) CHECK_MESSAGE(each["combine_us"][key] < each["latency_us"][key], key);
    const std::string digest = each["output_digest"];
    CHECK(digest.size() == 16);
    CHECK(digest.find_first_not_of("0123456789abcdef") == std::string::npos);
    CHECK(each["bytes_between_nodes_per_step"] <= each["bytes_per_step"]);
  }

  const Json& machine = report["machine"];
  for (const char* key : {"cpu", "mpi", "compiler", "build_type"}) CHECK_MESSAGE(machine[key].is_string(), key);
  CHECK(machine["cores"] > 0);
  CHECK(machine["instruction_set"] == tree_attn::leaf_kernel().name);
  std::vector<std::string> gpus;
  for (const tree_attn::Backend* backend : tree_attn::backends()) {
    for (const std::string& gpu : backend->gpus()) gpus.push_back(gpu);
  }
  CHECK(machine["gpus"].get<std::vector<std::string>>() == gpus);
  CHECK((machine["nccl"].is_null() || machine["nccl"].is_string()));
  const std::string command = report["command"];
  CHECK(command.find("decode --seq-len 1000 --heads 4") != std::string::npos);

  // The table says the same, in the same order, within the width of a terminal.
  std::istringstream text(result.out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    CHECK(line.size() <= 140);
    lines.push_back(line);
  }
  CHECK(lines.front() == "1000 keys, 2 x 4 heads (2 kv) of 32, F16; 3 ranks on 2 nodes, backend cpu, transport mpi");
  REQUIRE(lines.size() >= algorithms.size());
  for (std::size_t i = 0; i < algorithms.size(); ++i) {
    const std::string& line = lines[lines.size() - algorithms.size() + i];
    CHECK(line.starts_with(algorithms[i] + " "));
    CHECK(line.ends_with(report["runs"][i]["output_digest"].get<std::string>()));
  }
}

TEST_CASE("report: what the host launches in a step, and the kernel") {
  // From the third step on a step is one graph, and states of gather are merged on the host.
  const Words decode = "decode --seq-len 300 --steps 4 --heads 2 --head-dim 32"_words;
  const Words emulated = decode + "--backend emulated --algorithm gather --compare one-shot"_words;
  for (const Words& words : {alone(emulated + Words{"--devices", "0-1"}), ranks(2, emulated)})
    for (const Json& each : runs_of(words)) CHECK(each["launches_per_step"] == 1);
  CHECK(runs_of(alone(decode))[0]["launches_per_step"].is_null());
  // The first step launches the kernel that stores appended positions, that which decodes units, and that which combines
  // them.
  const Words one_step = "decode --seq-len 700 --heads 4 --head-dim 64 --backend emulated --shards 384,316"_words;
  CHECK(runs_of(ranks(2, one_step))[0]["launches_per_step"] == 3);
  const std::string out = run(ranks(2, one_step)).out;
  CHECK(out.find("kernel: equal-runs of BF16 on tensor cores: 4 blocks of ") != std::string::npos);
  CHECK(out.find("(384 keys of rank 0)") != std::string::npos);
}

namespace {

/// Runs something on one core, and whatever it starts.
template <class F>
auto on_one_core(const F& f) {
  cpu_set_t all, one;
  REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const auto result = f();
  REQUIRE(::sched_setaffinity(0, sizeof all, &all) == 0);
  return result;
}

}  // namespace

TEST_CASE("report: without --threads a rank has its part of the cores that it may use, and other backends one thread") {
  const auto threads_of = [&](const Words& command) -> int { return runs_of(command)[0]["threads"]; };
  const Words decode{"decode", "--seq-len", "64"};
  cpu_set_t all;
  REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
  const int n_cores = CPU_COUNT(&all);
  // A limit of the container may leave fewer.
  CHECK(threads_of(alone(decode)) >= 1);
  CHECK(threads_of(alone(decode)) <= n_cores);
  if (n_cores < 8) CHECK(threads_of(ranks(n_cores + 1, decode)) == 1);
  CHECK(threads_of(ranks(2, decode)) <= std::max(1, n_cores / 2));
  CHECK(threads_of(alone(decode + Words{"--backend", "emulated"})) == 1);
  CHECK(on_one_core([&] { return threads_of(alone(decode)); }) == 1);
  CHECK(on_one_core([&] { return threads_of(alone(decode + Words{"--threads", "3"})); }) == 3);
}

TEST_CASE("report: where ranks outnumber the cores of their node, every round joins two blocks") {
  std::vector<Json> runs;
  // Four nodes, or four ranks of a node: two rounds of one message each way, where the default would be one round of three.
  for (const char* ranks_per_node : {"1", "4"}) {
    const Words decode{"decode", "--seq-len", "256", "--ranks-per-node", ranks_per_node};
    const Json& each = runs.emplace_back(on_one_core([&] { return report_of(ranks(4, decode)); })["runs"][0]);
    CAPTURE(each.dump());
    CHECK(each["radix"] == 2);
    CHECK(each["messages_per_step"] == 4 * 2);
    CHECK(each["predicted"]["rounds"] == 2);
    CHECK(each["output_digest"] == runs[0]["output_digest"]);
  }
}

TEST_CASE("report: the combine leaves out the decode of the shard") {
  const Words decode = "decode --seq-len 65536 --heads 4 --head-dim 64 --repeat 5 --compare gather,paper"_words;
  for (const Json& each : runs_of(alone(decode))) {
    CAPTURE(each.dump());
    CHECK(each["combine_us"]["median"] < 0.2 * each["latency_us"]["median"].get<double>());
  }
}

TEST_CASE("report: without --verify there are no errors, and a command of any bytes is kept as UTF-8") {
  const Scratch scratch;
  const std::string path = scratch.path("report \xff\xe2\x82\xac");
  check_silent_success(run(alone({"decode", "--seq-len", "64", "--report", path})));
  const Json report = Json::parse(Scratch::read(path));
  for (const char* key : {"max_abs_error", "max_rel_error", "lse_max_error", "error_over_bound", "passed"})
    CHECK_MESSAGE(report["runs"][0][key].is_null(), key);
  CHECK(report["command"].get<std::string>().ends_with("report \xEF\xBF\xBD\xe2\x82\xac"));
}
