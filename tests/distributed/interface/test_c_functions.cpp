// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The C interface: results against the library, layouts taken in place, and hostile tensors, each refused in a line.
/// Under AddressSanitizer this also shows that nothing is read outside.
#include "distributed/interface/attention.hpp"
#include "reference/energy/moments.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/state/state.hpp"
#include "tests/distributed/interface/managed.hpp"
#include "tests/support/same_bits.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace tree_attn::test {

TEST_CASE("interface: attention of dense and strided tensors, in place and in every type") {
  const Call call;
  REQUIRE(call.attend() == TA_OK);
  const AttentionResult exact = attention(call.q.view(), call.k.view(), call.v.view(), {});
  for (std::size_t i = 0; i < exact.out.size(); ++i) CHECK(std::fabs(call.out.at(i) - exact.out[i]) < 1e-5);
  for (std::size_t i = 0; i < exact.lse.size(); ++i) CHECK(std::fabs(call.lse.at(i) - exact.lse[i]) < 1e-5);

  // No strides are dense ones.
  Call plain;
  for (Managed* each : {&plain.q, &plain.k, &plain.v, &plain.out, &plain.lse}) each->dl().strides = nullptr;
  REQUIRE(plain.attend() == TA_OK);
  CHECK(plain.out.bytes == call.out.bytes);

  // [b, N, n_kv, d] as [b, n_kv, N, d], the layout of other libraries, an offset in bytes, and outputs of that layout.
  Call swapped;
  Managed other({1, 71, 2, 8});
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t n = 0; n < 70; ++n)
      std::memcpy(other.bytes.data() + ((n + 1) * 2 + h) * 32, call.k.bytes.data() + (h * 70 + n) * 32, 32);
  swapped.k.dl().data = other.bytes.data();
  swapped.k.dl().byte_offset = 64;
  swapped.k.strides = {1120, 8, 16, 1}, swapped.out.strides = {48, 6, 24, 1}, swapped.lse.strides = {8, 1, 4};
  swapped.k.dl().strides = swapped.k.strides.data();
  swapped.out.dl().strides = swapped.out.strides.data();
  swapped.lse.dl().strides = swapped.lse.strides.data();
  REQUIRE(swapped.attend() == TA_OK);
  for (std::size_t h = 0; h < 4; ++h) {
    for (std::size_t j = 0; j < 2; ++j) {
      CHECK(swapped.lse.at(j * 4 + h) == call.lse.at(h * 2 + j));
      for (std::size_t c = 0; c < 6; ++c) CHECK(swapped.out.at((j * 4 + h) * 6 + c) == call.out.at((h * 2 + j) * 6 + c));
    }
  }

  // Outputs of 16 bits are rounded, no lse is wanted; keys of 16 bits, all of them 0.
  const Managed rounded({1, 4, 2, 6}, kBF16), k16({1, 2, 70, 8}, kBF16);
  REQUIRE(ta_attend(call.q, call.k, call.v, 0, nullptr, rounded, nullptr, 0) == TA_OK);
  for (std::size_t i = 0; i < 48; ++i) CHECK(rounded.at<std::uint16_t>(i) == narrow<BFloat16>(call.out.at(i)).bits);
  CHECK(ta_attend(call.q, k16, call.v, 0.5, nullptr, call.out, call.lse, 0) == TA_OK);
  CHECK(call.lse.at(0) == doctest::Approx(std::log(70.0)).epsilon(1e-6));
}

