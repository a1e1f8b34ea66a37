// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Soft caps and masks: the CPU backend has the bits of the plain decode, a row those of itself alone, and both are
/// within the bound of the oracle (section 5).
#include "reference/decode/backend.hpp"
#include "reference/decode/plain.hpp"
#include "reference/oracle/error_bound.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/seen_cases.hpp"

#include <doctest/doctest.h>

#include <cstring>

namespace tree_attn::test::mask_test {
namespace {

constexpr std::array kTypes{DType::F32, DType::F16, DType::BF16, DType::F64, DType::F8_E4M3};
constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kLn2Here = 0.69314718055994530942;

float capped(float s, double c) { return SoftCap(c)(s); }

}  // namespace

TEST_CASE("mask: the soft cap is within 8 units of c tanh(s / c), odd, rising, and c at infinity") {
  std::mt19937 random(5101);
  double largest = 0;
  for (const double c : {0x1p-60, 1e-3, 0.7, 1.0, 2.0, 30.0, 50.0, 1e4, 0x1p60}) {
    for (int i = 0; i < 20000; ++i) {
      const double x =
          std::ldexp(std::uniform_real_distribution<double>(0.5, 1)(random), -static_cast<int>(random() % 30) + 5);
      const auto s = static_cast<float>(x * c * kLog2E);
      const double want = kLog2E * c * std::tanh(kLn2Here * s / c);
      largest = std::max(largest, std::abs(capped(s, c) - want) / (0x1p-24 * want));
      REQUIRE(capped(-s, c) == -capped(s, c));
    }
    CHECK(capped(kInf, c) == static_cast<float>(kLog2E * c));
    CHECK(capped(-kInf, c) == -static_cast<float>(kLog2E * c));
    CHECK(std::isnan(capped(kNaN, c)));
    CHECK(capped(0, c) == 0);
  }
  MESSAGE("largest error " << largest << " units of 2^-24");
  CHECK(largest < 8);
  CHECK(capped(3.7f, 0) == 3.7f);
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("mask: random rules, masks, caps and sinks: the bits of the plain decode and of a row alone, near the oracle") {
  std::mt19937 random(5102);
  const int n_cases = kIsSanitized ? 60 : takes_all_cases() ? 10000 : 140;
  int n_masked = 0, n_capped = 0, n_empty = 0, n_over_ranks = 0, n_with_hidden = 0;
  for (int i = 0; i < n_cases; ++i) {
    const SeenCase c = random_seen_case(random, 500, kTypes);
    const MaskOfCase of_case(random, c);
    INFO(c.text() << of_case.text());
    n_over_ranks += c.n_holders() > 1, n_with_hidden += c.hides_leaves();
    n_masked += of_case.mask.data != nullptr, n_capped += of_case.softcap > 0;
    const auto workload = normal_workload(5103u + static_cast<unsigned>(i), c.axes, c.lengths);
    std::vector<float> sink;
    for (std::int64_t h = 0; i % 4 > 0 && h < c.axes.heads; ++h)
      sink.push_back(std::normal_distribution<float>(0, 5)(random));
    if (i % 4 == 1) sink.back() = -kInf;
    const Step step{workload->query(0), workload->lengths(), c.rule, sink, of_case.mask, of_case.softcap};

    for (const KeyRange& range : closed(c.ranges, step.longest())) {
      const auto cache = cpu_backend(1 + i % 2).make_cache(workload->shape(), OwnedLeaves(range, c.order), 1);
      fill(*cache, *workload, workload->lengths());
      check_plain(*cache, step, workload->scale);
    }

    // A row alone, with its row of the mask.
    std::vector<float> all = decode_ranges(cpu_backend(1 + i % 3), c, *workload, step);
    const std::int64_t l = c.axes.n_queries, n_h = c.axes.heads, d_v = c.axes.value_dim;
    const auto size = static_cast<std::size_t>(state_size(d_v));
    const auto j = static_cast<std::int64_t>(random() % static_cast<unsigned>(l));
    const auto row = workload_of(copy_of(workload->query(0).positions(j, j + 1)), copy_of(workload->k()),
                                 copy_of(workload->v()), c.lengths, workload->scale);
    std::vector<std::int64_t> ends;
    for (std::int64_t e = 0; e < c.axes.batch; ++e) ends.push_back(step.seen(e, j).end);
    const Step alone_step{
        row->query(0),         ends,           {.causal = false, .window = c.rule.window, .sinks = c.rule.sinks}, {},
        of_case.mask.query(j), of_case.softcap};
    const std::vector<float> alone = decode_ranges(cpu_backend(), c, *row, alone_step);
    for (std::int64_t r = 0; r < c.axes.batch * n_h; ++r)
      REQUIRE(std::memcmp(alone.data() + static_cast<std::size_t>(r) * size,
                          all.data() + static_cast<std::size_t>(r * l + j) * size, size * sizeof(float)) == 0);

    // The oracle.
    std::vector<float> out(static_cast<std::size_t>(workload->shape().n_rows() * d_v)), lse;
    for (std::size_t r = 0; r < all.size() / size; ++r) {
      float* const state = all.data() + r * size;
      n_empty += is_empty(state);
      if (!sink.empty()) add_sink(state, step.sink_of(static_cast<std::int64_t>(r)), d_v);
      lse.push_back(finish(state, out.data() + r * static_cast<std::size_t>(d_v), d_v));
    }
    const Shard whole = workload->whole();
    const AttentionOptions options{.scale = workload->scale,
                                   .rule = c.rule,
                                   .sink = {sink.begin(), sink.end()},
                                   .lengths = c.lengths,
                                   .mask = of_case.mask,
                                   .softcap = of_case.softcap};
    const AttentionResult exact = attention(step.q, whole.k, whole.v, options);
    const ErrorBound bound = error_bound(step.q, whole.k, whole.v, options, tree_decode_model(c.axes.n_keys + 1));
    const Comparison of_out = compare(out, exact.out, bound.out),
                     of_lse = compare(lse, exact.lse, bound.lse, NonFinite::Match);
    CHECK_MESSAGE(of_out.ok, of_out.message);
    CHECK_MESSAGE(of_lse.ok, of_lse.message);
  }
  CHECK(n_masked > n_cases / 2);
  CHECK(n_capped > n_cases / 3);
  CHECK(n_empty > 5);
  CHECK(n_over_ranks > n_cases / 3);
  CHECK(n_with_hidden > n_cases / 10);
}

TEST_CASE("mask: a key of which the mask is false has the bits of a key that is not there to see, even with NaN in it") {
  std::mt19937 random(5104);
  for (const DType dtype : kTypes) {
    const Axes axes{.heads = 4, .kv_heads = 2, .n_queries = 2, .n_keys = 200, .dtype = dtype};
    Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
           v = normal_tensor(random, axes.v(), dtype);
    // Seen are the last 70 keys.
    std::vector<std::uint8_t> mask(2 * 200, 0);
    for (std::size_t a = 0; a < mask.size(); ++a) mask[a] = a % 200 >= 130;
    for (std::int64_t g = 0; g < 2; ++g)
      for (std::int64_t a = 0; a < 130; ++a) k.set(0, g, a, 0, kNaN), v.set(0, g, a, 3, kInf);
    const auto workload = workload_of(std::move(q), std::move(k), std::move(v));
    const OwnedLeaves whole(KeyRange{0, 200});
    Forest<float> masked =
        decode_range(cpu_backend(), *workload, whole,
                     {workload->query(0), workload->lengths(), {}, {}, Mask::dense(mask.data(), true, {1, 1, 2, 200})});
    Forest<float> window =
        decode_range(cpu_backend(), *workload, whole, {workload->query(0), workload->lengths(), {.window = 70}});
    const std::span<const float> a = masked.fold(), b = window.fold();
    CHECK(std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
  }
}

TEST_CASE("mask: the element of an entry, a head, a query and a key, and one for all entries or heads") {
  std::vector<float> numbers(2 * 3 * 4 * 5);
  std::vector<std::uint8_t> bytes(numbers.size());
  for (std::size_t at = 0; at < numbers.size(); ++at)
    numbers[at] = static_cast<float>(at), bytes[at] = at % 3 == 0 ? 0 : static_cast<std::uint8_t>(at);
  for (const std::array<std::int64_t, 4>& shape :
       {std::array<std::int64_t, 4>{2, 3, 4, 5}, {1, 3, 4, 5}, {2, 1, 4, 5}, {1, 1, 4, 5}}) {
    const Mask added = Mask::dense(numbers.data(), false, shape), seen = Mask::dense(bytes.data(), true, shape);
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t h = 0; h < 3; ++h)
        for (std::int64_t j = 0; j < 4; ++j)
          for (std::int64_t a = 0; a < 5; ++a) {
            const std::int64_t entry = shape[0] == 1 ? 0 : i, head = shape[1] == 1 ? 0 : h,
                               at = ((entry * shape[1] + head) * 4 + j) * 5 + a;
            const double of_bytes = at % 3 == 0 ? -std::numeric_limits<double>::infinity() : 7;
            CHECK(added.add(7.0, 2.0, i, h, j, a) == 7 + 2 * static_cast<double>(at));
            CHECK(added.query(j).add(7.0, 2.0, i, h, 0, a) == 7 + 2 * static_cast<double>(at));
            CHECK(seen.add(7.0, 2.0, i, h, j, a) == of_bytes);
            CHECK(seen.query(j).add(7.0, 2.0, i, h, 0, a) == of_bytes);
          }
  }
  CHECK(Mask{}.add(7.0, 2.0, 1, 1, 1, 1) == 7);
}

TEST_CASE("mask: other axes and caps out of range are refused") {
  const auto workload = normal_workload(5106, {.n_queries = 2, .n_keys = 70});
  const std::vector<float> elements(4 * 2 * 70);
  const auto cache = cpu_backend().make_cache(workload->shape(), KeyRange{0, 70});
  fill(*cache, *workload, workload->lengths());
  const auto session = cache->open(1);
  const auto check = [&](const std::array<std::int64_t, 4>& shape, double softcap, const char* line) {
    const Step step{workload->query(0), workload->lengths(), {}, {}, Mask::dense(elements.data(), false, shape), softcap};
    CHECK_THROWS_WITH_AS(session->decode(step), line, std::invalid_argument);
  };
  check({2, 1, 2, 70}, 0, "DecodeSession::decode: the mask is [2, 1, 2, 70] instead of [1 or 1, 4 or 1, 2, 70]");
  check({1, 2, 2, 70}, 0, "DecodeSession::decode: the mask is [1, 2, 2, 70] instead of [1 or 1, 4 or 1, 2, 70]");
  check({1, 4, 2, 69}, 0, "DecodeSession::decode: the mask is [1, 4, 2, 69] instead of [1 or 1, 4 or 1, 2, 70]");
  check({1, 4, 2, 70}, -1, "DecodeSession::decode: a soft cap of -1, which is not 0 (none) or 2^-60 to 2^60");
  check({1, 4, 2, 70}, kNaN, "DecodeSession::decode: a soft cap of nan, which is not 0 (none) or 2^-60 to 2^60");
}

}  // namespace tree_attn::test::mask_test
