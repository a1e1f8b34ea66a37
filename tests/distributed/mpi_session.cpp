// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the program asks of MPI beside the decode step: agreement, topology, and deadlines that end a wait.
#include <doctest/doctest.h>

#include <chrono>
#include <numeric>

#include "distributed/input_error.hpp"
#include "tests/distributed/mpi_world.hpp"

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

/// Restores the deadline of the session.
struct ShortTimeout {
  explicit ShortTimeout(double seconds) { session().timeout = seconds; }
  ~ShortTimeout() { session().timeout = before; }
  double before = session().timeout;
};

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

TEST_CASE("mpi transport: a rank that never sends makes the other give up within its timeout, and late is not lost") {
  if (session().size() < 2) return;
  MpiTransport transport(session(), Topology::pretend(session().size(), 1));
  float number = session().rank() == 0 ? 5.0f : 0.0f;
  const auto start = std::chrono::steady_clock::now();
  if (session().rank() == 1) {
    const ShortTimeout one_second(1);
    transport.receive(std::as_writable_bytes(std::span(&number, 1)), 0);
    CHECK_THROWS_AS(transport.wait(), TransportError);
  }
  session().barrier();
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(waited >= 0.9);
  CHECK(waited < 20);
  // The message arrives after all: nothing that MPI may still write to is given up while it may.
  if (session().rank() == 0) transport.send(std::as_bytes(std::span(&number, 1)), 1);
  if (session().rank() < 2) transport.wait();
  CHECK(number == (session().rank() < 2 ? 5.0f : 0.0f));
}

TEST_CASE("mpi session: a rank that does not come to a barrier makes the others give up") {
  if (session().size() < 2) return;
  // Rank 0 arrives late; the others leave after a second and come back to meet it.
  bool gave_up = false;
  MPI_Request request = MPI_REQUEST_NULL;
  if (session().rank() != 0) {
    const ShortTimeout one_second(1);
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    try {
      session().await({&request, 1}, "rank 0");
    } catch (const TransportError& error) {
      gave_up = std::string(error.what()).find("for rank 0 and gave up") != std::string::npos;
    }
  } else {
    std::vector<MPI_Request> none;
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::seconds(3)) session().await(none, "nothing");
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
  }
  session().await({&request, 1}, "all ranks");
  CHECK(gave_up == (session().rank() != 0));
}

}  // namespace tree_attn::test
