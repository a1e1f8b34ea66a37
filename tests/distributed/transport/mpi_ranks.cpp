// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks over MPI, and their transport: over the communicator of the job, and over others.
#include "distributed/transport/mpi_transport.hpp"
#include "tests/support/check_ranks.hpp"
#include "tests/support/mpi_test_session.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <limits>
#include <numeric>

namespace tree_attn::test {
namespace {

/// Half of the ranks of the job, those of one parity, in reverse order.
class Half {
 public:
  explicit Half(const MpiRanks& all) { MPI_Comm_split(all.comm(), all.rank() % 2, -all.rank(), &comm_); }
  ~Half() { MPI_Comm_free(&comm_); }
  Half(const Half&) = delete;
  Half& operator=(const Half&) = delete;
  MPI_Comm comm() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Elements that go around the ring come back.
void check_ring(const MpiRanks& ranks) {
  const int rank = ranks.rank(), p = ranks.size();
  MpiTransport transport(ranks, Topology::pretend(p, 1));
  std::vector<float> elements(10000), received(elements.size());
  std::iota(elements.begin(), elements.end(), static_cast<float>(rank));
  for (int hop = 0; p > 1 && hop < p; ++hop) {
    transport.receive(std::as_writable_bytes(std::span(received)), (rank + p - 1) % p);
    transport.send(std::as_bytes(std::span(elements)), (rank + 1) % p);
    transport.progress();
    transport.wait();
    elements.swap(received);
  }
  CHECK(elements[0] == static_cast<float>(rank));
  CHECK(elements[9999] == static_cast<float>(rank + 9999));
  CHECK(transport.traffic().messages == (p > 1 ? p : 0));
}

}  // namespace

TEST_CASE("mpi ranks: reductions and gathering") { check_reductions(session().ranks()); }

TEST_CASE("mpi ranks: an error on one rank is an error on all, in the same words") { check_agreement(session().ranks()); }

TEST_CASE("mpi ranks: ranks that share memory are one node, pretended nodes are consecutive ranks") {
  const MpiRanks& ranks = session().ranks();
  const Topology found = ranks.topology(0), pretended = ranks.topology(2);
  CHECK(found.size() == ranks.size());
  CHECK(found.n_nodes() == 1);
  CHECK(pretended.n_nodes() == (ranks.size() + 1) / 2);
  CHECK(pretended.node_of(ranks.rank()) == ranks.rank() / 2);
}

TEST_CASE("mpi transport: elements that go around the ring come back") { check_ring(session().ranks()); }

TEST_CASE("mpi ranks: any communicator will do, with ranks of its own") {
  const Half half(session().ranks());
  constexpr double kTimeout = 60;
  const MpiRanks ranks(half.comm(), kTimeout);
  CHECK(ranks.size() == (session().ranks().size() + 1 - session().ranks().rank() % 2) / 2);
  check_reductions(ranks);
  check_agreement(ranks);
  CHECK(ranks.topology(0).n_nodes() == 1);
  check_ring(ranks);
}

TEST_CASE("mpi ranks: without a deadline, collectives block in MPI, with the same results") {
  const MpiRanks ranks(session().ranks().comm(), std::numeric_limits<double>::infinity());
  CHECK_FALSE(ranks.deadline().is_limited());
  CHECK(session().ranks().deadline().is_limited());
  check_reductions(ranks);
  check_agreement(ranks);
  CHECK(ranks.topology(0).n_nodes() == 1);
  ranks.barrier();
  check_ring(ranks);
}

TEST_CASE("mpi ranks: more bytes than MPI counts are sent in parts, or refused with their number") {
  // Pages of a mapping without memory: nothing reads them on a communicator of one rank.
  constexpr std::size_t kBytes = 3'000'000'000;
  void* const pages = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  const std::span<std::byte> bytes(static_cast<std::byte*>(pages), kBytes);
  for (const double timeout : {60.0, std::numeric_limits<double>::infinity()}) {
    const MpiRanks alone(MPI_COMM_SELF, timeout);
    CHECK_NOTHROW(alone.broadcast(bytes, 0, "a test"));
    CHECK_NOTHROW(alone.broadcast({}, 0, "a test"));
    CHECK_THROWS_WITH_AS(alone.all_gather(bytes, bytes, "a test"),
                         "MPI_Allgather: 3000000000 bytes per rank are more than 2147483647", TransportError);
  }
  ::munmap(pages, kBytes);
}

TEST_CASE("mpi ranks: a message that never comes is an error that names the rank and what it did") {
  const MpiRanks& all = session().ranks();
  const MpiRanks ranks(all.comm(), 0.2);
  ranks.doing("in a test");
  float element = 0;
  if (all.rank() == 0) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Irecv(&element, 1, MPI_FLOAT, MPI_ANY_SOURCE, 5, ranks.comm(), &request);
    CHECK_THROWS_WITH_AS(ranks.await({&request, 1}, "a message"), "rank 0 waited 0.2 s for a message in a test and gave up",
                         TransportError);
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  all.barrier();
}

TEST_CASE("mpi transport: a message of another length is an error that names both lengths and both ranks") {
  const MpiRanks& all = session().ranks();
  if (all.size() < 2) return;
  constexpr std::size_t kPart = MpiTransport::kMaxMessageBytes;
  struct Lengths {
    std::size_t sent, expected;
    std::string_view error;  ///< begins like that: a library need not say how long a message is that has no room
  };
  std::vector<Lengths> cases{{12, 40'000, "rank 1 expected 40000 bytes from rank 0 and got 12"},
                             {8000, 40'000, "rank 1 expected 40000 bytes from rank 0 and got 8000"},
                             {40'000, 39'999, "rank 1 expected 39999 bytes from rank 0 and got "}};
  // In parts: the first says how many follow.
  if (all.size() == 2) {
    cases.insert(
        cases.end(),
        {{kPart, kPart + 1, "rank 1 expected 67108865 bytes from rank 0 and got 67108864"},
         {kPart + 1, kPart, "rank 1 expected 67108864 bytes from rank 0 and got "},
         {kPart + 1, kPart + 2, "rank 1 expected 1 bytes, a part of 67108866, from rank 0 and got 0"},
         {kPart + 5, kPart + 2, "rank 1 expected 1 bytes, a part of 67108866, from rank 0 and got "},
         {2 * kPart, 4 * kPart, "rank 1 expected 67108867 bytes, a part of 268435456, from rank 0 and got 67108865"},
         {6 * kPart, 2 * kPart, "rank 1 expected 67108865 bytes, a part of 134217728, from rank 0 and got "}});
  }
  for (const double timeout : {60.0, std::numeric_limits<double>::infinity()}) {
    for (const auto& [sent, expected, error] : cases) {
      CAPTURE(timeout);
      CAPTURE(sent);
      CAPTURE(expected);
      // Stays: nobody receives some of the parts, and MPI may read them later. Pages that were not written take no memory.
      void* const pages =
          ::mmap(nullptr, 6 * kPart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      REQUIRE(pages != MAP_FAILED);
      const std::span<std::byte> bytes(static_cast<std::byte*>(pages), 6 * kPart);
      const MpiRanks ranks(all.comm(), timeout);
      {
        MpiTransport transport(ranks, Topology::pretend(ranks.size(), ranks.size()));
        if (ranks.rank() == 0) transport.send(bytes.first(sent), 1);
        if (ranks.rank() == 1) {
          transport.receive(bytes.first(expected), 0);
          std::string line;
          try {
            transport.wait();
          } catch (const TransportError& thrown) {
            line = thrown.what();
          }
          CAPTURE(line);
          CHECK(line.starts_with(error));
        }
      }
      all.barrier();
    }
  }
}

}  // namespace tree_attn::test
