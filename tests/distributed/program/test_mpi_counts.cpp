// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted is predicted: what reaches MPI is what the report says, what it predicts and what `predict` says.
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"
#include "tree_attn/tests/support/sweep.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace {

using Json = nlohmann::json;

/// Messages, bytes and bytes between nodes.
using Counts = std::array<std::int64_t, 3>;

Counts counts_in(const Json& fields) {
  return {fields["messages_per_step"], fields["bytes_per_step"], fields["bytes_between_nodes_per_step"]};
}

/// From the line of the preloaded library.
Counts counts_of_pmpi(const std::string& err) {
  std::array<long long, 3> counts{-1, -1, -1};
  const std::size_t at = err.find("PMPI ");
  if (at != std::string::npos) std::sscanf(err.c_str() + at, "PMPI %lld %lld %lld", &counts[0], &counts[1], &counts[2]);
  return {counts[0], counts[1], counts[2]};
}

}  // namespace

TEST_CASE("counts: MPI sends as many messages and bytes as were counted and predicted, between nodes too") {
  const Scratch scratch;
  struct Layout {
    int n_ranks;
    std::string n_keys, per_node, order = "contiguous";
  };
  std::vector<Layout> layouts{{4, "1000", "2"}, {5, "80000", "3"}, {3, "80000", "1", "dealt"}};
  if (tree_attn::test::takes_all_cases())
    layouts.insert(layouts.end(),
                   {{1, "1000", "1"}, {2, "1000", "1"}, {3, "4096", "2"}, {7, "1000", "7"}, {8, "100003", "3", "dealt"}});
  const auto algorithms = tree_attn::algorithms();
  const Words shape{"--heads", "4", "--kv-heads", "2", "--head-dim", "4"};
  // The transport is the same for all algorithms of a run, so each has its own run.
  std::vector<Words> decodes, predicts;
  const auto report = [&](const char* command, std::size_t i) { return scratch.path(command + std::to_string(i)); };
  for (const auto& [n_ranks, n_keys, per_node, order] : layouts) {
    const Words size = Words{"--seq-len", n_keys, "--ranks-per-node", per_node, "--order", order} + shape;
    for (const tree_attn::Algorithm& algorithm : algorithms) {
      const Words counted{"env", "LD_PRELOAD=" TREE_ATTN_PMPI_COUNTS, "PMPI_COUNTS_PER_NODE=" + per_node, kProgram};
      decodes.push_back(ranks(
          n_ranks,
          Words{"decode", "--algorithm", std::string(algorithm.name), "--report", report("decode", decodes.size())} + size,
          counted));
    }
    predicts.push_back(
        alone(Words{"predict", "--ranks", std::to_string(n_ranks), "--report", report("predict", predicts.size())} + size));
  }
  const std::vector<Result> decoded = run_all(decodes), predicted = run_all(predicts);

  int n_between = 0;
  for (std::size_t l = 0; l < layouts.size(); ++l) {
    check_silent_success(predicted[l]);
    const Json predict_report = Json::parse(Scratch::read(report("predict", l)));
    REQUIRE(predict_report["runs"].size() >= algorithms.size());
    for (std::size_t a = 0; a < algorithms.size(); ++a) {
      CAPTURE(layouts[l].n_ranks);
      CAPTURE(algorithms[a].name);
      const Result& result = decoded[l * algorithms.size() + a];
      check_silent_success(result);
      const Json run = Json::parse(Scratch::read(report("decode", l * algorithms.size() + a)))["runs"][0],
                 predict_run = predict_report["runs"][a]["predicted"];
      const Counts sent = counts_of_pmpi(result.err);
      CHECK(counts_in(run) == sent);
      CHECK(counts_in(run["predicted"]) == sent);
      // Where ranks outnumber cores, decode has a radix of its own.
      if (algorithms[a].radix == nullptr) CHECK(counts_in(predict_run) == sent);
      CHECK((sent[0] > 0) == (layouts[l].n_ranks > 1));
      n_between += sent[2] > 0;
      CHECK(run["merge_steps"] == run["predicted"]["merge_steps"]);
      CHECK(run["peak_kv_bytes_per_rank"] == predict_run["peak_kv_bytes_per_rank"]);
    }
  }
  CHECK(n_between > 20);
}

TEST_CASE("counts: through shared memory the same is counted, and only what crosses nodes reaches MPI") {
  const Scratch scratch;
  std::vector<Words> decodes;
  for (const auto& [n_ranks, per_node] : {std::pair{4, "4"}, {4, "2"}, {5, "3"}}) {
    for (const tree_attn::Algorithm& algorithm : tree_attn::algorithms()) {
      decodes.push_back(ranks(
          n_ranks,
          {"decode", "--algorithm", std::string(algorithm.name), "--report", scratch.path(std::to_string(decodes.size())),
           "--seq-len", "1000", "--ranks-per-node", per_node, "--transport", "shared"},
          {"env", "LD_PRELOAD=" TREE_ATTN_PMPI_COUNTS, "PMPI_COUNTS_PER_NODE=" + std::string(per_node), kProgram}));
    }
  }
  const std::vector<Result> decoded = run_all(decodes);
  int n_between = 0;
  for (std::size_t i = 0; i < decodes.size(); ++i) {
    CAPTURE(i);
    check_silent_success(decoded[i]);
    const Json run = Json::parse(Scratch::read(scratch.path(std::to_string(i))))["runs"][0];
    CHECK(run["transport"] == "shared");
    CHECK(counts_in(run["predicted"]) == counts_in(run));
    const Counts sent = counts_of_pmpi(decoded[i].err);
    CHECK(sent[1] == sent[2]);
    CHECK(sent[2] == counts_in(run)[2]);
    n_between += sent[2] > 0;
  }
  CHECK(n_between > 10);
}

/// Most messages that a rank sends, those inside MPI's collectives included, in a decode of one step.
static std::int64_t most_messages(int n_ranks) {
  const Scratch scratch;
  Words job = ranks(n_ranks, {"decode", "--seq-len", "64", "--repeat", "1", "--warmup", "0"});
  const Words counting{"--mca", "pml_monitoring_enable",        "2",
                       "--mca", "pml_monitoring_enable_output", "3",
                       "--mca", "pml_monitoring_filename",      scratch.path("sent")};
  job.insert(job.begin() + 1, counting.begin(), counting.end());
  check_silent_success(run(job));
  std::int64_t most = 0;
  for (int rank = 0; rank < n_ranks; ++rank) {
    const std::string path = scratch.path("sent." + std::to_string(rank) + ".prof");
    // "I 1 0 1286 bytes 41 msgs sent": of a collective, from rank 1 to rank 0.
    std::istringstream lines(Scratch::read(path));
    std::int64_t sum = 0;
    for (std::string line; std::getline(lines, line);) {
      char kind = 0;
      long long n_messages = 0;
      if (std::sscanf(line.c_str(), "%c %*d %*d %*d bytes %lld msgs", &kind, &n_messages) == 2 &&
          (kind == 'I' || kind == 'E'))
        sum += n_messages;
    }
    most = std::max(most, sum);
  }
  return most;
}

TEST_CASE("counts: to start and to agree, a rank sends messages in the logarithm of their number") {
  if (run({TREE_ATTN_MPIEXEC, "--version"}).out.find("Open MPI") == std::string::npos) return;
  const std::int64_t of_4 = most_messages(4), of_16 = most_messages(16);
  MESSAGE("a rank of 4 sends ", of_4, ", of 16 ", of_16);
  CHECK(of_4 > 0);
  CHECK(of_16 <= 2 * of_4);
}
