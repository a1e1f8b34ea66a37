// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Scalar cores have the bits of the CPU, whatever the rows, the rule of what a query sees, the shards and the order
/// (section 5).
#include "gpu/backend/backends.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/seen_cases.hpp"

#include <array>

namespace tree_attn::test {
namespace {

/// Compares the states of random cases.
/// @param longest row of keys @param values fewest and most components of values
template <std::size_t n_types>
void check_random(unsigned seed, int n, const std::array<DType, n_types>& types, std::int64_t longest, KeyRange values) {
  std::mt19937 random(seed);
  const auto draw = [&random](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int n_sharded = 0, n_dealt = 0, n_windows = 0, n_in_bulk = 0;
  for (int i = 0; i < n; ++i) {
    SeenCase c = random_seen_case(random, i % 10 == 0 ? 700 : 200, types);
    c.axes.kv_heads = draw(1, 2), c.axes.heads = c.axes.kv_heads * draw(1, 8), c.axes.n_queries = draw(1, 8);
    c.axes.head_dim = draw(1, longest), c.axes.value_dim = draw(values.begin, values.end);
    if (i % 4 == 0) c.axes.head_dim = (c.axes.head_dim + 7) / 8 * 8, c.axes.value_dim = (c.axes.value_dim + 7) / 8 * 8;
    n_sharded += c.ranges.size() > 1, n_dealt += c.order == LeafOrder::kDealt, n_windows += c.rule.window > 0;
    n_in_bulk += c.axes.head_dim % 8 == 0 && c.axes.value_dim % 8 == 0;
    c.ends_with_odd_values = i % 7 == 0 && c.axes.n_keys > 2;
    const double softcap = i % 5 == 0 ? 0.5 + static_cast<double>(draw(0, 20)) : 0;
    const auto workload = workload_of(c, seed + static_cast<unsigned>(i));
    const Step step{.q = workload->query(0), .lengths = workload->lengths(), .rule = c.rule, .softcap = softcap};
    INFO(c.text() << ", cap " << softcap << ", seed " << seed + static_cast<unsigned>(i));
    REQUIRE(same_numbers(decode_ranges(device::backend(), c, *workload, step),
                         decode_ranges(cpu_backend(1), c, *workload, step)));
  }
  for (const int count : {n_sharded, n_dealt, n_windows, n_in_bulk}) CHECK(count > n / 10);
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("one digest: scalar cores have the bits of the CPU, rows of up to 128") {
  check_random(6800, takes_all_cases() ? 5000 : 140, std::array{DType::F32}, 128, {0, 128});
}
TEST_CASE("one digest: scalar cores have the bits of the CPU, rows of up to 576") {
  check_random(6900, takes_all_cases() ? 5000 : 60, std::array{DType::F32}, 576, {0, 576});
}
TEST_CASE("one digest: scalar cores have the bits of the CPU, 16 bits in values that tensor cores do not multiply") {
  check_random(7000, takes_all_cases() ? 2000 : 20, std::array{DType::BF16, DType::F16}, 576, {513, 576});
}

}  // namespace tree_attn::test
