// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The C interface over a communicator: refusals, and handles that share its messages. What all ranks refuse is in
/// test_c_comm.cpp.
#include "tests/distributed/interface/managed.hpp"
#include "tests/support/mpi_test_session.hpp"

namespace tree_attn::test {

TEST_CASE("facade: in C a tensor that one rank cannot read is refused by all ranks at once, and the next call is right") {
  const MpiRanks& all = session().ranks();
  if (all.size() < 2) return;
  const bool is_odd = all.rank() == 1;
  const MPI_Comm comm = all.comm();
  const Call call;
  const Managed k({2, 200, 8}, 2), v({2, 200, 6}, 3);
  ta_setup setup = setup_of_call();
  setup.comm = &comm, setup.timeout = is_odd ? -1 : 60;
  ta_attention* none = nullptr;
  CHECK(has(line(ta_open(&setup, &none)), "rank 1: timeout is -1"));
  setup.timeout = 60;
  const Handle handle(setup);
  CHECK(line(ta_step(handle, is_odd ? nullptr : &call.q.tensor, nullptr, call.out, nullptr)) == "rank 1: q is null");
  REQUIRE(ta_append(handle, 0, 200, k, v) == TA_OK);
  CHECK(ta_step(handle, call.q, nullptr, call.out, nullptr) == TA_OK);
  // Another handle has the same messages, also if it sends over MPI alone: a step of one keeps those of the other from it.
  for (const int is_apart : {0, 1}) {
    CAPTURE(is_apart);
    setup.no_shared_memory = is_apart;
    const Handle other(setup);
    const Managed out({1, 4, 2, 6});
    REQUIRE(ta_append(other, 0, 200, k, v) == TA_OK);
    REQUIRE(ta_start(handle, call.q, nullptr) == TA_OK);
    CHECK(line(ta_step(other, call.q, nullptr, out, nullptr)) ==
          "Decoder::step: a step of another object over these messages is under way");
    CHECK(ta_finish(handle, out, nullptr) == TA_OK);
    CHECK(out.bytes == call.out.bytes);
    CHECK(ta_step(other, call.q, nullptr, out, nullptr) == TA_OK);
    CHECK(out.bytes == call.out.bytes);
  }
}

}  // namespace tree_attn::test
