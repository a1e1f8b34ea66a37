// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a query sees, on a device: a row has the bits of itself alone, whatever the rule, the shards and the order
/// (section 5).
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/tests/support/device_params.hpp"
#include "tree_attn/tests/support/seen_cases.hpp"

namespace tree_attn::test {
namespace {

constexpr std::array kTypes{DType::F32, DType::F16, DType::BF16};

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("seen on a device: random rules, shapes and shards: a row has the bits of itself alone") {
  std::mt19937 random(4601);
  const int n = takes_all_cases() ? 1000 : 25;
  int n_over_ranks = 0, n_with_hidden = 0;
  for (int i = 0; i < n; ++i) {
    const SeenCase c = random_seen_case(random, 400, kTypes);
    n_over_ranks += c.n_holders() > 1, n_with_hidden += c.hides_leaves();
    check_rows_alone(device::backend(), c, 4602u + static_cast<unsigned>(i));
  }
  CHECK(n_over_ranks > n / 2);
  CHECK(n_with_hidden > n / 5);
}

TEST_CASE("seen on a device: a value of Inf or NaN is in the rows that see it, and in no other") {
  for (const DType dtype : kTypes) check_hidden_values(device::backend(), dtype);
}

}  // namespace tree_attn::test
