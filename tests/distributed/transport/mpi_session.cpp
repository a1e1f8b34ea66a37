// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the program asks of MPI beside the decode step: agreement and topology.
#include <doctest/doctest.h>

#include <numeric>

#include "reference/data/input_error.hpp"
#include "tests/support/mpi_world.hpp"

namespace tree_attn::test {
namespace {

/// The line that every rank throws, "" if none.
std::string agreed(const std::optional<std::string>& problem) {
  try {
    session().agree(problem);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("mpi session: numbers of all ranks") {
  const int rank = session().rank(), p = session().size();
  CHECK(session().largest(std::uint64_t{10} + static_cast<std::uint64_t>(rank)) == 10 + static_cast<std::uint64_t>(p) - 1);
  CHECK(session().smallest(std::uint64_t{10} + static_cast<std::uint64_t>(rank)) == 10);
  CHECK(session().largest(-0.5 * rank) == 0);
  CHECK(session().sum(rank) == p * (p - 1) / 2);
  CHECK(session().of_first(static_cast<std::uint64_t>(rank) + 7) == 7);
}

TEST_CASE("mpi session: trouble on one rank is trouble on all, in the same words") {
  const int p = session().size();
  CHECK(agreed(std::nullopt) == "");
  CHECK(agreed("the same everywhere") == "the same everywhere");
  for (int unwell = 0; unwell < p; ++unwell) {
    const std::string line = agreed(session().rank() == unwell ? std::optional<std::string>("bad file") : std::nullopt);
    CHECK(line == (p == 1 ? "bad file" : "rank " + std::to_string(unwell) + ": bad file"));
  }
  // The first rank in trouble speaks; a line too long for the message is cut, not lost.
  CHECK(agreed("I am " + std::to_string(session().rank())) == (p == 1 ? "I am 0" : "rank 0: I am 0"));
  CHECK(agreed(std::string(5000, 'x')).size() == 1023);
}

TEST_CASE("mpi session: ranks that share memory are one node, pretended nodes are runs of ranks") {
  const Topology found = session().topology(0), pretended = session().topology(2);
  CHECK(found.size() == session().size());
  CHECK(found.n_nodes() == 1);
  CHECK(pretended.n_nodes() == (session().size() + 1) / 2);
  CHECK(pretended.node_of(session().rank()) == session().rank() / 2);
}

TEST_CASE("mpi transport: numbers that go around the ring come back") {
  const int rank = session().rank(), p = session().size();
  MpiTransport transport(session(), Topology::pretend(p, 1));
  std::vector<float> numbers(10000), received(numbers.size());
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(rank));
  for (int hop = 0; p > 1 && hop < p; ++hop) {
    transport.receive(std::as_writable_bytes(std::span(received)), (rank + p - 1) % p);
    transport.send(std::as_bytes(std::span(numbers)), (rank + 1) % p);
    transport.progress();
    transport.wait();
    numbers.swap(received);
  }
  CHECK(numbers[0] == static_cast<float>(rank));
  CHECK(numbers[9999] == static_cast<float>(rank + 9999));
  CHECK(transport.traffic.messages == (p > 1 ? p : 0));
}

}  // namespace tree_attn::test
