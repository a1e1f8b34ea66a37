// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks as threads: what this transport promises to the tests that stand on it, and its world.
#include "distributed/transport/thread_transport.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/check_ranks.hpp"
#include "tests/support/few_threads.hpp"
#include "tests/support/message.hpp"
#include "tests/support/rank_group.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace tree_attn::test {
namespace {

/// Long enough for a loaded machine under a sanitizer, short enough to see a hang.
constexpr double kTimeout = 20;

class ThreadRankGroup : public RankGroup {
 public:
  using RankGroup::RankGroup;
  std::vector<RankResult> run(const Topology& topology, const std::function<DecodeOutput(Transport&)>& body) override {
    std::vector<RankResult> results(static_cast<std::size_t>(size()));
    run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
      RankResult& mine = results[static_cast<std::size_t>(transport.rank())];
      mine.output = body(transport);
      mine.traffic = transport.traffic();
    });
    return results;
  }
};

std::span<std::byte> bytes_of(float& number) { return std::as_writable_bytes(std::span(&number, 1)); }

}  // namespace

std::vector<RankGroup*> rank_groups(const std::vector<int>& sizes) {
  static std::map<int, std::unique_ptr<RankGroup>> made;
  std::vector<RankGroup*> result;
  for (const int size : sizes) {
    std::unique_ptr<RankGroup>& rank_group = made[size];
    if (!rank_group) rank_group = std::make_unique<ThreadRankGroup>(size);
    result.push_back(rank_group.get());
  }
  return result;
}

TEST_CASE("thread ranks: reductions and gathering, and an error on one rank is an error on all, in the same words") {
  for (const int p : {1, 2, 3, 8}) {
    run_threads(Topology::pretend(p, 2), kTimeout, [](const ThreadRanks& ranks, ThreadTransport&) {
      check_reductions(ranks);
      check_agreement(ranks);
    });
  }
}

TEST_CASE("agreement: texts that differ past what a value has room for are told apart, and 48 letters are printed whole") {
  run_threads(Topology::pretend(2, 2), kTimeout, [](const ThreadRanks& ranks, ThreadTransport&) {
    const std::string own(1, static_cast<char>('a' + ranks.rank()));
    const auto error_of = [&](const std::string& text) {
      return message<InputError>([&] { require_equal(ranks, "here", "all", std::array{Field{"it", text}}); });
    };
    const std::string most(47, '1'), cut(28, '1');
    CHECK(error_of(most + "1") == "");
    CHECK(error_of(most + own) == "here: ranks 0 and 1 differ in it (" + most + "a and " + most + "b)");
    CHECK(error_of(most + "12") == "");
    CHECK(error_of(most + "1" + own).starts_with("here: ranks 0 and 1 differ in it (" + cut + "... "));
  });
}

TEST_CASE("thread ranks: nodes are those of the topology they were started with, or pretended") {
  const Topology given({7, 3, 7, 3, 3});
  run_threads(given, kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
    CHECK(ranks.topology(0).order() == given.order());
    CHECK(ranks.topology(2).n_nodes() == 3);
  });
}

TEST_CASE("thread ranks: a rank that never answers ends the others within the timeout, with what they did") {
  const std::pair<ThreadBody, std::string> waits[] = {
      {[](const ThreadRanks& ranks, ThreadTransport&) { ranks.barrier(); }, "the arrival of rank 0"},
      {[](const ThreadRanks& ranks, ThreadTransport&) { ranks.broadcast_from_root(0); }, "rank 0"},
      {[](const ThreadRanks&, ThreadTransport& transport) {
         float number = 0;
         transport.receive(bytes_of(number), 0);
         transport.wait();
       },
       "a message of rank 0"}};
  for (const auto& [wait, awaited] : waits) {
    const auto start = std::chrono::steady_clock::now();
    try {
      run_threads(Topology::pretend(2, 2), 0.2, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
        ranks.doing("in a test");
        if (ranks.rank() == 1) wait(ranks, transport);
      });
      FAIL("no error");
    } catch (const TransportError& error) {
      CHECK(error.what() == "rank 1 waited 0.2 s for " + awaited + " in a test and gave up");
      CHECK(error.kind == TransportError::Kind::kDeadline);
      CHECK(error.rank == 1);
      CHECK(error.peer == 0);
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    CHECK(waited >= std::chrono::milliseconds(200));
    CHECK(waited < std::chrono::seconds(10));
  }
}

