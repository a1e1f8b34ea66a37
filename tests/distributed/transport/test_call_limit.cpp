// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Calls that block for longer than the limit end their process, and no others do; waits name what is missing.
#include "distributed/transport/call_limit.hpp"
#include "tests/support/ending.hpp"
#include "tests/support/message.hpp"

#include <chrono>
#include <limits>
#include <thread>

namespace tree_attn {
namespace {

void sleep(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

}  // namespace

TEST_CASE("call limit: a call that does not return ends the process with status 2 and one line") {
  const test::Ending ending = test::ending_of([] {
    CallLimit limit(0, 0.05);
    limit.doing("in a test");
    const BlockingCall call(limit, "MPI_Comm_free");
    sleep(20'000);
  });
  CHECK(ending.status == 2);
  CHECK(ending.err == "tree_attn: rank 0 has been in MPI_Comm_free for 0.05 s in a test\n");
  // The second rank lets the first speak, of which the launcher ends it.
  CHECK(turn_of(1) > 1);
  CHECK(turn_of(1000) == turn_of(100));
}

TEST_CASE("call limit: a call that returns in time, one that may take longer, and one without a limit end nothing") {
  CHECK(test::ending_of([] {
          CallLimit limit(0, 0.2), endless(0, std::numeric_limits<double>::infinity());
          { const BlockingCall call(limit, "MPI_Comm_free"); }
          sleep(400);
          limit.begin_call("MPI_Init_thread", 60), endless.begin_call("MPI_Init_thread");
          sleep(400);
          limit.end_call(), endless.end_call();
        }).status == 0);
}

TEST_CASE("deadline: a wait without progress names the ranks that it is for, once each") {
  Deadline deadline(3, 0.02);
  deadline.doing("in a test");
  deadline.poll();  // no wait
  const Waiting waiting(deadline, "for a message");
  for (int i = 0; i < 3; ++i) sleep(10), waiting.progress(), deadline.poll();
  sleep(30);
  const auto line = [&](const std::vector<int>& ranks, bool have_sent = false) {
    return test::message<TransportError>([&] { deadline.poll([&] { return Deadline::Pending{ranks, have_sent}; }); });
  };
  CHECK(line({}) == "rank 3 waited 0.02 s for a message in a test and gave up");
  CHECK(line({5, 1, 5}) == "rank 3 waited 0.02 s for a message of ranks 1, 5 in a test and gave up");
  CHECK(line({5}) == "rank 3 waited 0.02 s for a message of rank 5 in a test and gave up");
  CHECK(line({5}, true) == "rank 3 waited 0.02 s for a message to rank 5 in a test and gave up");
  try {
    deadline.poll([] { return Deadline::Pending{{5}}; });
  } catch (const TransportError& error) {
    CHECK(error.peer == 5);
  }
}

}  // namespace tree_attn
