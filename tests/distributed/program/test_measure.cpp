// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The program's comparison with the oracle: it must fail where it should (section 6, appendix F).
#include "distributed/program/measure.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "tests/support/decoding.hpp"

#include <functional>

namespace tree_attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// A result that is right, to be spoilt.
struct Right {
  std::unique_ptr<TensorWorkload> workload;
  Verifier verify;
  const Algorithm* algorithm = &find_algorithm("gather");
  DecodeOutput output;

  explicit Right(std::unique_ptr<TensorWorkload> given)
      : workload(std::move(given)), verify(*workload, workload->scale, 4, cpu_backend()) {
    output = decode_alone(*workload);
  }
  bool passes() const { return verify(*algorithm, output).passed; }
  float& out(std::size_t i) { return output.out[i]; }
  float& lse(std::size_t i) { return output.lse[i]; }
};

/// Equal scores, and values of at least 1, so that a bound is a multiple of |z|.
std::unique_ptr<TensorWorkload> even_workload(std::int64_t n_keys, float score = 0) {
  const Axes axes{.head_dim = 1, .n_keys = n_keys};
  std::mt19937 random(1550);
  std::vector<float> values = normal_elements(random, n_elements(axes.v()));
  for (float& x : values) x = 1 + std::abs(x);
  return workload_of(Tensor(std::vector<float>(4, 1), axes.q()),
                     Tensor(std::vector<float>(static_cast<std::size_t>(2 * n_keys), score), axes.k()),
                     Tensor(values, axes.v()));
}

std::unique_ptr<TensorWorkload> with_value(float number) {
  const Axes axes{.heads = 2, .kv_heads = 2, .head_dim = 8, .value_dim = 3, .n_keys = 20};
  std::mt19937 random(1400);
  Tensor q = normal_tensor(random, axes.q()), k = normal_tensor(random, axes.k()), v = normal_tensor(random, axes.v());
  v.set(0, 0, 7, 1, number);
  return workload_of(std::move(q), std::move(k), std::move(v));
}

}  // namespace

TEST_CASE("verifier: a right result passes, far below its bound, and small errors, NaN, Inf and swapped numbers fail") {
  const Right right(normal_workload(1500, {.batch = 2, .n_keys = 100}));
  using Numbers = std::vector<float>;
  const auto errors_of = [&](const std::function<void(Numbers&, Numbers&)>& spoil) {
    DecodeOutput output = right.output;
    spoil(output.out, output.lse);
    return right.verify(*right.algorithm, output);
  };
  const Errors none = errors_of([](Numbers&, Numbers&) {});
  CHECK(none.passed);
  CHECK(none.max_over_bound > 0);
  CHECK(none.max_over_bound < 0.3);
  CHECK(none.max_abs < 1e-5);
  CHECK(none.max_rel < 1e-5);

  CHECK_FALSE(errors_of([](Numbers& out, Numbers&) { out[5] += 1e-4f; }).passed);
  CHECK_FALSE(errors_of([](Numbers&, Numbers& lse) { lse[7] += 1e-3f; }).passed);
  CHECK_FALSE(errors_of([](Numbers&, Numbers& lse) { lse[0] = -kInf; }).passed);
  CHECK_FALSE(errors_of([](Numbers& out, Numbers&) { std::swap(out[0], out[1]); }).passed);
  CHECK_FALSE(errors_of([](Numbers& out, Numbers&) { std::ranges::fill(out, 0.0f); }).passed);
  for (const float number : {kNaN, kInf}) {
    const Errors of_one = errors_of([&](Numbers& out, Numbers&) { out.back() = number; });
    CHECK_FALSE(of_one.passed);
    CHECK(of_one.max_abs == kInf);
    CHECK(of_one.max_rel == kInf);
    CHECK(of_one.max_over_bound == kInf);
    CHECK(of_one.lse_max < 1e-5);
    const Errors of_lse = errors_of([&](Numbers&, Numbers& lse) { lse[3] = number; });
    CHECK_FALSE(of_lse.passed);
    CHECK(of_lse.lse_max == kInf);
    CHECK_FALSE(errors_of([&](Numbers& out, Numbers&) { std::ranges::fill(out, number); }).passed);
  }
}

/// A bound that is too large holds nothing: of equal scores and positive values it is some hundred u.
TEST_CASE("verifier: an error of 1000 u is beyond the bound of every backend and algorithm") {
  const auto workload = even_workload(200);
  const Layout layout{Topology::pretend(3, 3), even_ranges(200, 3, kLeafKeys)};
  for (const Backend* backend : {&cpu_backend(), &emulated::backend()}) {
    const Verifier verify(*workload, workload->scale, 3, *backend);
    for (const Algorithm& algorithm : algorithms()) {
      INFO(backend->name() << ", " << algorithm.name);
      DecodeOutput output = decode(*rank_groups({3})[0], algorithm, *workload, layout, *backend)[0].output;
      CHECK(verify(algorithm, output).passed);
      for (float& z : output.out) z *= 1 + 1000 * 0x1p-24f;
      CHECK_FALSE(verify(algorithm, output).passed);
    }
  }
}

