// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Edges of the C interface and of Attention: tensors without elements, sizes beyond memory, positions beyond all, a
/// window over very many keys, and a rank that gives up.
#include "tests/distributed/interface/managed.hpp"
#include "tests/support/sanitized.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

namespace tree_attn::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Strides as libraries export them for tensors without elements: dense, none, zeros, or anything.
constexpr std::array kExports{'d', 'n', '0', '?'};
void export_as(char kind, std::initializer_list<Managed*> tensors) {
  for (Managed* each : tensors) {
    if (kind == 'n') each->dl().strides = nullptr;
    if (kind == '0') std::ranges::fill(each->strides, 0);
    if (kind == '?') std::ranges::fill(each->strides, -(std::int64_t{1} << 61));
    if (kind != 'd') each->dl().data = nullptr;
  }
}

}  // namespace

TEST_CASE("edges: tensors without elements may have any strides, and no data") {
  for (const char kind : kExports) {
    CAPTURE(kind);
    for (const std::array<std::int64_t, 6> axes : {std::array<std::int64_t, 6>{0, 4, 2, 8, 70, 6},
                                                   {1, 0, 2, 8, 70, 6},
                                                   {1, 4, 0, 8, 70, 6},
                                                   {1, 4, 2, 8, 0, 6},
                                                   {1, 4, 2, 8, 70, 0}}) {
      const auto [b, h, l, d, n, d_v] = axes;
      const std::string sizes = line_of(b, " ", h, " ", l, " ", n, " ", d_v);
      CAPTURE(sizes);
      Managed q({b, h, l, d}, 1), k({b, h / 2, n, d}, 2), v({b, h / 2, n, d_v}, 3), out({b, h, l, d_v}, 4),
          lse({b, h, l}, 5), wide({b, h, l, d_v}, 6, kF64), o({b, h, l, d_v}, 7), of_o({b, h, l}, 8);
      for (Managed* each : {&q, &k, &v, &out, &lse, &wide, &o, &of_o})
        if (each->bytes.empty()) export_as(kind, {each});
      CHECK(ta_attend(q, k, v, 0, nullptr, out, lse, 0) == TA_OK);
      for (std::size_t i = 0; i < out.bytes.size() / 4; ++i) CHECK(out.at(i) == 0);
      for (std::size_t i = 0; i < lse.bytes.size() / 4; ++i)
        CHECK((n > 0 ? std::isfinite(lse.at(i)) : lse.at(i) == -kInfinity));
      CHECK(ta_oracle(q, k, v, nullptr, 0, nullptr, wide, nullptr, nullptr, nullptr, 0) == TA_OK);
      CHECK(ta_error_bound(q, k, v, 0, nullptr, 0, 0, 0, wide, 0) == TA_OK);
      if (lse.bytes.empty() || d_v == 0) CHECK(ta_merge(o, of_o, o, of_o, TA_NATURAL, out, lse) == TA_OK);

      ta_setup setup = setup_of_call();
      setup.batch = b, setup.heads = h, setup.kv_heads = h / 2, setup.most_queries = l, setup.value_dim = d_v;
      const Handle handle(setup);
      Managed rows({h / 2, n, d}, 2), values({h / 2, n, d_v}, 3);
      for (Managed* each : {&rows, &values})
        if (each->bytes.empty()) export_as(kind, {each});
      CHECK(ta_append(handle, 0, n, rows, values) == (b > 0 ? TA_OK : TA_RANGE));
      CHECK(ta_step(handle, q, nullptr, out, lse) == TA_OK);
      CHECK(ta_combine(handle, o, of_o, TA_NATURAL, 0, out, lse) == TA_OK);
    }
    // The moments of no keys.
    const Managed q({8}, 1), mean({3}, kF64), covariance({3, 3}, kF64);
    Managed k({0, 8}), v({0, 3});
    export_as(kind, {&k, &v});
    CHECK(ta_moments(q, k, v, nullptr, mean, covariance) == TA_OK);
    CHECK((mean.at<double>(0) == 0 && covariance.at<double>(8) == 0));
  }
  // Elements that exist need data and strides.
  Call call;
  call.k.strides[3] = 0;
  CHECK(line(call.attend()) == "k has stride 0 along its last axis; 1 is needed");
}

TEST_CASE("edges: a setup of another size, and sizes beyond memory, are refused") {
  ta_setup setup = setup_of_call();
  ta_attention* attention = nullptr;
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{sizeof setup} - 8, std::int64_t{sizeof setup} + 8}) {
    setup.size = size;
    CHECK(line(ta_open(&setup, &attention)) == "setup has a size of " + std::to_string(size) +
                                                   " bytes, but a ta_setup of this library has " +
                                                   std::to_string(sizeof setup));
  }
  if (kIsSanitized) return;  // its operator new ends the process
  for (const auto member : {&ta_setup::head_dim, &ta_setup::value_dim, &ta_setup::batch, &ta_setup::most_queries}) {
    for (const int shift : {40, 58, 61, 62}) {
      setup = setup_of_call();
      setup.*member = std::int64_t{1} << shift;
      const int status = ta_open(&setup, &attention);
      CHECK((status == TA_OK || status == TA_NO_MEMORY));  // rows that no key has yet take no memory
      CHECK((attention == nullptr) == (status != TA_OK));
      ta_close(attention);
    }
  }
  setup = setup_of_call();
  setup.head_dim = std::int64_t{1} << 61;
  CHECK(line(ta_open(&setup, &attention), TA_NO_MEMORY) == "memory ran out");
}

TEST_CASE("edges: no position beyond the ranges is held") {
  const Handle handle(setup_of_call());
  int holds = -1;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const auto& [position, expected] :
       {std::pair{std::int64_t{0}, 1}, {std::int64_t{1} << 40, 1}, {std::int64_t{1} << 62, 0}, {kMost - 1, 0}, {kMost, 0}}) {
    CAPTURE(position);
    REQUIRE(ta_holds(handle, position, &holds) == TA_OK);
    CHECK(holds == expected);
  }
}

TEST_CASE("edges: a window over 2^40 keys takes the time of its keys") {
  Managed q({1, 4, 2, 8}, 1), k({1, 2, 64, 8}, 2), v({1, 2, 64, 6}, 3), out({1, 4, 2, 6}), lse({1, 4, 2}),
      first({1, 4, 2, 6});
  const std::array<ta_seen, 3> rules{
      {{0, 1, 0, nullptr, nullptr, 0}, {1, 5, 0, nullptr, nullptr, 0}, {0, 3, 2, nullptr, nullptr, 0}}};
  for (const ta_seen& seen : rules) {
    // All keys are one.
    k.shape[2] = v.shape[2] = 10, k.strides[2] = v.strides[2] = 0;
    REQUIRE(ta_attend(q, k, v, 0, &seen, first, nullptr, 0) == TA_OK);
    k.shape[2] = v.shape[2] = std::int64_t{1} << 40;
    REQUIRE(ta_attend(q, k, v, 0, &seen, out, lse, 0) ==
            TA_OK);  // a walk over all keys would not end before the test's limit
    for (std::size_t i = 0; i < 48; ++i) CHECK(std::fabs(out.at(i) - first.at(i)) < 1e-6);
  }
}

TEST_CASE("edges: a handle that has given up closes without the others") {
  ta_attention* attention = nullptr;
  const ta_setup setup = setup_of_call();
  REQUIRE(ta_open(&setup, &attention) == TA_OK);
  CHECK(ta_abandon(attention) == TA_OK);
  ta_close(attention);
  CHECK(line(ta_abandon(nullptr)) == "attention is null");
}

}  // namespace tree_attn::test
