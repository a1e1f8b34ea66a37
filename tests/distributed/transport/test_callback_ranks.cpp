// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks over functions of the program: reductions, attention with the bits of other ranks, deadlines and failures.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/callback_ranks.hpp"
#include "distributed/transport/callback_shared_transport.hpp"
#include "tests/support/check_ranks.hpp"
#include "tests/support/exchange_messages.hpp"
#include "tests/support/mail_callbacks.hpp"
#include "tests/support/message.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensor_files.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// Stands in the place of that of the C library: a folder "full" has no room, and one "limitless" no limit.
extern "C" int statvfs(const char* path, struct statvfs* room) noexcept {
  static const auto of_library = reinterpret_cast<decltype(&statvfs)>(dlsym(RTLD_NEXT, "statvfs"));
  const int status = of_library(path, room);
  const bool is_full = std::string_view(path).ends_with("/full");
  if (is_full || std::string_view(path).ends_with("/limitless")) room->f_bavail = 0, room->f_blocks = is_full;
  return status;
}

namespace tree_attn::test::callback_ranks_test {
namespace {

constexpr double kTimeout = 20;
constexpr AttentionShape kShape{.batch = 1, .heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 6};

std::unique_ptr<CallbackRanks> ranks_of(MailOffice& office, int rank, int size, double timeout = kTimeout) {
  return std::make_unique<CallbackRanks>(std::make_unique<MailCallbacks>(office, rank, size), rank, size, timeout);
}

std::vector<float> draw(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& each : x) each = normal(random);
  return x;
}

/// Output and lse of 3 queries after 300 keys, on one rank.
std::vector<float> decoded(std::unique_ptr<const Ranks> ranks, const char* algorithm, bool shares_memory) {
  Attention layer(std::move(ranks), kShape, {.algorithm = algorithm, .shares_memory = shares_memory});
  CHECK(layer.transport().name() == (shares_memory ? "shared" : "callbacks"));
  const std::vector<float> k = draw(300 * 16, 1), v = draw(300 * 12, 2), q = draw(3 * 32, 3);
  layer.append(0, TensorView::dense(k.data(), DType::F32, {1, 2, 300, 8}),
               TensorView::dense(v.data(), DType::F32, {1, 2, 300, 6}));
  const TensorView queries = TensorView::dense(q.data(), DType::F32, {1, 4, 3, 8});
  layer.start(queries, {.causal = true});
  layer.progress();
  const OutputView output = layer.finish();
  std::vector<float> all(output.out.begin(), output.out.end());
  all.insert(all.end(), output.lse.begin(), output.lse.end());
  return all;
}

}  // namespace

TEST_CASE("callback ranks: reductions, gathering and agreement are those of all ranks") {
  for (const int p : {1, 2, 5}) {
    MailOffice office;
    run_mail_threads(p, [&](int rank) {
      const auto ranks = ranks_of(office, rank, p, std::numeric_limits<double>::infinity());
      check_reductions(*ranks);
      check_agreement(*ranks);
      CHECK(ranks->topology(0).n_nodes() == 1);  // threads of one host
      CHECK(ranks->topology(2).n_nodes() == (p + 1) / 2);
      CHECK(ranks->is_one_process() == (p == 1));
    });
    CHECK((office.n_calls == 0) == (p == 1));
  }
}

TEST_CASE("callback ranks: attention has the bits of one rank, by every algorithm that keeps them") {
  for (const Algorithm& algorithm : algorithms()) {
    if (!algorithm.keeps_bits) continue;
    CAPTURE(algorithm.name);
    std::vector<float> alone;
    for (const int p : {1, 2, 3}) {
      for (const bool shares : {false, true}) {
        MailOffice office;
        run_mail_threads(p, [&](int rank) {
          const auto here = decoded(ranks_of(office, rank, p), std::string(algorithm.name).c_str(), shares);
          if (p == 1) alone = here;
          CHECK(same_bits(here, alone));
        });
      }
    }
  }
}

TEST_CASE("callback ranks: messages that one rank has closed are refused on every rank, until all have closed them") {
  const std::string line = "Attention: ranks 0 and 1 differ in messages that objects hold open (1 and 0)";
  for (const bool shares : {false, true}) {
    MailOffice office;
    run_mail_threads(2, [&](int rank) {
      auto messages = std::make_shared<Messages>(ranks_of(office, rank, 2));
      const auto open = [&] {
        return std::make_unique<Attention>(messages, kShape, AttentionSetup{.shares_memory = shares});
      };
      std::unique_ptr<Attention> first = open();
      if (rank == 1) first.reset();
      for (int i = 0; i < 2; ++i) CHECK(message<InputError>(open) == line);
      // Others are not, and neither is an open after all have closed.
      const Attention apart(messages, kShape, {.ranks_per_node = 1, .shares_memory = shares});
      first.reset();
      first = open();
      CHECK(&open()->transport() == &first->transport());
      CHECK(messages->number_of({.shares_memory = shares}) == 3);
    });
  }
}

