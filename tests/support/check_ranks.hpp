// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The checks that every implementation of Ranks must pass, run on one of its ranks.
#pragma once

#include "distributed/transport/ranks.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace tree_attn::test {

/// Reductions of scalars, broadcast and gather.
inline void check_reductions(const Ranks& ranks) {
  const int rank = ranks.rank(), p = ranks.size();
  CHECK(ranks.all_max(std::uint64_t{10} + static_cast<std::uint64_t>(rank)) == 10 + static_cast<std::uint64_t>(p) - 1);
  CHECK(ranks.all_min(std::uint64_t{10} + static_cast<std::uint64_t>(rank)) == 10);
  CHECK(ranks.all_max(-0.5 * rank) == 0);
  CHECK(ranks.all_max(-1.0 - rank) == -1);
  CHECK(ranks.all_max(1e-3 * rank - 1) == doctest::Approx(1e-3 * (p - 1) - 1).epsilon(1e-12));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(ranks.all_max(rank == p - 1 ? nan : std::numeric_limits<double>::infinity())));
  CHECK(ranks.all_sum(-1 - rank) == -p * (p + 1) / 2);
  CHECK(ranks.all_equal(7, "a test"));
  CHECK(ranks.all_equal(rank == p - 1 ? 8 : 7, "a test") == (p == 1));
  CHECK(ranks.all_equal(rank == 0 ? 6 : 7, "a test") == (p == 1));
  CHECK(ranks.all_sum(rank) == p * (p - 1) / 2);
  CHECK(ranks.broadcast_from_root(static_cast<std::uint64_t>(rank) + 7) == 7);
  const std::vector<int> all = ranks.all_gather(3 * rank, "a test");
  REQUIRE(all.size() == static_cast<std::size_t>(p));
  for (int i = 0; i < p; ++i) CHECK(all[static_cast<std::size_t>(i)] == 3 * i);
  std::vector<int> on_root(rank == 0 ? all.size() : 0);
  const int mine = 3 * rank;
  ranks.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(on_root)), "a test");
  CHECK(on_root == (rank == 0 ? all : std::vector<int>{}));
  ranks.barrier();
}

/// An error on one rank is raised on all ranks with the same message.
inline void check_agreement(const Ranks& ranks) {
  const auto agreed = [&](const std::optional<std::string>& error) {
    return message<InputError>([&] { ranks.throw_if_any_failed(error); });
  };
  const int p = ranks.size();
  CHECK(agreed(std::nullopt) == "");
  CHECK(agreed("the same everywhere") == "the same everywhere");
  for (int failed = 0; failed < p; ++failed) {
    const std::string line = agreed(ranks.rank() == failed ? std::optional<std::string>("bad file") : std::nullopt);
    CHECK(line == (p == 1 ? "bad file" : "rank " + std::to_string(failed) + ": bad file"));
  }
  // The message is that of the first rank that failed. A message that is too long is truncated.
  CHECK(agreed("I am " + std::to_string(ranks.rank())) == (p == 1 ? "I am 0" : "rank 0: I am 0"));
  CHECK(agreed(std::string(5000, 'x')).size() == 1023);
}

/// Ranks that may not go on, and transports of them, refuse all work with one line.
template <class Error>
void check_refusal(const Ranks& ranks, const std::vector<Transport*>& transports, const std::string& line) {
  std::array<std::byte, 8> bytes{};
  const Topology topology = transports[0]->topology();
  std::vector<std::function<void()>> calls{[&] { ranks.barrier(); },
                                           [&] { ranks.broadcast(bytes, 0, "a test"); },
                                           [&] { ranks.all_sum(1); },
                                           [&] { ranks.all_gather(1, "a test"); },
                                           [&] { ranks.topology(0); },
                                           [&] { ranks.open_transport(topology); },
                                           [&] { ranks.open_shared_transport(topology); }};
  for (Transport* const each : transports) {
    calls.push_back([&bytes, each] { each->send(bytes, 0); });
    calls.push_back([&bytes, each] { each->receive(bytes, 0); });
  }
  for (const auto& call : calls) CHECK(message<Error>(call) == line);
}

}  // namespace tree_attn::test
