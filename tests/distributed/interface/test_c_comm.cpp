// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The C interface over functions of the program, with threads as ranks: bits, refusals, a wait that is too long, a
/// function that fails.
#include "distributed/interface/tree_attn.h"
#include "tests/distributed/interface/managed.hpp"
#include "tests/support/mail_callbacks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tree_attn::test {
namespace {

/// A ta_comm over the mail of one rank. What the mail throws becomes status 7, and its text is kept.
struct MailComm {
  MailCallbacks mail;
  std::string error;
  ta_comm comm;
  MailComm(MailOffice& office, int rank, int size)
      : mail(office, rank, size), comm{sizeof(ta_comm), rank, size, this, all_gather, post_send, post_receive, wait} {}
  MailComm(const MailComm&) = delete;

 private:
  template <class Call>
  static int status(void* context, const Call& call) {
    auto& self = *static_cast<MailComm*>(context);
    try {
      call(self.mail);
      return 0;
    } catch (const std::exception& failed) {
      self.error = failed.what();
      return 7;
    }
  }
  static std::span<const std::byte> in(const void* data, std::int64_t n) {
    return {static_cast<const std::byte*>(data), static_cast<std::size_t>(n)};
  }
  static std::span<std::byte> to(void* data, std::int64_t n) {
    return {static_cast<std::byte*>(data), static_cast<std::size_t>(n)};
  }
  static int all_gather(void* context, const void* mine, std::int64_t n, void* all, std::int64_t* request) {
    auto* const self = static_cast<MailComm*>(context);
    return status(context,
                  [&](MailCallbacks& m) { *request = m.start_all_gather(in(mine, n), to(all, n * self->comm.size)); });
  }
  static int post_send(void* context, const void* data, std::int64_t n, std::int32_t peer, std::int64_t* request) {
    return status(context, [&](MailCallbacks& m) { *request = m.start_send(in(data, n), peer); });
  }
  static int post_receive(void* context, void* data, std::int64_t n, std::int32_t peer, std::int64_t* request) {
    return status(context, [&](MailCallbacks& m) { *request = m.start_receive(to(data, n), peer); });
  }
  static int wait(void* context, std::int64_t n, std::int64_t* requests, double seconds) {
    return status(context, [&](MailCallbacks& m) { m.wait({requests, static_cast<std::size_t>(n)}, seconds); });
  }
};

ta_setup over(const ta_comm& comm, double timeout = 20) {
  ta_setup setup = setup_of_call();
  setup.callbacks = &comm, setup.timeout = timeout;
  return setup;
}

/// Keys and values of 200 positions.
struct Rows {
  Managed k{{2, 200, 8}, 2}, v{{2, 200, 6}, 3};
};

}  // namespace

TEST_CASE("interface: over functions of the program a tensor that one rank cannot read is refused by all ranks at once") {
  MailOffice office;
  run_mail_threads(2, [&](int rank) {
    const MailComm mail(office, rank, 2);
    const Rows rows;
    const Call call;
    const Managed scales({2, 2}), five({5}), small({1, 4, 2, 5}), out({1, 4, 2, 6});
    const ta_seen sinks{0, 0, 0, five, nullptr, 0};
    const bool is_odd = rank == 1;
    const auto refused = [](const std::string& name, int status) {
      CAPTURE(name);
      CHECK(has(line(status), "rank 1: "));
    };
    ta_attention* none = nullptr;
    const auto open = [&](const auto& change) {
      ta_setup mine = over(mail.comm);
      if (is_odd) change(mine);
      return ta_open(&mine, &none);
    };
    refused("a type of 7 bits", open([](ta_setup& mine) { mine.key_type = {kDLFloat, 7, 1}; }));
    refused("scales of other axes", open([&](ta_setup& mine) { mine.k_scale = scales; }));
    refused("a timeout of -1", open([](ta_setup& mine) { mine.timeout = -1; }));

    ta_setup setup = over(mail.comm);
    setup.n_pages = 9;
    const Handle handle(setup);
    const auto append = [&](std::int64_t n, const Managed& k) { return ta_append(handle, 0, n, k, rows.v); };
    const auto step = [&](const DLManagedTensor* q, const ta_seen* seen, const DLManagedTensor* to) {
      return ta_step(handle, q, seen, to, nullptr);
    };
    const auto combine = [&](int form, const Managed& to) {
      return ta_combine(handle, call.out, call.lse, form, 0, to, nullptr);
    };
    for (int i = 0; i < 3; ++i) {
      refused("append: fewer positions than n", append(is_odd ? 201 : 200, rows.k));
      refused("append: n of -1", append(is_odd ? -1 : 200, rows.k));
      refused("append: four axes", append(200, is_odd ? call.q : rows.k));
      refused("append: the caller", is_odd ? ta_refuse(handle, "k is torn", TA_OF_APPEND) : append(200, rows.k));
      refused("step: no q", step(is_odd ? nullptr : &call.q.tensor, nullptr, out));
      refused("step: a small out", step(call.q, nullptr, is_odd ? small : out));
      refused("step: too many learned sinks", step(call.q, is_odd ? &sinks : nullptr, out));
      refused("step: the caller", is_odd ? ta_refuse(handle, "q is torn", TA_OF_STEP) : step(call.q, nullptr, out));
      refused("combine: a form of 9", combine(is_odd ? 9 : TA_NATURAL, out));
      refused("combine: a small out", combine(TA_NATURAL, is_odd ? small : out));
    }
    CHECK(append(200, rows.k) == TA_OK);
    CHECK(step(call.q, nullptr, out) == TA_OK);
    CHECK(combine(TA_NATURAL, out) == TA_OK);
  });
}