TEST_CASE("thread transport: messages arrive in order, when waited for and not before") {
  float got[2] = {0, 0}, early = 0;
  run_threads(Topology::pretend(2, 1), kTimeout, [&](ThreadTransport& transport) {
    if (transport.rank() == 0) {
      float elements[2] = {1, 2};
      for (float& number : elements) transport.send(bytes_of(number), 1);
      elements[1] = 3;  // too early: the receiver may see it, and here it does
      transport.wait();
      CHECK(transport.traffic().messages == 2);
      CHECK(transport.traffic().bytes == 8);
      CHECK(transport.traffic().bytes_between_nodes == 8);
    } else {
      for (float& number : got) transport.receive(bytes_of(number), 0);
      early = got[0];
      transport.wait();
    }
  });
  CHECK(got[0] == 1);
  CHECK(got[1] == 3);
  CHECK(std::isnan(early));
}

TEST_CASE("thread transport: a wait has no deadline while another rank computes") {
  float got = 0;
  run_threads(Topology::pretend(3, 3), 0.3, [&](ThreadTransport& transport) {
    float number = 5;
    if (transport.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1200));  // computes
    if (transport.rank() < 2) transport.send(bytes_of(number), transport.rank() + 1);
    if (transport.rank() == 1) transport.wait();
    if (transport.rank() > 0) transport.receive(bytes_of(number), transport.rank() - 1);
    transport.wait();
    if (transport.rank() == 1) got = number;
  });
  CHECK(got == 5);
}

/// As the rank whose kernel waited for the one that fails, which still frees its memory.
TEST_CASE("thread transport: a rank that ends because of another is not what is reported, though it comes first") {
  std::latch first(1);
  const auto body = [&first](ThreadTransport& transport) {
    if (transport.rank() == 0) {
      first.count_down();
      throw OtherRankFailed("rank 0 gave up: another rank failed");
    }
    first.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    throw std::runtime_error("the reason");
  };
  CHECK_THROWS_WITH_AS(run_threads(Topology::pretend(2, 1), kTimeout, body), "rank 1: the reason", std::runtime_error);
}

TEST_CASE("thread transport: a rank that fails ends the others at once, and an error that names no rank gets its number") {
  const auto error_of = [](const auto& error) {
    return message([&] {
      run_threads(Topology::pretend(3, 3), kTimeout, [&](const ThreadRanks& ranks, ThreadTransport&) {
        if (ranks.rank() == 1) throw error;
        ranks.barrier();
      });
    });
  };
  CHECK(error_of(std::domain_error("mine")) == "mine");
  CHECK(error_of(std::runtime_error("the disk is full")) == "rank 1: the disk is full");
  CHECK(error_of(std::runtime_error("rank 1, step 2: no states")) == "rank 1, step 2: no states");
  CHECK(error_of(std::bad_alloc()) == "rank 1: not enough memory");
  CHECK(error_of(InputError("--file: no such file")) == "--file: no such file");
  CHECK(error_of(TransportError(TransportError::Kind::kLibrary, "MPI_Send failed")) == "MPI_Send failed");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // see FewThreads
TEST_CASE("thread transport: where the system starts too few threads, the ranks that did start end") {
  constexpr int kRanks = 64;
  const std::string why = message<std::runtime_error>([] {
    const FewThreads few;
    run_threads(Topology::pretend(kRanks, kRanks), std::numeric_limits<double>::infinity(),
                [](const ThreadRanks& ranks, ThreadTransport&) { ranks.barrier(); });
  });
  CAPTURE(why);
  CHECK(why.starts_with("rank "));
  CHECK(why.find(": the system started no thread for it: ") != std::string::npos);
}
#endif

TEST_CASE("thread transport: other lengths, a message too many and one never waited for are errors, and no bytes are none") {
  // Messages from rank 0 to rank 1, of one number.
  const auto run = [](std::size_t n_sent, std::size_t n_received, bool waits = true) {
    run_threads(Topology::pretend(2, 1), kTimeout, [&](ThreadTransport& transport) {
      float pair[2] = {1, 2};
      if (transport.rank() == 0) transport.send(std::as_bytes(std::span(pair).first(n_sent)), 1);
      if (transport.rank() == 1) transport.receive(std::as_writable_bytes(std::span(pair).first(n_received)), 0);
      if (waits) transport.wait();
      CHECK(transport.traffic().messages == (transport.rank() == 0 && n_sent > 0 ? 1 : 0));
    });
  };
  CHECK_THROWS_AS(run(2, 1), TransportError);
  CHECK_THROWS_AS(run(1, 0), std::logic_error);
  CHECK_THROWS_AS(run(1, 0, false), std::logic_error);
  CHECK_NOTHROW(run(0, 0));
}

}  // namespace tree_attn::test
