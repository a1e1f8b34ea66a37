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

TEST_CASE("refusals: beside a step that is under way a call is refused by all, and the step is done") {
  const Inputs& in = inputs();
  const std::vector<std::pair<std::string_view, Call>> calls{{"Decoder::step", step(in.q)},
                                                             {"Attention::combine", combine(in.o, in.lse)},
                                                             {"Attention::use", use("gather")},
                                                             {"Attention::reshard", reshard(dealt_ranges(1))}};
  run_threads(Topology::pretend(2, 2), 20, [&](const ThreadRanks& ranks, ThreadTransport&) {
    Attention attention(ranks, kShape, kDense.setup);
    fill(attention);
    const DecodeOutput expected = attention.step(in.q).copy();
    for (const auto& [name, call] : calls) {
      attention.start(in.q);
      CHECK(message<InputError>([&] { call(attention); }) == std::string(name) + ": a step is under way");
      CHECK(same_bits(attention.finish().copy(), expected));
    }
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
                                refuse(Refused::kAppend),
                                refuse(Refused::kMove)};
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

TEST_CASE("refusals: a rank that moves no keys tells the others, where lengths are not compared too") {
  run_threads(Topology::pretend(2, 2), 20, [&](const ThreadRanks& ranks, ThreadTransport&) {
    Attention attention(ranks, kShape, {.compares_lengths = false});
    fill(attention);
    const Call call = ranks.rank() == 1 ? refuse(Refused::kMove) : reshard(dealt_ranges(2));
    CHECK(message<InputError>([&] { call(attention); }) == "rank 1: q is on another planet");
    attention.reshard(dealt_ranges(1));
    CHECK(attention.holds(0) == (ranks.rank() == 1));
  });
}

TEST_CASE("refusals: pages of ranks with other lengths are compared before they are looked for") {
  const Inputs& in = inputs();
  run_threads(Topology::pretend(2, 2), 20, [&](const ThreadRanks& ranks, ThreadTransport&) {
    Attention attention(ranks, kShape, kPages.setup);
    fill(attention);
    if (ranks.rank() == 0) attention.release(1);
    CHECK(message<InputError>([&] { append(1, in.more(in.k), in.more(in.v))(attention); }) ==
          "Attention::append: ranks 0 and 1 differ in positions before (0 and " + std::to_string(kKeys) + ")");
    if (ranks.rank() == 1) attention.release(1), attention.share(0, 1, 0);
    CHECK(message<InputError>([&] { append(1, in.more(in.k), in.more(in.v))(attention); }) ==
          "Attention::append: ranks 0 and 1 differ in shared prefixes (0 and 1)");
    if (ranks.rank() == 0) attention.share(0, 1, 0);
    append(1, in.more(in.k), in.more(in.v))(attention);
    CHECK(attention.lengths()[1] == in.more(in.k).shape[2]);
  });
}

TEST_CASE("refusals: one-shot names the backend that has no such kernel") {
  for (const int p : {1, 2}) {
    run_threads(Topology::pretend(p, p), 20, [&](const ThreadRanks& ranks, ThreadTransport&) {
      AttentionSetup setup{.algorithm = "one-shot", .ranges = {{0, 64}, {64, kOpenEnd}}};
      if (p == 1) setup.ranges = {{0, kOpenEnd}};
      const std::string why =
          "one-shot: one kernel decodes and exchanges, and --backend cpu has none; use emulated or cuda, or another "
          "algorithm";
      CHECK(message<InputError>([&] { Attention(ranks, kShape, setup); }) == why);
      setup.algorithm = "two-level";
      Attention attention(ranks, kShape, setup);
      fill(attention);
      const DecodeOutput expected = attention.step(inputs().q).copy();
      CHECK(message<InputError>([&] { attention.use("one-shot"); }) == why);
      CHECK(same_bits(attention.step(inputs().q).copy(), expected));
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
  CHECK_THROWS_WITH_AS(attention.refuse("a line", Refused::kAppend), "a line", std::invalid_argument);
  CHECK_THROWS_WITH_AS(attention.refuse("a line", Refused::kMove), "a line", std::invalid_argument);
  CHECK_THROWS_WITH_AS(Attention(kShape, {.refusal = "a line"}), "a line", std::invalid_argument);
}

}  // namespace tree_attn::test::refusals