TEST_CASE("callback ranks: a wait that is too long names the ranks, and the object is not used again") {
  MailOffice office;
  run_mail_threads(3, [&](int rank) {
    const auto ranks = ranks_of(office, rank, 3, 0.1);
    const auto transport = ranks->open_transport(Topology::pretend(3, 3));
    if (rank != 1) return;
    ranks->doing("in a test");
    float x = 0;
    const auto bytes = std::as_writable_bytes(std::span(&x, 1));
    transport->receive(bytes, 0), transport->receive(bytes, 2), transport->receive(bytes, 0);
    CHECK(message<TransportError>([&] { transport->wait(); }) ==
          "rank 1 waited 0.1 s for a message of ranks 0, 2 in a test and gave up");
    CHECK(transport->has_messages_in_flight());
    const int n_calls = office.n_calls;
    const std::string again =
        "rank 1 has given up before, and its group is not used again: open another object on a new group";
    check_refusal<TransportError>(*ranks, {transport.get()}, again);
    CHECK(message<TransportError>([&] { transport->wait(); }) == again);
    CHECK(office.n_calls == n_calls);
  });
}

TEST_CASE("callback ranks: what a callback throws is nested in the error, and no callback is called again") {
  // Every call of rank 0 fails once, from opening to the end.
  for (const bool shares : {false, true}) {
    int n = 0;
    for (bool has_failed = true; has_failed; ++n) {
      has_failed = false;
      MailOffice office;
      office.fails_after = n;
      const auto body = [&](int rank) {
        try {
          decoded(ranks_of(office, rank, 2, rank == 0 ? kTimeout : 0.2), "two-level", shares);
        } catch (const TransportError& error) {
          if (rank == 1) return;  // it waited
          has_failed = true;
          CHECK(error.kind == TransportError::Kind::kCallback);
          CHECK(error.what() == std::string("rank 0: a callback has failed: the cable is cut"));
          CHECK_THROWS_AS(std::rethrow_if_nested(error), std::domain_error);
        }
      };
      run_mail_threads(2, body);
      CHECK(office.n_too_late == 0);
    }
    CHECK(n > 10);
  }
  // Nor by ranks that are used again.
  MailOffice office;
  office.fails_after = 0;
  const auto ranks = ranks_of(office, 0, 2, 0.1);
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(ranks->barrier(), TransportError);
  CHECK(office.n_too_late == 0);
}

TEST_CASE("callback ranks: through shared memory messages of every length arrive unchanged, beside those of callbacks") {
  constexpr std::size_t kPart = Mailboxes::kPartBytes, kMax = Mailboxes::kMaxBytes;
  for (const int per_node : {2, 4}) {
    MailOffice office;
    run_mail_threads(4, [&](int rank) {
      auto callbacks = std::make_unique<MailCallbacks>(office, rank, 4);
      const MailCallbacks& mail = *callbacks;
      const CallbackRanks ranks(std::move(callbacks), rank, 4, kTimeout);
      CallbackSharedTransport transport(ranks, Topology::pretend(4, per_node));
      std::size_t number = 0;
      int n_long = 0;
      for (const std::size_t n : {std::size_t{1}, kPart, kPart + 1, 2 * kPart + 1, 5 * kPart, kMax, kMax + 1}) {
        CHECK(exchange_messages(transport, {n, 3, 2 * n}, number += 3) == 0);
        n_long += (n > kMax) + (2 * n > kMax);
      }
      CHECK(mail.n_sends() == n_long * (per_node - 1) + 21 * (4 - per_node));
      CHECK(!transport.has_messages_in_flight());
      ranks.barrier();
    });
  }
}

TEST_CASE("callback ranks: progress() moves messages through shared memory before anyone waits") {
  MailOffice office;
  run_mail_threads(2, [&](int rank) {
    const auto ranks = ranks_of(office, rank, 2);
    const auto transport = ranks->open_shared_transport(Topology::pretend(2, 2));
    std::vector<std::byte> sent(4 * Mailboxes::kPartBytes, std::byte{5}), received(sent.size());
    if (rank == 0) transport->send(sent, 1);
    if (rank == 1) transport->receive(received, 0);
    for (int i = 0; i < 10; ++i) transport->progress(), ranks->barrier();
    CHECK(transport->have_arrived());
    CHECK((rank == 0 || received == sent));
    transport->wait();
  });
}