TEST_CASE("interface: hostile tensors are refused in one line, and nothing is read or written") {
  const auto refused = [](const auto& spoil) {
    Call call;
    spoil(call);
    const std::vector<std::byte> before = call.out.bytes;
    const std::string text = line(call.attend());
    CHECK(call.out.bytes == before);
    return text;
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  // Null.
  const Call call;
  CHECK(line(ta_attend(nullptr, call.k, call.v, 0, nullptr, call.out, call.lse, 0)) == "q is null");
  CHECK(line(ta_attend(call.q, call.k, call.v, 0, nullptr, nullptr, call.lse, 0)) == "out is null");
  CHECK(refused([](Call& c) { c.k.dl().data = nullptr; }) == "k has no data");
  CHECK(refused([](Call& c) { c.k.dl().shape = nullptr; }) == "k has no shape");
  // Axes.
  CHECK(refused([](Call& c) { c.q.dl().ndim = 3; }) == "q has 3 axes; expected 4");
  CHECK(refused([](Call& c) { c.q.dl().ndim = -1; }) == "q has -1 axes; expected 4");
  CHECK(refused([](Call& c) { c.k.shape[2] = -70; }) == "k has -70 elements along axis 2");
  CHECK(has(refused([&](Call& c) { c.k.shape[2] = c.v.shape[2] = kMost; }), "more than 2^58 elements"));
  CHECK(has(refused([](Call& c) { c.q.shape[3] = 7; }), "head_dim"));
  CHECK(has(refused([](Call& c) { c.q.shape[1] = 3; }), "heads"));
  CHECK(has(refused([](Call& c) { c.v.shape[2] = 69; }), "69"));
  CHECK(has(refused([](Call& c) { c.out.shape[1] = 5; }), "out is [1, 5, 2, 6]"));
  CHECK(has(refused([](Call& c) { c.lse.shape[2] = 3; }), "lse is [1, 4, 3, 1]"));
  // Strides.
  CHECK(refused([](Call& c) { c.q.strides[3] = 2; }) == "q has stride 2 along its last axis; 1 is needed");
  CHECK(refused([](Call& c) { c.k.strides[2] = -8; }) == "k has stride -8 along axis 2; strides are at least 0");
  CHECK(has(refused([&](Call& c) { c.k.strides[2] = kMost; }), "beyond 2^62 bytes"));
  CHECK(has(refused([](Call& c) { c.v.dl().byte_offset = ~std::uint64_t{0}; }), "beyond 2^62 bytes"));
  // Types and devices.
  CHECK(refused([](Call& c) { c.q.dl().device.device_type = kDLCUDA; }) ==
        "q is on device type 2, index 0; tensors in memory of the host are taken");
  CHECK(refused([](Call& c) {
          c.k.dl().dtype = {kDLFloat, 32, 4};
        }) == "k has elements of code 2, 32 bits and 4 lanes; F64, F32, F16, BF16 and F8_E4M3 are taken");
  CHECK(has(refused([](Call& c) { c.k.dl().dtype = {kDLBfloat, 32, 1}; }), "k has elements of code 4"));
  // Overlaps.
  CHECK(refused([](Call& c) { c.out.strides[2] = 5; }) == "out has elements that share memory: it is written");
  CHECK(refused([](Call& c) { c.lse.strides[1] = 0; }) == "lse has elements that share memory: it is written");
  CHECK(refused([](Call& c) { c.out.dl().data = c.k.bytes.data() + 64; }) == "out is written and overlaps k");
  CHECK(refused([](Call& c) { c.lse.dl().data = c.out.bytes.data() + 188; }) == "lse is written and overlaps out");
  CHECK(refused([](Call& c) { c.q.dl().data = c.out.bytes.data() + 188; }) == "out is written and overlaps q");
  // Heads that read the same keys are no overlap that matters; and no keys are the empty set, whose data may be null.
  Call shared;
  shared.k.strides[1] = 0;
  CHECK(shared.attend() == TA_OK);
  Call empty;
  empty.k.shape[2] = empty.v.shape[2] = 0;
  empty.k.dl().data = empty.v.dl().data = nullptr;
  CHECK(empty.attend() == TA_OK);
  CHECK(empty.out.at(0) == 0);
  CHECK(empty.lse.at(7) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("interface: a causal edge, a window, first keys and learned sinks, and what is refused of them") {
  Call call;
  const Managed logits({4}, 9);
  const ta_seen seen{1, 20, 4, logits, nullptr, 0};
  REQUIRE(ta_attend(call.q, call.k, call.v, 0, &seen, call.out, call.lse, 0) == TA_OK);
  std::vector<double> sink;
  for (std::size_t h = 0; h < 4; ++h) sink.push_back(logits.at(h));
  const AttentionResult exact = attention(call.q.view(), call.k.view(), call.v.view(),
                                          {.rule = {.causal = true, .window = 20, .sinks = 4}, .sink = sink});
  for (std::size_t i = 0; i < exact.out.size(); ++i) CHECK(std::fabs(call.out.at(i) - exact.out[i]) < 1e-5);
  for (std::size_t i = 0; i < exact.lse.size(); ++i) CHECK(std::fabs(call.lse.at(i) - exact.lse[i]) < 1e-5);
  ta_seen spoilt = seen;
  const auto refused = [&] { return line(ta_attend(call.q, call.k, call.v, 0, &spoilt, call.out, call.lse, 0)); };
  spoilt.window = -1;
  CHECK(refused() == "ta_attend: a window of -1 keys and 4 sinks; neither is negative");
  spoilt = seen, spoilt.sink = call.lse;
  CHECK(refused() == "sink has 3 axes; expected 1");
  const Managed three({3});
  spoilt.sink = three;
  CHECK(refused() == "sink has 3 elements, but there are 4 heads");
}

/// @tested{eq_5, eq. (5)}
TEST_CASE("interface: the oracle, energy, gradient and moments are those of the library") {
  const Managed q({1, 4, 2, 8}, 1, kF64), k({1, 2, 30, 8}, 2, kF64), v({1, 2, 30, 6}, 3, kF64), zeta({1, 4, 2, 6}, 4, kF64);
  const Managed out({1, 4, 2, 6}, kF64), lse({1, 4, 2}, kF64), energy({1, 4, 2}, kF64), gradient({1, 4, 2, 6}, kF64);
  const ta_seen causal{1, 0, 0, nullptr, nullptr, 0};
  REQUIRE(ta_oracle(q, k, v, zeta, 1, &causal, out, lse, energy, gradient, 0) == TA_OK);
  const AttentionResult exact =
      attention(q.view(), k.view(), v.view(), {.scale = 1, .rule = {.causal = true}, .zeta = zeta.view()});
  for (std::size_t i = 0; i < exact.out.size(); ++i) CHECK(out.at<double>(i) == exact.out[i]);
  for (std::size_t i = 0; i < exact.gradient.size(); ++i) CHECK(gradient.at<double>(i) == exact.gradient[i]);
  for (std::size_t i = 0; i < exact.lse.size(); ++i) CHECK(lse.at<double>(i) == exact.lse[i]);
  for (std::size_t i = 0; i < exact.energy.size(); ++i) CHECK(energy.at<double>(i) == exact.energy[i]);
  CHECK(ta_oracle(q, k, v, nullptr, 1, nullptr, nullptr, lse, nullptr, nullptr, 0) == TA_OK);
  CHECK(has(line(ta_oracle(q, k, v, nullptr, 1, nullptr, nullptr, nullptr, energy, nullptr, 0)), "zeta is null"));
  const Managed single({1, 4, 2, 6});
  CHECK(line(ta_oracle(q, k, v, nullptr, 1, nullptr, single, nullptr, nullptr, nullptr, 0)) ==
        "out is F32; the oracle writes F64");

  const Managed one({8}, 5, kF64), keys({30, 8}, 6, kF64), values({30, 3}, 7, kF64), source({3}, 8, kF64);
  const Managed mean({3}, kF64), covariance({3, 3}, kF64);
  REQUIRE(ta_moments(one, keys, values, source, mean, covariance) == TA_OK);
  Vector query(8), at(3);
  Matrix K(30, 8), V(30, 3);
  for (int i = 0; i < 8; ++i) query(i) = one.at<double>(static_cast<std::size_t>(i));
  for (int i = 0; i < 3; ++i) at(i) = source.at<double>(static_cast<std::size_t>(i));
  for (int i = 0; i < 240; ++i) K(i / 8, i % 8) = keys.at<double>(static_cast<std::size_t>(i));
  for (int i = 0; i < 90; ++i) V(i / 3, i % 3) = values.at<double>(static_cast<std::size_t>(i));
  const Matrix expected = tree_attn::covariance(query, K, V, at);
  for (int i = 0; i < 9; ++i)
    CHECK(covariance.at<double>(static_cast<std::size_t>(i)) ==
          doctest::Approx(expected(i / 3, i % 3)).epsilon(1e-14).scale(0.1));
  for (Eigen::Index i = 0; i < 3; ++i)
    CHECK(mean.at<double>(static_cast<std::size_t>(i)) ==
          doctest::Approx(moment(query, K, V, at, std::array{i})).epsilon(1e-13).scale(0.1));
  CHECK(ta_moments(one, keys, values, nullptr, mean, covariance) == TA_OK);
  CHECK(has(line(ta_moments(one, values, values, nullptr, mean, covariance)), "q has 8 elements, k is [30, 3]"));
}

TEST_CASE("interface: merge of two parts is attention over both, in both bases") {
  const Call call;
  // Views of the keys [0, 30) and [30, 70).
  const auto part = [](Managed& managed, std::int64_t begin, std::int64_t end) {
    managed.dl().byte_offset = static_cast<std::uint64_t>(begin * managed.shape[3]) * 4;
    managed.shape[2] = end - begin;
  };
  Call left, right;
  part(left.k, 0, 30), part(left.v, 0, 30), part(right.k, 30, 70), part(right.v, 30, 70);
  REQUIRE(left.attend() == TA_OK);
  REQUIRE(right.attend() == TA_OK);
  REQUIRE(call.attend() == TA_OK);
  const Managed out({1, 4, 2, 6}), lse({1, 4, 2});
  for (const int form : {TA_NATURAL, TA_NATURAL_OR_INF_EMPTY, TA_BASE_TWO}) {
    for (Managed* each : {&left.lse, &right.lse}) {
      for (std::size_t i = 0; form == TA_BASE_TWO && i < 8; ++i) {
        const float base_two = each->at(i) * static_cast<float>(kLog2E);
        std::memcpy(each->bytes.data() + 4 * i, &base_two, 4);
      }
    }
    REQUIRE(ta_merge(left.out, left.lse, right.out, right.lse, form, out, lse) == TA_OK);
    for (std::size_t i = 0; i < 48; ++i) CHECK(std::fabs(out.at(i) - call.out.at(i)) < 1e-6);
    for (std::size_t i = 0; i < 8; ++i) CHECK(std::fabs(lse.at(i) - call.lse.at(i)) < 1e-5);
  }
  CHECK(line(ta_merge(left.out, left.lse, right.out, right.lse, 3, out, lse)) == "form is 3; 0, 1 or 2");
  CHECK(has(line(ta_merge(left.out, left.lse, call.k, right.lse, 0, out, lse)), "o2 has other axes"));
  CHECK(line(ta_merge(left.out, left.lse, right.out, right.lse, 0, right.out, lse)) == "out is written and overlaps o2");
}

TEST_CASE("interface: a handle appends, steps, truncates and combines, and refuses what does not fit") {
  const Call call;
  REQUIRE(call.attend() == TA_OK);
  ta_setup setup = setup_of_call();
  const Handle handle(setup);
  ta_attention* attention = handle;
  const Managed k({2, 70, 8}, 2), v({2, 70, 6}, 3), out({1, 4, 2, 6}), lse({1, 4, 2});
  CHECK(ta_append(attention, 0, 70, k, v) == TA_OK);
  REQUIRE(ta_step(attention, call.q, nullptr, out, lse) == TA_OK);
  for (std::size_t i = 0; i < 48; ++i) CHECK(std::fabs(out.at(i) - call.out.at(i)) < 1e-6);
  std::int64_t length = 0;
  int holds = 0;
  CHECK((ta_length(attention, 0, &length) == TA_OK && length == 70));
  CHECK((ta_holds(attention, 5, &holds) == TA_OK && holds == 1));
  CHECK(line(ta_length(attention, 1, &length), TA_RANGE) == "batch entry 1 of 1");
  CHECK(has(line(ta_holds(attention, -1, &holds), TA_RANGE), "position -1"));
  CHECK(line(ta_append(attention, 0, 3, nullptr, nullptr)) ==
        "Attention::append: rank 0 holds 3 of the positions [70, 73), but has no data of them");
  CHECK(line(ta_append(attention, 0, 3, k, v)) == "k has 70 positions, but n is 3");
  CHECK(line(ta_append(attention, 0, -1, k, v)) == "n is -1");
  CHECK(has(line(ta_append(attention, 0, std::numeric_limits<std::int64_t>::max(), nullptr, nullptr), TA_RANGE),
            "do not fit"));
  CHECK(has(line(ta_append(attention, 9, 70, k, v), TA_RANGE), "batch entry 9"));
  CHECK(has(line(ta_truncate(attention, 0, 71), TA_RANGE), "70 positions, not 71"));
  const Managed two_heads({1, 2, 2, 8}, 1);
  CHECK(line(ta_step(attention, two_heads, nullptr, out, nullptr)).starts_with("DecodeSession"));
  const Managed other_l({1, 4, 5, 8}, 1);  // a step has any number of queries
  CHECK(has(line(ta_step(attention, other_l, nullptr, out, nullptr)), "out is [1, 4, 2, 6]"));
  CHECK(ta_truncate(attention, 0, 0) == TA_OK);
  CHECK(ta_step(attention, call.q, nullptr, out, nullptr) == TA_OK);
  CHECK(out.at(0) == 0);
  CHECK(ta_combine(attention, call.out, call.lse, TA_NATURAL, 1, out, lse) == TA_OK);
  CHECK(std::fabs(out.at(5) - call.out.at(5)) < 1e-6);
  ta_close(nullptr);

  setup.values_in_keys = 1;
  const Handle latent(setup);
  CHECK(line(ta_append(latent, 0, 70, k, v)) == "v is not null, but values are the first components of the keys");
  CHECK(ta_append(latent, 0, 70, k, nullptr) == TA_OK);
  CHECK(ta_step(latent, call.q, nullptr, out, nullptr) == TA_OK);
  setup.values_in_keys = 0, setup.algorithm = "none";
  CHECK(has(line(ta_open(&setup, &attention)), "--algorithm none: unknown"));
  CHECK(attention == nullptr);
  setup.algorithm = nullptr, setup.heads = 3;
  CHECK(has(line(ta_open(&setup, &attention)), "3 query heads"));
  setup.heads = -4;
  CHECK(has(line(ta_open(&setup, &attention)), "an axis is negative"));
  setup.heads = 4, setup.key_type = {0, 8, 1};
  CHECK(has(line(ta_open(&setup, &attention)), "key_type has elements of code 0"));
  setup.key_type = {7, 8, 1};  // F8_E3M4
  CHECK(has(line(ta_open(&setup, &attention)), "key_type has elements of code 7, 8 bits"));
  CHECK(line(ta_open(nullptr, &attention)) == "setup or attention is null");
  CHECK(line(ta_step(nullptr, call.q, nullptr, out, nullptr)) == "attention is null");
  CHECK(std::string(ta_version()).starts_with("0."));
}

TEST_CASE("interface: a cache of F8_E4M3 with scales has the bits of the library, whatever type its rows have before") {
  const Call call;
  const std::vector<float> of_keys{0.02f, 0.3f}, of_values{0x1p-6f, 0.011f};
  Managed k_scale({1, 2}), v_scale({1, 2});
  std::memcpy(k_scale.bytes.data(), of_keys.data(), 8), std::memcpy(v_scale.bytes.data(), of_values.data(), 8);
  // Rows that were divided and rounded before.
  const auto divided = [](Managed& to, const Managed& from, const std::vector<float>& by) {
    for (std::size_t i = 0; i < to.bytes.size(); ++i)
      to.bytes[i] = std::byte{narrow<Float8>(from.at(i) / by[i / (to.bytes.size() / 2)]).bits};
  };
  const Managed k({2, 70, 8}, 2), v({2, 70, 6}, 3);
  Managed k8({2, 70, 8}, kF8), v8({2, 70, 6}, kF8);
  divided(k8, k, of_keys), divided(v8, v, of_values);
  constexpr DType kType = DType::F8_E4M3;
  Attention library({kType, kType, 1, 4, 2, 8, 6}, {.scales = {of_keys, of_values}});
  library.append(0, TensorView::dense(k8.bytes.data(), kType, {1, 2, 70, 8}),
                 TensorView::dense(v8.bytes.data(), kType, {1, 2, 70, 6}));
  const DecodeOutput expected = library.step(call.q.view()).copy();

  ta_setup setup = setup_of_call();
  setup.key_type = setup.value_type = kF8, setup.k_scale = k_scale, setup.v_scale = v_scale;
  for (const bool is_narrow : {false, true}) {
    const Handle attention(setup);
    REQUIRE(ta_append(attention, 0, 70, is_narrow ? k8 : k, is_narrow ? v8 : v) == TA_OK);
    REQUIRE(ta_step(attention, call.q, nullptr, call.out, call.lse) == TA_OK);
    CHECK(same_bits(call.out.bytes, std::as_bytes(std::span(expected.out))));
    CHECK(same_bits(call.lse.bytes, std::as_bytes(std::span(expected.lse))));
  }
  ta_attention* none = nullptr;
  v_scale.shape = {2, 1};
  CHECK(line(ta_open(&setup, &none)) == "v_scale is [2, 1]; expected [1, 2]");
  CHECK(none == nullptr);
}

}  // namespace tree_attn::test
