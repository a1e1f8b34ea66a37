// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every decode case of tests/data/cases.json, by the library kernel (Alg. 3).
#include "tests/support/cases.hpp"
#include "tests/support/device_params.hpp"

namespace tree_attn::test {
namespace {

bool all_nan(const std::vector<float>& elements) {
  return std::all_of(elements.begin(), elements.end(), [](float x) { return std::isnan(x); });
}

/// Runs a case with its own splits; all must have the same bits. @returns whether a kernel takes it
bool check_case(const Case& c) {
  CAPTURE(c.name);
  CAPTURE(c.seed);
  const auto workload = input_of(c, 1);
  const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
  if (device::kEqualRuns.refusal(shard.params, shard.dtype) != "") return false;
  const DecodeOutput output = run_step(device::kEqualRuns, shard);
  for (const int splits : c.splits) {
    if (splits > 0) CHECK(same_output(run_step(device::kEqualRuns, shard, {.n_splits = splits}), output));
  }
  if (c.overflows()) {
    CHECK(all_nan(output.out));
    CHECK(all_nan(output.lse));
  } else {
    CHECK(against_oracle(*workload, output, device::kEqualRuns, shard) == "");
  }
  return true;
}

std::size_t check_tier(const std::string& tier, std::int64_t most_elements) {
  std::size_t n_taken = 0;
  for (const Case& c : cases_of(tier)) {
    const std::int64_t longest = c.lengths.empty() ? 0 : *std::max_element(c.lengths.begin(), c.lengths.end());
    if (c.batch * c.kv_heads * longest * c.head_dim <= most_elements) n_taken += check_case(c);
  }
  return n_taken;
}

}  // namespace

/// @tested{alg_3, Alg. 3}
TEST_CASE("cases: every smoke case that is a decode") {
  const std::vector<Case> cases = cases_of("smoke");
  const auto n_refused = std::count_if(cases.begin(), cases.end(), [](const Case& c) {
    const auto at = c.input.find("base pointers ");
    const bool inside_a_number = at == 0 && std::stoul(c.input.substr(14)) % bytes_of(c.dtype) != 0;
    return c.dtype == DType::F64 || inside_a_number;
  });
  CHECK(cases.size() > 200);
  // No case is left out but F64 and arrays that start inside a number: the program turns both into what the device takes.
  CHECK(check_tier("smoke", std::numeric_limits<std::int64_t>::max()) + static_cast<std::size_t>(n_refused) == cases.size());
}

TEST_CASE("cases: the standard cases of up to 135,000 elements") { CHECK(check_tier("standard", 135'000) > 0); }

}  // namespace tree_attn::test