TEST_CASE("callback ranks: shared memory that a node has not, or cannot have, is refused on every rank in one line") {
  MailOffice office;
  const Scratch scratch;
  const std::string full = scratch.path("full"), folder = scratch.path("limitless");
  std::filesystem::create_directory(full), std::filesystem::create_directory(folder);
  const std::string without =
      "send without shared memory: --transport mpi, shares_memory = false, in C no_shared_memory = 1, in Python "
      "shared_memory=False";
  run_mail_threads(3, [&](int rank) {
    const auto ranks = ranks_of(office, rank, 3);
    const auto open = [&](int per_node, const char* at) {
      return message<InputError>([&] { CallbackSharedTransport(*ranks, Topology::pretend(3, per_node), at); });
    };
    CHECK(open(3, full.c_str()) == "rank 0: shared memory: the 3 ranks of a node need " +
                                       std::to_string(6 * sizeof(Mailboxes::Mailbox)) + " bytes, and " + full +
                                       " has 0; give it more, or " + without);
    const std::string no_folder = open(3, "/etc/passwd");
    CHECK_MESSAGE(no_folder.starts_with("rank 0: shared memory: /etc/passwd/tree_attn-"), no_folder);
    CHECK_MESSAGE(no_folder.ends_with(": Not a directory; " + without), no_folder);
    // Open without shared memory where none is needed, and with it after a refusal.
    CHECK(CallbackSharedTransport(*ranks, Topology::pretend(3, 1), full).name() == "shared");
    CallbackSharedTransport apart(*ranks, Topology::pretend(3, 3), "/nowhere");
    CallbackSharedTransport transport(*ranks, Topology::pretend(3, 3), folder);
    ranks->barrier();
    CHECK(std::filesystem::is_empty(folder));
    CHECK(exchange_messages(apart, {9}, 1) == 0);
    CHECK(exchange_messages(transport, {9}, 1) == 0);
    ranks->barrier();
  });
}

TEST_CASE("callback ranks: ranks that have two folders of one file system share no memory") {
  MailOffice office;
  const Scratch folders[2];
  run_mail_threads(2, [&](int rank) {
    auto callbacks = std::make_unique<MailCallbacks>(office, rank, 2);
    const MailCallbacks& mail = *callbacks;
    const CallbackRanks ranks(std::move(callbacks), rank, 2, kTimeout);
    CallbackSharedTransport transport(ranks, Topology::pretend(2, 2), folders[rank].folder());
    CHECK(exchange_messages(transport, {9}, 1) == 0);
    CHECK(mail.n_sends() == 1);
    ranks.barrier();
  });
}

TEST_CASE("callback ranks: a message through shared memory that is late, or of another length, gives up the ranks") {
  for (const bool is_late : {true, false}) {
    MailOffice office;
    run_mail_threads(2, [&](int rank) {
      const auto ranks = ranks_of(office, rank, 2, is_late ? 0.1 : kTimeout);
      const auto transport = ranks->open_shared_transport(Topology::pretend(2, 2));
      std::vector<std::byte> bytes(40'000);
      if (rank == 0 && !is_late) transport->send(std::span(bytes).first(12), 1), transport->wait();
      if (rank == 0) return;
      transport->receive(bytes, 0);
      CHECK(message<TransportError>([&] { transport->wait(); }) ==
            (is_late ? "rank 1 waited 0.1 s for a message of rank 0 and gave up"
                     : "rank 1 expected 40000 bytes from rank 0 and got 12"));
      CHECK(transport->has_messages_in_flight());
      CHECK(message<TransportError>([&] { ranks->barrier(); }).starts_with("rank 1 has given up before"));
    });
  }
  // So does an object that ends before they are complete.
  MailOffice office;
  run_mail_threads(2, [&](int rank) {
    const auto ranks = ranks_of(office, rank, 2);
    auto transport = ranks->open_shared_transport(Topology::pretend(2, 2));
    std::byte byte{};
    if (rank == 1) transport->receive({&byte, 1}, 0);
    transport.reset();
    CHECK((message<TransportError>([&] { ranks->check(), throw TransportError(TransportError::Kind::kLibrary, "none"); }) ==
           "none") == (rank == 0));
  });
}

TEST_CASE("callback ranks: a timeout is not negative, and a rank is one of all") {
  MailOffice office;
  CHECK_THROWS_AS(ranks_of(office, 0, 2, -1), std::invalid_argument);
  CHECK_THROWS_AS(ranks_of(office, 2, 2), std::out_of_range);
}

}  // namespace tree_attn::test::callback_ranks_test