TEST_CASE("interface: a function that fails is TA_CALLBACK, a silent rank TA_TRANSPORT, and no handle goes on") {
  MailOffice office;
  office.fails_after = 1000000;
  run_mail_threads(2, [&](int rank) {
    const MailComm mail(office, rank, 2);
    const Handle handle(over(mail.comm, rank == 0 ? 20 : 0.3));
    const Call call;
    if (rank == 0) office.fails_after = office.n_calls_of_0 + 1;  // the second call from here on
    const int status = ta_step(handle, call.q, nullptr, call.out, call.lse);
    const std::string why = ta_error();
    CHECK(status == (rank == 0 ? TA_CALLBACK : TA_TRANSPORT));
    if (rank == 0) CHECK(why == "rank 0: a callback has failed: wait of ta_comm has returned 7");
    if (rank == 0) CHECK(mail.error == "the cable is cut");
    if (rank == 1) CHECK(has(why, "rank 1 waited 0.3 s for "));
    CHECK(has(line(ta_step(handle, call.q, nullptr, call.out, call.lse), TA_TRANSPORT),
              "its group is not used again: open another object on a new group"));
  });
  CHECK(office.n_too_late == 0);
}

TEST_CASE("interface: handles over one ta_comm share its messages, one step at a time, and an error of one ends all") {
  MailOffice office;
  run_mail_threads(2, [&](int rank) {
    const MailComm mail(office, rank, 2);
    const Rows rows;
    const Call call, other;
    int of_first = 0, of_next = 0;
    const Handle first(over(mail.comm));
    of_first = mail.mail.n_gathers();
    const Handle next(over(mail.comm));
    of_next = mail.mail.n_gathers() - of_first;
    // The nodes are known, and their memory is there: a number, keys, paths, and three agreements.
    CHECK(of_next == of_first - 7);
    for (ta_attention* each : {first.opened, next.opened}) REQUIRE(ta_append(each, 0, 200, rows.k, rows.v) == TA_OK);
    REQUIRE(ta_start(first, call.q, nullptr) == TA_OK);
    CHECK(line(ta_step(next, call.q, nullptr, other.out, nullptr)) ==
          "Decoder::step: a step of another object over these messages is under way");
    REQUIRE(ta_finish(first, call.out, nullptr) == TA_OK);
    REQUIRE(ta_step(next, call.q, nullptr, other.out, nullptr) == TA_OK);
    CHECK(call.out.bytes == other.out.bytes);
    REQUIRE(ta_abandon(first) == TA_OK);
    CHECK(has(line(ta_step(next, call.q, nullptr, other.out, nullptr), TA_TRANSPORT), "its group is not used again"));
    ta_setup setup = over(mail.comm);
    ta_attention* opened = nullptr;
    CHECK(has(line(ta_open(&setup, &opened), TA_TRANSPORT), "its group is not used again"));
  });
}

