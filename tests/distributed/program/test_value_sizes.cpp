// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Averages of values of any size: nothing that counts is lost to underflow, and only a sum beyond F32 to overflow
/// (section 5).
#include "gpu/backend/backends.hpp"
#include "reference/oracle/attention.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/sanitized.hpp"

#include <cmath>

namespace tree_attn::test {
namespace {

constexpr std::int64_t kValueDim = 9;

/// The exponents of the numbers of a type, from its smallest.
struct Form {
  DType dtype;
  int least, most;
};

/// Sizes of the values of a decode, by position and component, and of the weights.
struct Sizes {
  const char* name;
  int (*value)(const Form& form, std::int64_t a, std::int64_t j);
  int (*weight)(const Form& form, std::int64_t a) = [](const Form&, std::int64_t) { return 0; };
};
int falling(const Form& form, std::int64_t a) { return static_cast<int>(a % (form.dtype == DType::F16 ? 15 : 127)); }
int part(const Form& form, int i, int n) { return form.least + (form.most - form.least) * i / n; }
constexpr Sizes kSizes[] = {
    {"the smallest", [](const Form& form, std::int64_t, std::int64_t) { return form.least; }},
    {"small", [](const Form& form, std::int64_t, std::int64_t) { return part(form, 1, 8); }},
    {"ordinary", [](const Form& form, std::int64_t, std::int64_t) { return part(form, 4, 8); }},
    {"large", [](const Form& form, std::int64_t, std::int64_t) { return part(form, 7, 8); }},
    {"the largest", [](const Form& form, std::int64_t, std::int64_t) { return form.most; }},
    {"by component",
     [](const Form& form, std::int64_t, std::int64_t j) { return part(form, static_cast<int>(j), kValueDim - 1); }},
    {"by leaf", [](const Form& form, std::int64_t a, std::int64_t) { return a / 64 % 2 == 0 ? form.least : form.most; }},
    {"as large as the weight is small", [](const Form& form, std::int64_t a, std::int64_t) { return falling(form, a); },
     falling},
    {"the same in some components",
     [](const Form& form, std::int64_t a, std::int64_t j) { return j % 2 == 0 ? falling(form, a) : 0; }, falling},
};

/// Two queries on one key/value head. Base-two scores are whole numbers.
std::unique_ptr<TensorWorkload> workload_of_sizes(const Form& form, const Sizes& sizes, std::int64_t n_keys) {
  std::mt19937 random(1310);
  Tensor q({1, 1}, {1, 2, 1, 1}, form.dtype);
  std::vector<float> k, v;
  for (std::int64_t a = 0; a < n_keys; ++a) {
    k.push_back(static_cast<float>(-sizes.weight(form, a)));
    for (std::int64_t j = 0; j < kValueDim; ++j)
      v.push_back(std::ldexp(random() % 2 == 0 ? 1.0f : j % 3 == 0 ? -1.5f : 1.5f, sizes.value(form, a, j)));
  }
  return workload_of(q, Tensor(k, {1, 1, n_keys, 1}, form.dtype), Tensor(v, {1, 1, n_keys, kValueDim}, form.dtype), {},
                     kLn2);
}

}  // namespace

/// The error allowed is 2^-16 of sum_a w_a |v_aj|, over all keys: those with small weights count too.
/// @tested{eq_7, eq. (7)}
TEST_CASE("value sizes: values of every size, and small weights of large values, have the average of the oracle") {
  RankGroup& two_threads = *rank_groups({2})[0];
  const Algorithm& algorithm = find_algorithm("two-level");
  int n_finite = 0, n_overflowed = 0;
  for (const Backend* backend : {&cpu_backend(), &emulated::backend()}) {
    for (const Form& form : {Form{DType::F32, -149, 127}, {DType::BF16, -133, 127}, {DType::F16, -24, 15}}) {
      for (const std::int64_t n_keys : {1, 2, 63, 130, 3000}) {
        if (kIsSanitized && n_keys > 130) continue;
        for (const Sizes& sizes : kSizes) {
          INFO(backend->name() << ", " << name_of(form.dtype) << ", " << n_keys << " keys, values: " << sizes.name);
          const auto workload = workload_of_sizes(form, sizes, n_keys);
          const Layout layout{Topology::pretend(2, 1), coarse_ranges(n_keys, 2, kLeafKeys)};
          const std::vector<float> out = decode(two_threads, algorithm, *workload, layout, *backend)[0].output.out;

          const AttentionOptions options{.scale = kLn2, .lengths = workload->lengths()};
          const auto average = [&](const TensorView& v) {
            return attention(workload->query(0), workload->k(), v, options).out;
          };
          std::vector<float> magnitudes;
          for (std::int64_t a = 0; a < n_keys; ++a) {
            for (const double x : row_of(workload->v(), 0, 0, a)) magnitudes.push_back(static_cast<float>(std::abs(x)));
          }
          const std::vector<double> exact = average(workload->v()),
                                    magnitude = average(Tensor(magnitudes, workload->v().shape));
          for (std::size_t i = 0; i < out.size(); ++i) {
            if (!std::isfinite(out[i])) {
              // No weight is above 1, so no sum is beyond this.
              CHECK(magnitude[i] * static_cast<double>(n_keys) > std::numeric_limits<float>::max());
              ++n_overflowed;
              continue;
            }
            const double allowed = 0x1p-16 * magnitude[i] + 0x1p-126;
            if (!(std::abs(out[i] - exact[i]) <= allowed))
              FAIL_CHECK("component " << i << " is " << out[i] << ", not " << exact[i] << " +- " << allowed);
            ++n_finite;
          }
        }
      }
    }
  }
  CHECK(n_overflowed > 20);
  CHECK(n_finite > 5 * n_overflowed);
}

}  // namespace tree_attn::test
