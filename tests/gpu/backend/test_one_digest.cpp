// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Scalar cores have the bits of the CPU, whatever the rows, the rule of what a query sees, the shards and the order,
/// in every type for which a portable result is asked (section 5).
#include "gpu/backend/backends.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/seen_cases.hpp"

#include <array>

namespace tree_attn::test {
namespace {

/// Cases of all, or those of the fast set, which a card has too; a GPU in software has half of them.
int n_cases(int all, int fast) {
  if (is_in_software()) return fast / 2;
  return device::kIsHostMemory && takes_all_cases() ? all : fast;
}

/// Draws what a portable result allows beside one type: q of another, values of another, scales of keys, and any scale.
/// Values of F8_E4M3 stand beside keys of it.
void draw_types(std::mt19937& random, SeenCase& c) {
  constexpr std::array kWide{DType::F64, DType::F32, DType::F16, DType::BF16};
  const bool is_f8 = c.axes.dtype == DType::F8_E4M3;
  if (is_f8 || random() % 2 == 0) c.of_queries = kWide[random() % kWide.size()];
  if (!is_f8 && random() % 2 == 0) c.of_values = kWide[random() % kWide.size()];
  if (!is_f8 || random() % 4 == 0) return;
  c.key_scales.resize(static_cast<std::size_t>(c.axes.batch * c.axes.kv_heads));
  for (float& scale : c.key_scales)
    scale = std::ldexp(1 + 0.25f * static_cast<float>(random() % 4), static_cast<int>(random() % 12) - 8);
}

/// Compares the states of random cases.
/// @param longest row of keys @param values fewest and most components of values
/// @param portable whether a portable result is asked for: then types may be mixed
template <std::size_t n_types>
void check_random(unsigned seed, int n, const std::array<DType, n_types>& types, std::int64_t longest, KeyRange values,
                  bool portable = false) {
  std::mt19937 random(seed);
  const auto draw = [&random](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int n_sharded = 0, n_dealt = 0, n_windows = 0, n_in_bulk = 0, n_mixed = 0, n_scaled = 0;
  for (int i = 0; i < n; ++i) {
    SeenCase c = random_seen_case(random, i % 10 == 0 ? 700 : 200, types);
    c.axes.kv_heads = draw(1, 2), c.axes.heads = c.axes.kv_heads * draw(1, 8), c.axes.n_queries = draw(1, 8);
    c.axes.head_dim = draw(1, longest), c.axes.value_dim = draw(values.begin, values.end);
    if (i % 4 == 0) c.axes.head_dim = (c.axes.head_dim + 7) / 8 * 8, c.axes.value_dim = (c.axes.value_dim + 7) / 8 * 8;
    n_sharded += c.ranges.size() > 1, n_dealt += c.order == LeafOrder::kDealt, n_windows += c.rule.window > 0;
    n_in_bulk += c.axes.head_dim % 8 == 0 && c.axes.value_dim % 8 == 0;
    c.ends_with_odd_values = i % 7 == 0 && c.axes.n_keys > 2;
    const double softcap = i % 5 == 0 ? 0.5 + static_cast<double>(draw(0, 20)) : 0;
    if (portable) draw_types(random, c);
    n_mixed += c.of_values.value_or(c.axes.dtype) != c.axes.dtype, n_scaled += !c.key_scales.empty();
    const auto workload = workload_of(c, seed + static_cast<unsigned>(i));
    workload->set_portable(portable);
    if (portable && i % 3 == 0) workload->scale *= std::ldexp(i % 2 == 0 ? 1.0 : -1.0, static_cast<int>(draw(-30, 5)));
    const Step step{.q = workload->query(0), .lengths = workload->lengths(), .rule = c.rule, .softcap = softcap};
    INFO(c.text() << ", cap " << softcap << ", seed " << seed + static_cast<unsigned>(i));
    REQUIRE(same_numbers(decode_ranges(device::backend(), c, *workload, step),
                         decode_ranges(cpu_backend(1), c, *workload, step)));
  }
  if (is_in_software()) return;  // the cases are too few to have all kinds
  for (const int count : {n_sharded, n_dealt, n_windows, n_in_bulk}) CHECK(count > n / 10);
  for (const int count : {n_mixed, n_scaled}) CHECK((count > n / 12) == portable);
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("one digest: scalar cores have the bits of the CPU, rows of up to 128") {
  check_random(6800, n_cases(5000, 140), std::array{DType::F32}, 128, {0, 128});
}
TEST_CASE("one digest: scalar cores have the bits of the CPU, rows of up to 576") {
  check_random(6900, n_cases(5000, 60), std::array{DType::F32}, 576, {0, 576});
}
TEST_CASE("one digest: scalar cores have the bits of the CPU, 16 bits in values that tensor cores do not multiply") {
  check_random(7000, n_cases(2000, 20), std::array{DType::BF16, DType::F16}, 576, {513, 576});
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("one digest: a portable result has the bits of the CPU in all types, rows of up to 128") {
  check_random(
      7100, n_cases(5000, 140),
      std::array{DType::F16, DType::BF16, DType::F8_E4M3, DType::F16, DType::BF16, DType::F8_E4M3, DType::F32, DType::F64},
      128, {0, 128}, true);
}
TEST_CASE("one digest: a portable result has the bits of the CPU in all types, rows of up to 576") {
  check_random(7200, n_cases(5000, 60), std::array{DType::F16, DType::BF16, DType::F8_E4M3}, 576, {0, 576}, true);
}

TEST_CASE("one digest: a portable result splits its scale, so that large queries of F32 overflow in no product") {
  SeenCase c;
  c.axes = {.heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 8, .n_keys = 100, .dtype = DType::F16};
  c.ranges = {{0, 100}}, c.lengths = {100};
  std::mt19937 random(7250);
  std::vector<float> q = normal_elements(random, 16);
  for (float& x : q) x *= 0x1p120f;
  std::vector<float> k = normal_elements(random, 1600);
  for (float& x : k) x *= 0x1p10f;
  const auto workload = workload_of(Tensor(q, c.axes.q(), DType::F32), Tensor(k, c.axes.k(), DType::F16),
                                    normal_tensor(random, c.axes.v(), DType::F16), c.lengths, 0x1p-130);
  workload->set_portable(true);
  const Step step{.q = workload->query(0), .lengths = workload->lengths()};
  const std::vector<float> want = decode_ranges(cpu_backend(1), c, *workload, step);
  for (const float x : want) CHECK(std::isfinite(x));
  CHECK(same_numbers(decode_ranges(device::backend(), c, *workload, step), want));
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("one digest: rung 4 has the bits of a portable walk in 16 bits") {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const std::int64_t d : {8, 40, 128, 136, 256, 304}) {
      const auto workload = normal_workload(7300, {.head_dim = d, .value_dim = d, .n_keys = 333, .dtype = dtype});
      DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      CHECK_FALSE(device::kSplit.refusal(shard.params, dtype).empty());
      shard.params.portable = true;
      CHECK(device::kTensor.refusal(shard.params, dtype) == "a portable result");
      device::set_scale(shard.params, dtype, workload->scale);
      CHECK_MESSAGE(same_output(run_step(device::kSplit, shard), run_step(device::kEqualRuns, shard)), d);
    }
  }
}

}  // namespace tree_attn::test
