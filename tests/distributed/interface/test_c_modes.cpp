// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Modes of the caller's arithmetic, set before, between and beside calls: no bit differs, and the modes stay.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "reference/decode/backend.hpp"
#include "tests/distributed/interface/managed.hpp"
#include "tests/support/float_modes.hpp"
#include "tests/support/same_bits.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <thread>

namespace tree_attn::test {
namespace {

constexpr DLDataType kF32{kDLFloat, 32, 1}, kF16{kDLFloat, 16, 1};
constexpr std::int64_t kFirst = 3000, kMore = 70;

/// Subnormal elements of a type, F32 of about 1e-41; of F8_E4M3 and F16 scores and values are made of them.
void fill_subnormal(Managed& tensor, DLDataType type) {
  const std::size_t size = type.bits / 8;
  for (std::size_t i = 0; i * size < tensor.bytes.size(); ++i) {
    const std::uint32_t size_of = type.bits == 8 ? i * 5 % 7 + 1 : type.bits == 16 ? i * 37 % 1000 + 1 : i * 911 % 7000 + 1;
    const std::uint32_t bits = size_of | static_cast<std::uint32_t>(i % 3 == 0) << (type.bits - 1);
    std::memcpy(tensor.bytes.data() + size * i, &bits, size);
  }
}

enum class When { kNever, kBefore, kBetween, kInAnotherThread };

/// The bytes of all that the C interface computes, with a mode set at some moment.
std::vector<std::byte> computed(DLDataType type, When when, FloatMode::Kind kind) {
  Managed k({2, kFirst, 8}, type), v({2, kFirst, 6}, type), k2({2, kMore, 8}, type), v2({2, kMore, 6}, type);
  for (Managed* each : {&k, &v, &k2, &v2}) fill_subnormal(*each, type);
  Managed q({1, 4, 2, 8}, 1), narrowed({2, kMore, 8}, 4), factor({1, 2});
  for (std::size_t i = 0; i < 64; ++i) {
    const float large = 100 * q.at(i);
    std::memcpy(q.bytes.data() + 4 * i, &large, 4);
  }
  const std::array<float, 2> factors{0.37f, 3.1f};
  std::memcpy(factor.bytes.data(), factors.data(), 8);
  const Managed out({1, 4, 2, 6}), lse({1, 4, 2}), wide({1, 4, 2, 6}, kF64), one({8}, 5), mean({6}, kF64),
      covariance({6, 6}, kF64), merged({1, 4, 2, 6}), merged_lse({1, 4, 2});
  Managed tiny({1, 4, 2, 6}, kF32);
  fill_subnormal(tiny, kF32);
  Managed k4({1, 2, kMore, 8}, type), v4({1, 2, kMore, 6}, type), k1({kMore, 8}, type), v1({kMore, 6}, type);
  for (Managed* each : {&k4, &v4, &k1, &v1}) fill_subnormal(*each, type);

  std::vector<std::byte> all;
  std::optional<FloatMode> mode;
  auto expected = FloatMode::now();
  const auto set = [&] {
    mode.emplace(kind);
    expected = FloatMode::now();
  };
  const auto done = [&](int status, std::initializer_list<const Managed*> outputs) {
    const auto now = FloatMode::now();
    CHECK(now == expected);
    CHECK_MESSAGE(status == TA_OK, std::string(ta_error()));
    for (const Managed* each : outputs) all.insert(all.end(), each->bytes.begin(), each->bytes.end());
  };
  if (when == When::kBefore) set();
  ta_setup setup = setup_of_call();
  setup.key_type = setup.value_type = type, setup.n_threads = 3;
  const Handle handle(setup);
  if (type.bits == 8) setup.k_scale = setup.v_scale = factor;
  const Handle scaled(setup);
  done(TA_OK, {});
  const auto body = [&] {
    if (when == When::kInAnotherThread) set();
    done(ta_append(handle, 0, kFirst, k, v), {});
    done(ta_append(scaled, 0, kFirst, k, v), {});
    done(ta_step(handle, q, nullptr, out, lse), {&out, &lse});
    if (when == When::kBetween) set();
    done(ta_append(handle, 0, kMore, k2, v2), {});
    if (type.bits == 8) done(ta_append(scaled, 0, kMore, narrowed, v2), {});
    for (const Handle* each : {&handle, &scaled}) done(ta_step(*each, q, nullptr, out, lse), {&out, &lse});
    done(ta_combine(handle, tiny, lse, TA_BASE_TWO, 0, merged, merged_lse), {&merged, &merged_lse});
    done(ta_attend(q, k4, v4, 0, nullptr, out, lse, 0), {&out, &lse});
    done(ta_merge(tiny, lse, out, lse, TA_NATURAL, merged, merged_lse), {&merged, &merged_lse});
    done(ta_oracle(q, k4, v4, nullptr, 0, nullptr, wide, nullptr, nullptr, nullptr, 0), {&wide});
    done(ta_error_bound(q, k4, v4, 0, nullptr, 0, 0, 0, wide, 0), {&wide});
    done(ta_moments(one, k1, v1, nullptr, mean, covariance), {&mean, &covariance});
    mode.reset();
  };
  if (when == When::kInAnotherThread)
    std::thread(body).join();
  else
    body();
  return all;
}

}  // namespace

TEST_CASE("modes: no bit of the C interface depends on the caller's arithmetic, and its modes stay") {
  for (const DLDataType type : {kF8, kF16, kF32}) {
    CAPTURE(type.bits);
    const std::vector<std::byte> expected = computed(type, When::kNever, {});
    CHECK(std::ranges::count(expected, std::byte{0}) < std::ssize(expected) / 2);
    for (const When when : {When::kBefore, When::kBetween, When::kInAnotherThread}) {
      CAPTURE(when);
      for (const FloatMode::Kind kind : FloatMode::kAll) {
        CAPTURE(kind);
        const std::vector<std::byte> bytes = computed(type, when, kind);
        REQUIRE(bytes.size() == expected.size());
        std::size_t n_other = 0;
        for (std::size_t i = 0; i < bytes.size(); ++i) n_other += bytes[i] != expected[i];
        CHECK(n_other == 0);
      }
    }
  }
}

TEST_CASE("modes: no bit of Attention over ranks, nor of Combiner, depends on them") {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 6};
  Managed q({1, 4, 2, 8}, 1), k({1, 2, 300, 8}, 2), v({1, 2, 300, 6}, kF32), lse({1, 4, 2, 1}, 3), o({1, 4, 2, 6}, kF32);
  fill_subnormal(v, kF32), fill_subnormal(o, kF32);
  const auto run = [&](std::optional<FloatMode::Kind> kind) {
    std::vector<DecodeOutput> outputs;
    std::mutex mutex;
    const Topology topology = Topology::pretend(3, 2);
    run_threads(topology, 30, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                  std::optional<FloatMode> mode;
                  if (kind) mode.emplace(*kind);
                  const auto before = FloatMode::now();
                  Attention attention(ranks, shape, {.n_threads = 2});
                  attention.append(0, k.view(), v.view());
                  std::vector<DecodeOutput> own{attention.step(q.view()).copy()};
                  attention.truncate(0, 290);
                  attention.start(q.view());
                  for (int i = 0; i < 3; ++i) attention.progress();
                  own.push_back(attention.finish().copy());
                  own.push_back(attention.combine(o.view(), lse.view(), OutputPart::kAll, LseForm::kBaseTwo).copy());
                  const auto after = FloatMode::now();
                  mode.reset();
                  const std::lock_guard lock(mutex);
                  CHECK(after == before);
                  if (ranks.rank() == 1) outputs = own;
                }));
    return outputs;
  };
  const std::vector<DecodeOutput> expected = run({});
  for (const FloatMode::Kind kind : FloatMode::kAll) {
    CAPTURE(kind);
    const std::vector<DecodeOutput> outputs = run(kind);
    REQUIRE(outputs.size() == expected.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) CHECK(same_bits(outputs[i], expected[i]));
  }
}

TEST_CASE("modes: a callback of the caller has the caller's modes, and the session's states have their bits") {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 6};
  Managed q({1, 4, 2, 8}, 1), k({1, 2, 9000, 8}, 2), v({1, 2, 9000, 6}, kF32);
  fill_subnormal(v, kF32);
  const std::vector<std::int64_t> lengths{9000};
  const auto states_of = [&](const std::function<void()>& progress) {
    const auto cache = cpu_backend().make_cache(shape, KeyRange{0, 9000});
    cache->append(0, k.view(), v.view());
    return cache->open(0.3)->decode({q.view(), lengths}, progress).host();
  };
  const Forest<float> expected = states_of({});
  for (const FloatMode::Kind kind : FloatMode::kAll) {
    CAPTURE(kind);
    int n_calls = 0, n_other = 0;
    std::optional<FloatMode> mode(kind);
    const auto before = FloatMode::now();
    const Forest<float> states = states_of([&] {
      ++n_calls;
      n_other += FloatMode::now() != before;
    });
    mode.reset();
    CHECK(n_calls > 0);
    CHECK(n_other == 0);
    CHECK(same_bits(states, expected));
  }
}

}  // namespace tree_attn::test