TEST_CASE("verifier: NaN must be NaN, Inf may be the same Inf or, where a weight underflowed, NaN") {
  Right nan(with_value(kNaN));
  CHECK(nan.passes());
  nan.out(1) = 0;
  CHECK_FALSE(nan.passes());
  nan.out(1) = kInf;
  CHECK_FALSE(nan.passes());

  Right inf(with_value(-kInf));
  CHECK(inf.out(1) == -kInf);
  CHECK(inf.passes());
  inf.out(1) = kNaN;
  CHECK(inf.passes());
  inf.out(1) = kInf;
  CHECK_FALSE(inf.passes());
  inf.out(1) = std::numeric_limits<float>::max();
  CHECK_FALSE(inf.passes());
}

TEST_CASE("verifier: no keys means z = 0 and lse = -inf, exactly") {
  Right right(normal_workload(1600, {.n_keys = 0}));
  CHECK(right.passes());
  right.out(3) = 1e-30f;
  CHECK_FALSE(right.passes());
  right.out(3) = 0;
  right.lse(1) = -1e30f;
  CHECK_FALSE(right.passes());
}

/// 2^128 in base two is 2.36e38.
TEST_CASE("verifier: a row whose scores are all below -2^128 in base two may be that of no keys, and no other row") {
  for (const float score : {-2.4e38f, -3.4e38f}) {
    CAPTURE(score);
    Right right(even_workload(100, score));
    REQUIRE(right.output.lse[0] == -kInf);
    CHECK(right.passes());
    right.out(0) = 1e-30f;
    CHECK_FALSE(right.passes());
    right.out(0) = 0, right.lse(3) = kNaN;
    CHECK_FALSE(right.passes());
  }
  Right above(even_workload(100, -2.3e38f));
  CHECK(above.passes());
  std::ranges::fill(above.output.out, 0.0f), std::ranges::fill(above.output.lse, -kInf);
  CHECK_FALSE(above.passes());
}

TEST_CASE("verifier: what an algorithm adds to the bound is allowed it alone: folds, and weights formed from lse") {
  const auto passes = [](std::int64_t n_keys, float score, std::string_view algorithm, float error) {
    Right right(even_workload(n_keys, score));
    right.algorithm = &find_algorithm(algorithm);
    for (float& z : right.output.out) z *= 1 + error * 0x1p-24f;
    return right.passes();
  };
  // The bound of 64 keys is (2 n_a + 11) u, with n_a = 8 over the tree. Folding the subtrees of a rank first adds 8, and
  // four ranks 4.
  CHECK(passes(64, 0, "gather", 20));
  CHECK_FALSE(passes(64, 0, "gather", 40));
  CHECK(passes(64, 0, "fused", 40));
  CHECK_FALSE(passes(64, 0, "fused", 70));
  // Scores of 4000 are known to 2 * 4000 u; exp(lse - m) is known to 8 * 4000 u.
  CHECK(passes(60, 4000, "gather", 0));
  CHECK_FALSE(passes(60, 4000, "gather", 10 * 4000));
  CHECK(passes(60, 4000, "paper", 10 * 4000));
  CHECK_FALSE(passes(60, 4000, "paper", 400 * 4000));
}

TEST_CASE("measure: the median and the tenths of 0 to 100 are 50, 10 and 90") {
  std::vector<double> times;
  for (int i = 0; i <= 100; ++i) times.push_back(i * 37 % 101);
  const Latency latency = latency_of(times);
  CHECK(latency.median == 50);
  CHECK(latency.p10 == 10);
  CHECK(latency.p90 == 90);
}

namespace {

/// Each time that it is read a second has passed, and from the seventh time on a millisecond.
class FakeClock : public ThreadTransport {
 public:
  using ThreadTransport::ThreadTransport;
  double seconds() const override { return now_ += ++n_asked_ <= 6 ? 1 : 1e-3; }

 private:
  mutable double now_ = 0;
  mutable int n_asked_ = 0;
};

}  // namespace

TEST_CASE("measure: the repetitions to warm up are in no time") {
  const auto workload = normal_workload(1900, {.n_keys = 70});
  const Topology topology = Topology::pretend(1, 1);
  ThreadNetwork network(1, 60);
  const ThreadRanks ranks(network, topology, 0);
  FakeClock transport(ranks, topology);
  OpenShard shard = open_shard(cpu_backend(), workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  // In a step the clock is read when it begins, when the states are there, and when it ends.
  const Bench bench{transport, cpu_backend(), *workload, {{0, 70}}, 2, 3};
  const Measurement measured = measure(bench, shard, find_algorithm("gather"));
  CHECK(measured.latency.p90 == doctest::Approx(2000).epsilon(1e-9));
  CHECK(measured.combine.p90 == doctest::Approx(1000).epsilon(1e-9));
}

}  // namespace tree_attn::test
