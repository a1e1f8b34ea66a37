// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks over MPI, and their transport: over the communicator of the job, and over others.
#include "distributed/transport/mpi_transport.hpp"
#include "tests/support/check_ranks.hpp"
#include "tests/support/mpi_test_session.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

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

/// A time limit that holds from some moment on.
class LaterLimit : public Deadline {
 public:
  using Deadline::Deadline;
  void poll(const FindPending& find) override {
    if (has_begun) Deadline::poll(find);
  }
  bool has_begun = false;
};

/// Pages that nothing writes, which take no memory. Never unmapped: MPI may still read parts of messages that are not
/// received.
std::span<std::byte> unwritten(std::size_t n_bytes) {
  void* const pages = ::mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  return {static_cast<std::byte*>(pages), n_bytes};
}

/// Every rank gets what its left neighbour sends.
void check_messages(const MpiRanks& ranks) {
  const int rank = ranks.rank(), p = ranks.size(), left = (rank + p - 1) % p;
  MpiTransport transport(ranks, Topology::pretend(p, 1));
  const std::vector<int> sent(10000, rank);
  std::vector<int> received(sent.size());
  transport.receive(std::as_writable_bytes(std::span(received)), left);
  transport.send(std::as_bytes(std::span(sent)), (rank + 1) % p);
  transport.progress();
  transport.wait();
  CHECK(received == std::vector<int>(sent.size(), left));
  CHECK(transport.traffic().messages == 1);
}

}  // namespace

TEST_CASE("mpi ranks: reductions, agreement and messages, over any communicator, with a deadline and without") {
  const Half half(session().ranks());
  const MpiRanks of_half(half.comm(), std::numeric_limits<double>::infinity());
  CHECK(session().ranks().deadline().is_limited());
  CHECK_FALSE(of_half.deadline().is_limited());
  CHECK(of_half.size() == (session().ranks().size() + 1 - session().ranks().rank() % 2) / 2);
  for (const MpiRanks* const ranks : {&session().ranks(), &of_half}) {
    check_reductions(*ranks);
    check_agreement(*ranks);
    check_messages(*ranks);
    // Ranks that share memory are one node, pretended nodes are consecutive ranks.
    const Topology found = ranks->topology(0), pretended = ranks->topology(2);
    CHECK(found.size() == ranks->size());
    CHECK(found.n_nodes() == 1);
    CHECK(pretended.n_nodes() == (ranks->size() + 1) / 2);
    CHECK(pretended.node_of(ranks->rank()) == ranks->rank() / 2);
  }
}

TEST_CASE("mpi ranks: a broadcast in parts has every byte, and one of none is no wait") {
  const MpiRanks& all = session().ranks();
  constexpr std::size_t kPart = std::size_t{1} << 24;
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, kPart, kPart + 1, std::size_t{20'000'000}}) {
    for (const int root : {0, all.size() - 1}) {
      CAPTURE(n);
      const auto byte = [&](std::size_t i) { return static_cast<std::byte>((i * 2654435761u >> 16) + n + i / kPart); };
      std::vector<std::byte> bytes(n, std::byte{0xEE});
      for (std::size_t i = 0; all.rank() == root && i < n; ++i) bytes[i] = byte(i);
      all.broadcast(bytes, root, "a test");
      std::size_t n_wrong = 0;
      for (std::size_t i = 0; i < n; ++i) n_wrong += bytes[i] != byte(i);
      CHECK(n_wrong == 0);
    }
  }
}

