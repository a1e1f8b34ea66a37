// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every smoke case of tests/data/cases.json through the C interface: in one call, and by a handle that grows.
#include "reference/oracle/error_bound.hpp"
#include "tests/distributed/interface/managed.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/sanitized.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace tree_attn::test {
namespace {

DLDataType type_of(DType dtype) {
  if (dtype == DType::BF16) return kBF16;
  return {kDLFloat, static_cast<std::uint8_t>(8 * bytes_of(dtype)), 1};
}

/// A view as another library exports it: [b, heads, n, d] or, of one entry, [heads, n, d].
struct Exported {
  TensorView view;
  std::array<std::int64_t, 4> strides;
  DLManagedTensor tensor{};

  Exported(const TensorView& of, bool is_entry) : view(of), strides{of.stride[0], of.stride[1], of.stride[2], 1} {
    const int first = is_entry ? 1 : 0;
    tensor.dl_tensor = {const_cast<std::byte*>(view.data),
                        {kDLCPU, 0},
                        4 - first,
                        type_of(view.dtype),
                        view.shape.data() + first,
                        strides.data() + first,
                        0};
  }
  Exported(const Exported&) = delete;
  operator const DLManagedTensor*() const { return &tensor; }
};

void check_case(const Case& c) {
  const auto workload = input_of(c, c.ranks.front());
  const AttentionShape& shape = workload->shape();
  const std::array<std::int64_t, 4> rows{1, shape.heads, 1, shape.value_dim};
  ta_setup setup{};
  setup.size = sizeof setup;
  setup.batch = shape.batch, setup.heads = shape.heads, setup.kv_heads = shape.kv_heads;
  setup.head_dim = shape.head_dim, setup.value_dim = shape.value_dim, setup.scale = workload->scale;
  setup.key_type = setup.value_type = type_of(c.dtype);
  const Handle handle(setup);
  const Managed out({shape.batch, shape.heads, 1, shape.value_dim}), lse({shape.batch, shape.heads, 1});
  const TensorView q = workload->query(0);
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    const std::int64_t n = workload->lengths()[static_cast<std::size_t>(entry)];
    const TensorView k = workload->k().entry(entry).positions(0, n), v = workload->v().entry(entry).positions(0, n);
    for (std::int64_t at = 0; at < n; at += 100) {
      const std::int64_t end = std::min(n, at + 100);
      const Exported more_k(k.positions(at, end), true), more_v(v.positions(at, end), true);
      REQUIRE(ta_append(handle, entry, end - at, more_k, more_v) == TA_OK);
    }
  }
  REQUIRE(ta_step(handle, Exported(q, false), nullptr, out, lse) == TA_OK);
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    const std::int64_t n = workload->lengths()[static_cast<std::size_t>(entry)];
    const TensorView k = workload->k().entry(entry).positions(0, n), v = workload->v().entry(entry).positions(0, n);
    const Managed own({1, shape.heads, 1, shape.value_dim}), own_lse({1, shape.heads, 1});
    REQUIRE(ta_attend(Exported(q.entry(entry), false), Exported(k, false), Exported(v, false), workload->scale, nullptr, own,
                      own_lse, 1) == TA_OK);
    const AttentionOptions options{.scale = workload->scale};
    AttentionResult exact = attention(q.entry(entry), k, v, options);
    const ErrorBound bound = error_bound(q.entry(entry), k, v, options, tree_decode_model(n));
    const auto of_entry = [&](const Managed& managed, std::int64_t d) {
      const auto* const first = reinterpret_cast<const float*>(managed.bytes.data());
      return std::span(first, managed.bytes.size() / 4)
          .subspan(static_cast<std::size_t>(entry * rows[1] * d))
          .first(static_cast<std::size_t>(rows[1] * d));
    };
    const auto whole = [](const Managed& managed) {
      return std::span(reinterpret_cast<const float*>(managed.bytes.data()), managed.bytes.size() / 4);
    };
    for (const auto& [z, l] : {std::pair{whole(own), whole(own_lse)}, {of_entry(out, rows[3]), of_entry(lse, 1)}}) {
      if (c.overflows()) {
        CHECK(std::ranges::all_of(z, [](float x) { return std::isnan(x); }));
        CHECK(std::ranges::all_of(l, [](float x) { return std::isnan(x); }));
        continue;
      }
      // An Inf by a weight that is 0 in F32 is a NaN.
      for (std::size_t at = 0; at < exact.out.size(); ++at)
        if (std::isinf(exact.out[at]) && std::isnan(z[at])) exact.out[at] = z[at];
      const Comparison of_out = compare(z, exact.out, bound.out, NonFinite::Match),
                       of_lse = compare(l, exact.lse, bound.lse, NonFinite::Match);
      CHECK_MESSAGE(of_out.ok, of_out.message);
      CHECK_MESSAGE(of_lse.ok, of_lse.message);
    }
  }
}

}  // namespace

TEST_CASE("interface: every smoke case of other projects' suites") {
  const std::vector<Case> cases = cases_of("smoke");
  CHECK(cases.size() > 200);
  for (std::size_t i = 0; i < cases.size(); i += kIsSanitized ? 4 : 1) {
    CAPTURE(cases[i].name);
    CAPTURE(cases[i].seed);
    check_case(cases[i]);
  }
}

}  // namespace tree_attn::test
