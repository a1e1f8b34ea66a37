// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted is predicted: what reaches MPI is what the report says, what it predicts and what `predict` says.
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/tests/distributed/program/command.hpp"

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

TEST_CASE("counts: MPI sends what was counted and predicted, and through shared memory only what crosses nodes") {
  const Scratch scratch;
  // The transport is the same for all algorithms of a run, so each has its own run.
  std::vector<Words> decodes;
  const Words shape{"--seq-len", "1000", "--heads", "4", "--kv-heads", "2", "--head-dim", "4", "--ranks-per-node", "3"};
  for (const tree_attn::Algorithm& algorithm : tree_attn::algorithms()) {
    for (const std::string transport : {"mpi", "shared"})
      decodes.push_back(ranks(5,
                              Words{"decode", "--algorithm", std::string(algorithm.name), "--transport", transport,
                                    "--report", scratch.path(std::to_string(decodes.size()))} +
                                  shape,
                              {"env", "LD_PRELOAD=" TREE_ATTN_PMPI_COUNTS, "PMPI_COUNTS_PER_NODE=3", kProgram}));
  }
  const std::vector<Result> decoded = run_all(decodes);
  check_silent_success(run(alone(Words{"predict", "--ranks", "5", "--report", scratch.path("predict")} + shape)));
  const Json predicted = Json::parse(Scratch::read(scratch.path("predict")))["runs"];
  for (std::size_t i = 0; i < decodes.size(); ++i) {
    const tree_attn::Algorithm& algorithm = tree_attn::algorithms()[i / 2];
    CAPTURE(algorithm.name);
    check_silent_success(decoded[i]);
    const Json run = Json::parse(Scratch::read(scratch.path(std::to_string(i))))["runs"][0];
    const Counts sent = counts_of_pmpi(decoded[i].err), counted = counts_in(run);
    CHECK(run["transport"] == (i % 2 == 0 ? "mpi" : "shared"));
    CHECK(counts_in(run["predicted"]) == counted);
    CHECK(run["merge_steps"] == run["predicted"]["merge_steps"]);
    CHECK(counted[2] > 0);
    CHECK(sent == (i % 2 == 0 ? counted : Counts{sent[0], counted[2], counted[2]}));
    // Where ranks outnumber cores, decode has a radix of its own.
    if (algorithm.radix == nullptr) CHECK(counts_in(predicted[i / 2]["predicted"]) == counted);
    CHECK(run["peak_kv_bytes_per_rank"] == predicted[i / 2]["predicted"]["peak_kv_bytes_per_rank"]);
  }
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
