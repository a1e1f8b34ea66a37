// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rank refuses its arguments: all learn it at once, and the object lives on. A rank that does not call is found
/// by the deadline.
#include "distributed/transport/thread_transport.hpp"
#include "tests/distributed/interface/refusals.hpp"
#include "tests/support/sweep.hpp"

namespace tree_attn::test::refusals {

TEST_CASE("refusals: an argument that one rank of three refuses is refused by all at once, and the next step is right") {
  run_threads(Topology::pretend(3, 3), 60, [&](const ThreadRanks& ranks, ThreadTransport&) {
    check_all(ranks, takes_all_cases() ? 100 : 5, [&](const AttentionShape& shape, const AttentionSetup& setup) {
      return std::make_unique<Attention>(ranks, shape, setup);
    });
  });
}

TEST_CASE("refusals: likewise over a transport of the program") {
  run_threads(Topology::pretend(3, 3), 60, [&](const ThreadRanks& ranks, ThreadTransport& transport) {
    check_all(ranks, 1, [&](const AttentionShape& shape, const AttentionSetup& setup) {
      return std::make_unique<Attention>(transport, shape, setup);
    });
  });
}

TEST_CASE("refusals: ranks that call different functions are told at once which, and the next step is right") {
  const Inputs& in = inputs();
  const std::vector<std::pair<std::string_view, Call>> calls{{"Decoder::step", step(in.q)},
                                                             {"Attention::combine", combine(in.o, in.lse)},
                                                             {"Attention::use", use("gather")},
                                                             {"Attention::append", append(0, in.more(in.k), in.more(in.v))}};
  run_threads(Topology::pretend(3, 3), 60, [&](const ThreadRanks& ranks, ThreadTransport&) {
    Attention attention(ranks, kShape, kPages.setup);
    fill(attention);
    const DecodeOutput expected = attention.step(in.q).copy();
    for (const auto& [first, call] : calls) {
      for (const auto& [second, other] : calls) {
        if (first == second) continue;
        CHECK(message<InputError>([&] { (ranks.rank() == 2 ? other : call)(attention); }) ==
              "rank 0 has called " + std::string(first) + ", and rank 2 " + std::string(second));
      }
    }
    CHECK(same_bits(attention.step(in.q).copy(), expected));
  });
}

TEST_CASE("refusals: a rank that does not call is found by the deadline, whatever the others call") {
  const Inputs& in = inputs();
  const double limit = takes_all_cases() ? 2 : 0.3;
  const std::vector<Call> calls{step(in.q),
                                start(in.q),
                                combine(in.o, in.lse),
                                append(0, in.more(in.k), in.more(in.v)),
                                use("gather"),
                                reshard(dealt_ranges(2)),
                                refuse(),
                                [](Attention& attention) { attention.refuse_append("k is torn"); }};
  for (const Call& call : calls) {
    run_threads(Topology::pretend(3, 3), limit, [&](const ThreadRanks& ranks, ThreadTransport&) {
      Attention attention(ranks, kShape, kPages.setup);
      fill(attention);
      if (ranks.rank() == 1) return;
      const auto begin = std::chrono::steady_clock::now();
      const std::string line = message<TransportError>([&] { call(attention); });
      CHECK_MESSAGE(line.find("gave up") != line.npos, line);
      CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < limit + 5);
    });
  }
}

TEST_CASE("refusals: alone they keep their types") {
  const Inputs& in = inputs();
  Attention attention(kShape, kPages.setup);
  fill(attention);
  CHECK_THROWS_AS(attention.step(without_data(in.q)), std::invalid_argument);
  CHECK_THROWS_AS(attention.combine(without_data(in.o), in.lse), std::invalid_argument);
  CHECK_THROWS_AS(attention.append(2, in.more(in.k), in.more(in.v)), std::out_of_range);
  CHECK_THROWS_AS(attention.append(0, with(in.more(in.k), 2, -1), with(in.more(in.v), 2, -1)), std::out_of_range);
  CHECK_THROWS_AS(attention.use("none"), InputError);
  CHECK_THROWS_AS(attention.reshard(std::vector<KeyRange>()), std::invalid_argument);
  CHECK(attention.lengths()[0] == kKeys);
  CHECK_THROWS_WITH_AS(attention.refuse("a line"), "a line", std::invalid_argument);
  CHECK_THROWS_WITH_AS(attention.refuse_append("a line"), "a line", std::invalid_argument);
  CHECK_THROWS_WITH_AS(Attention(kShape, {.refusal = "a line"}), "a line", std::invalid_argument);
}

}  // namespace tree_attn::test::refusals
