// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages through memory that ranks share: every length around a part, in order, from everyone to everyone.
#include "distributed/transport/shared_transport.hpp"
#include "tests/support/exchange_messages.hpp"
#include "tests/support/mpi_test_session.hpp"

#include <doctest/doctest.h>

#include <iterator>
#include <random>
#include <stdexcept>

namespace tree_attn::test {

TEST_CASE("shared transport: messages of every length around its limits arrive unchanged, and in their order") {
  constexpr std::size_t kPart = Mailboxes::kPartBytes, kMax = Mailboxes::kMaxBytes;
  const MpiRanks& ranks = session().ranks();
  for (const int per_node : {0, 1, 2, 3}) {
    CAPTURE(per_node);
    SharedTransport transport(ranks, ranks.topology(per_node));
    std::size_t number = 0;
    for (const std::size_t n : {std::size_t{1}, std::size_t{4111}, kPart - 1, kPart, kPart + 1, 2 * kPart, 2 * kPart + 1,
                                3 * kPart - 1, 5 * kPart, kMax - 1, kMax, kMax + 1}) {
      CAPTURE(n);
      CHECK(exchange_messages(transport, {n}, number++) == 0);
    }
    CHECK(transport.traffic().messages == static_cast<std::int64_t>(number) * (ranks.size() - 1));
    if (per_node == 0) CHECK(transport.traffic().bytes_between_nodes == 0);
    // Beside longer ones that go over MPI.
    std::mt19937 random(7);
    for (std::size_t round = 0; round < 30; ++round) {
      std::vector<std::size_t> lengths(1 + random() % 4);
      for (std::size_t& length : lengths) length = 1 + random() % (random() % 8 == 0 ? 1'500'000 : 4 * kPart);
      CHECK(exchange_messages(transport, lengths, 5 * round) == 0);
    }
  }
}

TEST_CASE("shared transport: progress() moves messages before anyone waits") {
  if (session().ranks().size() < 2) return;
  const MpiRanks& ranks = session().ranks();
  SharedTransport transport(ranks, ranks.topology(0));
  constexpr std::size_t kLength = 4 * Mailboxes::kPartBytes;  // twice the buffers of a mailbox
  std::vector<std::byte> sent(kLength, std::byte{5}), received(kLength);
  if (ranks.rank() == 0) transport.send(sent, 1);
  if (ranks.rank() == 1) transport.receive(received, 0);
  // No rank calls wait() before the receiver has everything.
  bool is_there = ranks.rank() != 1;
  for (int i = 0; i < 1000 && ranks.all_sum(is_there) < ranks.size(); ++i) {
    transport.progress();
    is_there = is_there || received.back() == std::byte{5};
  }
  CHECK(is_there);
  transport.wait();
  CHECK((ranks.rank() != 1 || received == sent));
}

TEST_CASE("shared transport: a message that never comes, and one that nobody takes, end at the deadline") {
  const MpiRanks& all = session().ranks();
  const MpiRanks ranks(all.comm(), 0.2);
  if (ranks.size() >= 2) {
    SharedTransport transport(ranks, ranks.topology(0));
    ranks.doing("in a test");
    std::vector<std::byte> bytes(4 * Mailboxes::kPartBytes);
    const std::string error = "rank " + std::to_string(ranks.rank()) + " waited 0.2 s for a message" +
                              (ranks.rank() == 0 ? " of rank 1" : " to rank 2") + " in a test and gave up";
    if (ranks.rank() == 0) {
      transport.receive(bytes, 1);
      CHECK_THROWS_WITH_AS(transport.wait(), error.c_str(), TransportError);
    } else if (ranks.rank() == 1 && ranks.size() > 2) {
      transport.send(bytes, 2);
      CHECK_THROWS_WITH_AS(transport.wait(), error.c_str(), TransportError);
    }
    all.barrier();
  }
}

}  // namespace tree_attn::test