TEST_CASE("mpi ranks: more bytes than MPI counts are refused with their number") {
  if (session().ranks().rank() != 0) return;
  const std::span<std::byte> bytes = unwritten(3'000'000'000);
  const MpiRanks alone(MPI_COMM_SELF, 60);
  CHECK_THROWS_WITH_AS(alone.all_gather(bytes, bytes, "a test"),
                       "MPI_Gather: 3000000000 bytes per rank are more than 2147483647", TransportError);
}

TEST_CASE("mpi ranks: no communicator, and one between two groups, are refused") {
  CHECK_THROWS_WITH_AS(MpiRanks(MPI_COMM_NULL, 60), "MpiRanks: the communicator is MPI_COMM_NULL", std::invalid_argument);
  const MpiRanks& all = session().ranks();
  if (all.size() < 2) return;
  // The first rank of each half is the last of its parity.
  const Half half(all);
  const int last = all.size() - 1, first_of_other = all.rank() % 2 == last % 2 ? last - 1 : last;
  MPI_Comm between = MPI_COMM_NULL;
  MPI_Intercomm_create(half.comm(), 0, all.comm(), first_of_other, 9, &between);
  CHECK_THROWS_WITH_AS(MpiRanks(between, 60), "MpiRanks: the communicator is an inter-communicator", std::invalid_argument);
  MPI_Comm_free(&between);
}

TEST_CASE("mpi ranks: what MPI refuses names the call, and has the code") {
  try {
    check_mpi(MPI_ERR_COUNT, "MPI_Isend");
    FAIL("no error");
  } catch (const TransportError& error) {
    CHECK(std::string_view(error.what()).starts_with("MPI_Isend failed: "));
    CHECK(error.kind == TransportError::Kind::kLibrary);
    CHECK(error.code == MPI_ERR_COUNT);
  }
}

TEST_CASE("mpi ranks: after a wait that gave up, all is refused in one line") {
  const MpiRanks& all = session().ranks();
  const MpiRanks ranks(all.comm(), 60);
  const std::unique_ptr<Transport> over_mpi = ranks.open_transport(Topology::pretend(all.size(), 1)),
                                   shared = ranks.open_shared_transport(Topology::pretend(all.size(), all.size()));
  CHECK(ranks.can_meet());
  CHECK_NOTHROW(ranks.check());
  ranks.barrier();
  ranks.give_up();
  CHECK_FALSE(ranks.can_meet());
  CHECK_THROWS_AS(over_mpi->check(), TransportError);
  check_refusal<TransportError>(ranks, {over_mpi.get(), shared.get()},
                                "rank " + std::to_string(all.rank()) + " has given up before; make new MpiRanks");
}

TEST_CASE("mpi ranks: a duplicate is freed on all ranks, or on none if one has given up") {
  const MpiRanks& all = session().ranks();
  // MPI tells when it frees a communicator with an attribute; one that stays may be freed when MPI ends.
  static std::array<int, 2> n_freed;
  const auto count = [](MPI_Comm, int, void* n, void*) { return ++*static_cast<int*>(n), MPI_SUCCESS; };
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, count, &key, nullptr);
  for (const bool has_given_up : {false, true}) {
    CAPTURE(has_given_up);
    {
      const MpiRanks ranks(all.comm(), 60);
      MPI_Comm_set_attr(ranks.comm(), key, &n_freed[has_given_up]);
      if (has_given_up && all.rank() == all.size() - 1) ranks.give_up();
    }
    CHECK(n_freed[has_given_up] == (has_given_up ? 0 : 1));
  }
  MPI_Comm_free_keyval(&key);
}

TEST_CASE("mpi ranks: a rank that does not come ends the waits of the others within the deadline, wherever they wait") {
  const MpiRanks& all = session().ranks();
  if (all.size() < 2) return;
  constexpr double kShort = 0.2;
  const bool is_missing = all.rank() == all.size() - 1;
  const std::string start = "rank " + std::to_string(all.rank()) + " waited 0.2 s for ";
  using Wait = std::pair<const char*, std::function<void(const MpiRanks&)>>;
  for (const auto& [what, wait] :
       {Wait{"arrive", [](const MpiRanks& ranks) { ranks.barrier(); }},
        {"arrive", [](const MpiRanks& ranks) { static_cast<void>(ranks.topology(0)); }},
        {"open shared memory", [](const MpiRanks& ranks) {
           static_cast<void>(ranks.open_shared_transport(Topology::pretend(ranks.size(), ranks.size())));
         }}}) {
    LaterLimit limit(all.rank(), kShort);
    const MpiRanks ranks(all.comm(), limit);
    limit.has_begun = true;
    if (!is_missing)
      CHECK(message<TransportError>([&] { wait(ranks); }).ends_with(start + "all ranks to " + what + " and gave up"));
    all.barrier();
  }
  // A duplicate that was begun has to be begun on every rank: the missing one comes late.
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(all.comm(), &comm);
  const auto error_of_new = [&] { return message<TransportError>([&] { const MpiRanks ranks(comm, kShort); }); };
  if (!is_missing) CHECK(error_of_new() == start + "all ranks to duplicate the communicator and gave up");
  all.barrier();
  if (is_missing) CHECK(error_of_new().starts_with(start));
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
  for (const auto& [sent, expected, error] : cases) {
    CAPTURE(sent);
    CAPTURE(expected);
    const std::span<std::byte> bytes = unwritten(6 * kPart);
    const MpiRanks ranks(all.comm(), 60);
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
          CHECK(thrown.kind == TransportError::Kind::kLength);
          CHECK(thrown.rank == 1);
          CHECK(thrown.peer == 0);
        }
        CAPTURE(line);
        CHECK(line.starts_with(error));
      }
    }
    all.barrier();
  }
}

}  // namespace tree_attn::test
