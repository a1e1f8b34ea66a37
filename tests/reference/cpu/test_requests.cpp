// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How rows are requested: by the least time per key of a few chunks, and anew when a step has another size.
#include "tree_attn/reference/cpu/requests.hpp"

#include <doctest/doctest.h>

namespace tree_attn::test {
namespace {

constexpr int kTimed = 2 * RequestChoice::kTries;

/// Seconds per key on some processor.
struct Processor {
  double none, ahead;
  double seconds(Requests requests) const { return requests == Requests::kNone ? none : ahead; }
};

/// A step of some chunks of 4096 keys. The last of every try is interrupted, the longer the faster the others are.
/// @return how many were timed
int run_step(RequestChoice& choice, const Processor& processor, double bytes, int n_chunks) {
  choice.begin_step(bytes);
  int n_timed = 0;
  for (; n_timed < n_chunks && choice.is_open(); ++n_timed) {
    const double of_key = processor.seconds(choice.requests());
    choice.took(4096, 4096 * of_key + (n_timed % RequestChoice::kTries == RequestChoice::kTries - 1 ? 1e6 / of_key : 0));
  }
  return n_timed;
}

}  // namespace

TEST_CASE("requests: those with the least time per key are kept, and no chunk is timed any more") {
  const struct {
    Processor processor;
    Requests best;
  } cases[]{{{3, 1}, Requests::kAhead}, {{1, 2}, Requests::kNone}};
  for (const auto& [processor, best] : cases) {
    CAPTURE(best);
    RequestChoice choice;
    CHECK(run_step(choice, processor, 1e6, 100) == 0);  // the first step of a size
    CHECK(run_step(choice, processor, 1e6, 4) == 4);
    CHECK(run_step(choice, processor, 1e6, 100) == kTimed - 4);
    CHECK(choice.requests() == best);
    CHECK(run_step(choice, processor, 1e6, 100) == 0);
    CHECK(choice.requests() == best);
  }
}

TEST_CASE("requests: time counts per key, and a chunk of less than half as many keys as the longest not at all") {
  RequestChoice choice;
  choice.begin_step(1e6), choice.begin_step(1e6);
  for (int i = 0; i < kTimed; ++i) {
    REQUIRE(choice.is_open());
    switch (choice.requests()) {
      case Requests::kAhead: choice.took(2048, 2048); break;
      case Requests::kNone: choice.took(4096, 3072); break;
    }
    if (choice.requests() == Requests::kAhead) choice.took(1000, 1);
  }
  CHECK(!choice.is_open());
  CHECK(choice.requests() == Requests::kNone);
}

TEST_CASE("requests: a step of twice or half the size chooses anew, one in between does not") {
  const Processor processor{1, 2};
  RequestChoice choice;
  run_step(choice, processor, 1e6, 100);
  CHECK(run_step(choice, processor, 1e6, 100) == kTimed);
  for (const double bytes : {1.9e6, 0.51e6, 1e6}) {
    CHECK(run_step(choice, processor, bytes, 100) == 0);
    CHECK(choice.requests() == Requests::kNone);
  }
  for (const double bytes : {2e6, 1e6, 5e5}) {
    CHECK(run_step(choice, processor, bytes, 100) == 0);
    CHECK(choice.requests() == Requests::kAhead);  // until it is chosen
    CHECK(run_step(choice, processor, bytes, 100) == kTimed);
    CHECK(choice.requests() == Requests::kNone);
  }
  CHECK(run_step(choice, processor, 0, 0) == 0);  // an empty step
}

}  // namespace tree_attn::test
