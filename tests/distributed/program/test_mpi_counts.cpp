// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Calls of MPI beside the messages of a decode.
#include "tests/distributed/program/command.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>

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
