// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The C interface over a communicator: what one rank refuses of its tensors, all refuse.
#include "distributed/interface/tree_attn.h"
#include "tests/support/mpi_test_session.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn::test {
namespace {

/// Zeros of F32, dense.
struct Zeros {
  std::vector<std::int64_t> shape;
  std::vector<float> elements;
  DLManagedTensor managed{};

  explicit Zeros(std::vector<std::int64_t> axes) : shape(std::move(axes)) {
    std::int64_t n = 1;
    for (const std::int64_t axis : shape) n *= axis;
    elements.resize(static_cast<std::size_t>(n));
    managed.dl_tensor = {.data = elements.data(),
                         .device = {kDLCPU, 0},
                         .ndim = static_cast<std::int32_t>(shape.size()),
                         .dtype = {kDLFloat, 32, 1},
                         .shape = shape.data(),
                         .strides = nullptr,
                         .byte_offset = 0};
  }
  Zeros(const Zeros&) = delete;
  const DLManagedTensor* tensor() const { return &managed; }
};

}  // namespace

TEST_CASE("facade: in C a tensor that one rank cannot read is refused by all ranks at once, and the next call is right") {
  const MpiRanks& all = session().ranks();
  if (all.size() < 2) return;
  const bool is_odd = all.rank() == 1;
  const MPI_Comm comm = all.comm();
  const auto p = static_cast<std::int64_t>(all.size());
  const Zeros q({1, p, 1, 8}), out({1, p, 1, 8}), small({1, p, 1, 4}), lse({1, p, 1}), k({p, 64 * p, 8}), scales({2, 2}),
      sink({p + 1});
  const auto refused = [&](const char* name, const std::function<int()>& call) {
    CAPTURE(name);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(call() == TA_INVALID);
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 1);
    CHECK_MESSAGE(std::string(ta_error()).starts_with("rank 1: "), ta_error());
  };

  ta_setup setup{};
  setup.size = sizeof setup;
  setup.batch = 1, setup.heads = setup.kv_heads = p, setup.head_dim = setup.value_dim = 8;
  setup.comm = &comm, setup.n_pages = 4;
  const std::vector<std::pair<const char*, std::function<void(ta_setup&)>>> setups{
      {"a type of 7 bits",
       [](ta_setup& mine) {
         mine.key_type = {kDLFloat, 7, 1};
       }},
      {"scales of other axes", [&](ta_setup& mine) { mine.k_scale = scales.tensor(); }},
      {"a timeout of -1", [](ta_setup& mine) { mine.timeout = -1; }}};
  ta_attention* attention = nullptr;
  for (const auto& [name, change] : setups) {
    ta_setup mine = setup;
    if (is_odd) change(mine);
    refused(name, [&] { return ta_open(&mine, &attention); });
  }
  REQUIRE(ta_open(&setup, &attention) == TA_OK);
  const ta_seen seen{.causal = 0, .window = 0, .sinks = 0, .sink = sink.tensor(), .mask = nullptr, .softcap = 0};
  const auto append = [&](std::int64_t n, const Zeros& keys) {
    return ta_append(attention, 0, n, keys.tensor(), k.tensor());
  };
  for (int i = 0; i < 20; ++i) {
    refused("append: fewer positions than n", [&] { return append(is_odd ? 64 * p + 1 : 64 * p, k); });
    refused("append: n of -1", [&] { return append(is_odd ? -1 : 64 * p, k); });
    refused("append: four axes", [&] { return append(64 * p, is_odd ? q : k); });
    refused("append: refused by the caller",
            [&] { return is_odd ? ta_refuse(attention, "k is torn", TA_OF_APPEND) : append(64 * p, k); });
  }
  REQUIRE(append(64 * p, k) == TA_OK);
  for (int i = 0; i < 20; ++i) {
    refused("step: no q", [&] { return ta_step(attention, is_odd ? nullptr : q.tensor(), nullptr, out.tensor(), nullptr); });
    refused("step: a small out",
            [&] { return ta_step(attention, q.tensor(), nullptr, is_odd ? small.tensor() : out.tensor(), nullptr); });
    refused("step: too many learned sinks",
            [&] { return ta_step(attention, q.tensor(), is_odd ? &seen : nullptr, out.tensor(), nullptr); });
    refused("step: refused by the caller", [&] {
      return is_odd ? ta_refuse(attention, "q is torn", TA_OF_STEP)
                    : ta_step(attention, q.tensor(), nullptr, out.tensor(), nullptr);
    });
    refused("combine: a form of 9", [&] {
      return ta_combine(attention, q.tensor(), lse.tensor(), is_odd ? 9 : TA_NATURAL, 0, out.tensor(), nullptr);
    });
    refused("combine: a small out", [&] {
      return ta_combine(attention, q.tensor(), lse.tensor(), TA_NATURAL, 0, is_odd ? small.tensor() : out.tensor(), nullptr);
    });
  }
  CHECK(ta_step(attention, q.tensor(), nullptr, out.tensor(), nullptr) == TA_OK);
  CHECK(ta_combine(attention, q.tensor(), lse.tensor(), TA_NATURAL, 0, out.tensor(), nullptr) == TA_OK);
  // Another handle has the same messages, also if it sends over MPI alone: a step of one keeps those of the other from it.
  for (const bool shares : {true, false}) {
    CAPTURE(shares);
    setup.no_shared_memory = shares ? 0 : 1;
    ta_attention* other = nullptr;
    REQUIRE(ta_open(&setup, &other) == TA_OK);
    REQUIRE(ta_append(other, 0, 64 * p, k.tensor(), k.tensor()) == TA_OK);
    REQUIRE(ta_start(attention, q.tensor(), nullptr) == TA_OK);
    CHECK(ta_step(other, q.tensor(), nullptr, out.tensor(), nullptr) == TA_INVALID);
    CHECK(std::string(ta_error()) == "Decoder::step: a step of another object over these messages is under way");
    CHECK(ta_finish(attention, out.tensor(), nullptr) == TA_OK);
    CHECK(ta_step(other, q.tensor(), nullptr, out.tensor(), nullptr) == TA_OK);
    ta_close(other);
  }
  ta_close(attention);
}

}  // namespace tree_attn::test
