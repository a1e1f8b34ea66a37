// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that are threads.
#include "tree_attn/distributed/transport/thread_transport.hpp"
#include "tree_attn/tests/support/check_ranks.hpp"

#include <doctest/doctest.h>

#include <string_view>

namespace tree_attn::test::ranks_test {
namespace {

constexpr double kTimeout = 20;

}  // namespace

TEST_CASE("thread ranks: reductions and gathering") {
  for (const int p : {1, 2, 3, 8}) {
    run_threads(Topology::pretend(p, 2), kTimeout,
                [](const ThreadRanks& ranks, ThreadTransport&) { check_reductions(ranks); });
  }
}

TEST_CASE("thread ranks: an error on one rank is an error on all, in the same words") {
  for (const int p : {1, 2, 3, 8}) {
    run_threads(Topology::pretend(p, 2), kTimeout,
                [](const ThreadRanks& ranks, ThreadTransport&) { check_agreement(ranks); });
  }
}

TEST_CASE("thread ranks: nodes are those of the topology they were started with, or pretended") {
  const Topology given({7, 3, 7, 3, 3});
  run_threads(given, kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
    CHECK(ranks.topology(0).order() == given.order());
    CHECK(ranks.topology(2).n_nodes() == 3);
  });
}

TEST_CASE("thread ranks: a rank that never answers ends the others within the timeout, with what they did") {
  const auto silent = [](const ThreadRanks& ranks, ThreadTransport&) {
    ranks.doing("in a test");
    if (ranks.rank() == 1) ranks.barrier();
  };
  try {
    run_threads(Topology::pretend(2, 2), 0.2, silent);
    FAIL("no error");
  } catch (const TransportError& error) {
    CHECK(std::string_view(error.what()) == "rank 1 waited 0.2 s for the arrival of rank 0 in a test and gave up");
    CHECK(error.kind == TransportError::Kind::kDeadline);
    CHECK(error.rank == 1);
    CHECK(error.peer == 0);
  }
  const auto root_is_silent = [](const ThreadRanks& ranks, ThreadTransport&) {
    ranks.doing("in a test");
    if (ranks.rank() == 1) ranks.broadcast_from_root(0);
  };
  CHECK_THROWS_WITH_AS(run_threads(Topology::pretend(2, 2), 0.2, root_is_silent),
                       "rank 1 waited 0.2 s for rank 0 in a test and gave up", TransportError);
}

}  // namespace tree_attn::test::ranks_test