TEST_CASE("interface: steps of ranks that compare nothing gather nothing, and ranks may begin a step and move keys") {
  const Call expected;
  const Handle alone(setup_of_call());
  const Rows of_all;
  REQUIRE(ta_append(alone, 0, 200, of_all.k, of_all.v) == TA_OK);
  REQUIRE(ta_step(alone, expected.q, nullptr, expected.out, expected.lse) == TA_OK);
  for (const int skips : {0, 1}) {
    MailOffice office;
    run_mail_threads(2, [&](int rank) {
      const MailComm mail(office, rank, 2);
      ta_setup setup = over(mail.comm);
      setup.skips_comparison = skips;
      const Handle handle(setup);
      const Rows rows;
      const Call call;
      REQUIRE(ta_append(handle, 0, 200, rows.k, rows.v) == TA_OK);
      REQUIRE(ta_step(handle, call.q, nullptr, call.out, call.lse) == TA_OK);  // the first of two queries is compared
      const int before = mail.mail.n_gathers();
      REQUIRE(ta_start(handle, call.q, nullptr) == TA_OK);
      CHECK(ta_progress(handle, nullptr) == TA_OK);
      REQUIRE(ta_finish(handle, call.out, call.lse) == TA_OK);
      CHECK(call.out.bytes == expected.out.bytes);
      CHECK(mail.mail.n_gathers() - before == 1 - skips);
      REQUIRE(ta_reshard(handle, 1, nullptr) == TA_OK);
      int n_held = 0;
      for (std::int64_t position = 0; position < 200; ++position) {
        int holds = 0;
        CHECK(ta_holds(handle, position, &holds) == TA_OK);
        n_held += holds;
      }
      CHECK((n_held == 0 || n_held == 200));
      // One rank refuses, and all return its line; calls out of their turn are refused too.
      const std::int64_t end = 1000;
      CHECK(line(ta_reshard(handle, 1, rank == 1 ? &end : nullptr)) ==
            "rank 1: the leaves are dealt, and range_ends is given");
      CHECK(line(ta_finish(handle, call.out, call.lse)) == "Decoder::finish: no step has been started");
      REQUIRE(ta_start(handle, call.q, nullptr) == TA_OK);
      CHECK(has(line(ta_step(handle, call.q, nullptr, call.out, nullptr)), "under way"));
      REQUIRE(ta_finish(handle, call.out, call.lse) == TA_OK);
      CHECK(call.out.bytes == expected.out.bytes);
      REQUIRE(ta_step(handle, call.q, nullptr, call.out, nullptr) == TA_OK);
      CHECK(call.out.bytes == expected.out.bytes);
    });
  }
}

TEST_CASE("interface: queries in and outputs out by heads have the bits of a step, and ranks refuse together") {
  MailOffice office;
  run_mail_threads(2, [&](int rank) {
    const MailComm mail(office, rank, 2);
    const Handle handle(over(mail.comm));
    const Rows rows;
    const Call call;
    REQUIRE(ta_append(handle, 0, 200, rows.k, rows.v) == TA_OK);
    REQUIRE(ta_step(handle, call.q, nullptr, call.out, call.lse) == TA_OK);
    // Two of the four heads are those of this rank.
    Managed q({1, 2, 2, 8}), out({1, 2, 2, 6}), lse({1, 2, 2});
    const auto half = [&](const Managed& of) {
      const auto n = static_cast<std::ptrdiff_t>(of.bytes.size() / 2);
      return std::vector<std::byte>(of.bytes.begin() + rank * n, of.bytes.begin() + (rank + 1) * n);
    };
    std::ranges::copy(half(call.q), q.bytes.begin());
    REQUIRE(ta_step_by_heads(handle, q, nullptr, out, lse) == TA_OK);
    CHECK(out.bytes == half(call.out));
    CHECK(lse.bytes == half(call.lse));
    CHECK(line(ta_step_by_heads(handle, rank == 0 ? q : call.q, nullptr, out, lse)) ==
          "rank 1: Attention::step_by_heads: q is [1, 4, 2, 8]; expected [1, 2, l, 8], the heads of one of 2 ranks");
    CHECK(has(line(ta_step_by_heads(handle, q, nullptr, rank == 0 ? out : call.out, lse)), "rank 1: out is [1, 4, 2, 6] "));
    CHECK(ta_step_by_heads(handle, q, nullptr, out, nullptr) == TA_OK);
  });
}

TEST_CASE("interface: append takes an axis of 1 before the others, and values have the type of keys") {
  ta_setup setup = setup_of_call();
  setup.key_type = kBF16;
  const Handle handle(setup);
  const Managed k({1, 2, 70, 8}, kBF16), v({1, 2, 70, 6}, kBF16), two({2, 2, 70, 8}, kBF16);
  CHECK(ta_append(handle, 0, 70, k, v) == TA_OK);
  CHECK(line(ta_append(handle, 0, 70, two, v)) == "k has 2 batch entries; one is appended to");
  CHECK(line(ta_share(handle, 0, 0, 70), TA_RANGE) == "Attention::share: batch entry 0 has 70 positions, not none");
}

TEST_CASE("interface: functions that are not there are refused") {
  MailOffice office;
  const MailComm mail(office, 0, 1);
  const auto refused = [&](const auto& spoil) {
    ta_comm comm = mail.comm;
    ta_setup setup = over(comm);
    spoil(comm, setup);
    ta_attention* opened = nullptr;
    return line(ta_open(&setup, &opened), comm.rank == 5 ? TA_RANGE : TA_INVALID);
  };
  CHECK(refused([](ta_comm& comm, ta_setup&) { comm.wait = nullptr; }) == "a function of callbacks is null");
  CHECK(has(refused([](ta_comm& comm, ta_setup&) { comm.struct_size = 8; }), "callbacks have a size of 8 bytes"));
  CHECK(refused([](ta_comm& comm, ta_setup&) { comm.rank = 5; }) == "Ranks: rank 5 of 1");
  CHECK(refused([](ta_comm&, ta_setup& setup) { setup.comm = &setup; }) == "comm and callbacks are both given");
}

}  // namespace tree_attn::test
