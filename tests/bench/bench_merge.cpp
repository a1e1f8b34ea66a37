// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Speed of the merge against the paper's form and of the finish (section 5).
///
/// Run: ./run bench
///
/// Every result is meant as a ratio inside one run.
#include "reference/cpu/leaf_kernel.hpp"
#include "reference/state/state.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using namespace tree_attn;

constexpr std::int64_t kHeadDim = 128;

/// A merge of states in the paper's form, with a natural exponent: two calls of exp.
void merge_natural_exponent(float* left, const float* right, std::int64_t d_v) {
  const float m = std::max(left[kShift], right[kShift]);
  const float of_left = std::exp(left[kShift] - m), of_right = std::exp(right[kShift] - m);
  left[kShift] = m;
  for (std::int64_t i = kSum; i < state_size(d_v); ++i) left[i] = of_left * left[i] + of_right * right[i];
}

template <class Merge>
void merge_states(benchmark::State& state, Merge merge_two) {
  constexpr std::int64_t kStates = 64;
  const std::int64_t size = state_size(kHeadDim);
  std::vector<float> states(static_cast<std::size_t>(kStates * size), 0.5f), sum(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < kStates; ++i) states[static_cast<std::size_t>(i * size)] = static_cast<float>(i * 7 % 5);
  for (auto _ : state) {
    set_empty(sum.data(), kHeadDim);
    for (std::int64_t i = 0; i < kStates; ++i) merge_two(sum.data(), states.data() + i * size, kHeadDim);
    benchmark::DoNotOptimize(sum.data());
    benchmark::ClobberMemory();
  }
}

/// Finishing with every quotient looked at, also where none is infinite or NaN.
float finish_by_component(const float* state, float* z, std::int64_t d_v) {
  const float shift_and_sum[] = {state[kShift], state[kSum]};
  for (std::int64_t j = 0; j < d_v; ++j) z[j] = finish_value(shift_and_sum, state[kValues + j]);
  return finish_lse(shift_and_sum);
}

/// finish() of finite components, counted in elements of twice their width.
float finish_counted_wide(const float* __restrict state, float* __restrict z, std::int64_t d_v) {
  const float shift_and_sum[] = {state[kShift], state[kSum]};
  std::int64_t n_finite = 0;
  for (std::int64_t j = 0; j < d_v; ++j) {
    z[j] = state[kValues + j] / shift_and_sum[kSum];
    n_finite += std::fabs(z[j]) <= std::numeric_limits<float>::max();
  }
  return n_finite < d_v ? finish_by_component(state, z, d_v) : finish_lse(shift_and_sum);
}

template <class Finish>
void finish_states(benchmark::State& state, Finish finish_one) {
  std::vector<float> one(static_cast<std::size_t>(state_size(kHeadDim)), 0.5f), z(kHeadDim);
  for (auto _ : state) {
    benchmark::DoNotOptimize(finish_one(one.data(), z.data(), kHeadDim));
    benchmark::DoNotOptimize(z.data());
    benchmark::ClobberMemory();
  }
}

/// The end of a combine: 128 pairs of states merged and finished, in one pass or in two.
void merge_and_finish(benchmark::State& state, bool in_one_pass) {
  constexpr std::int64_t kRows = 128;
  const LeafKernel& kernel = leaf_kernel();
  std::vector<float> left(static_cast<std::size_t>(kRows * state_size(kHeadDim)), 0.5f), right = left;
  std::vector<float> merged = left, z(kRows * kHeadDim), lse(kRows);
  for (auto _ : state) {
    if (in_one_pass) {
      kernel.finish_merged(left.data(), right.data(), kRows, kHeadDim, z.data(), lse.data());
    } else {
      kernel.merge_states(left.data(), right.data(), merged.data(), kRows, kHeadDim);
      kernel.finish_states(merged.data(), kRows, kHeadDim, z.data(), lse.data());
    }
    benchmark::ClobberMemory();
  }
}

}  // namespace

BENCHMARK_CAPTURE(merge_states, power_of_two, merge<float>);
BENCHMARK_CAPTURE(merge_states, natural_exponent, merge_natural_exponent);
BENCHMARK_CAPTURE(finish_states, at_once, finish<float>);
BENCHMARK_CAPTURE(finish_states, by_component, finish_by_component);
BENCHMARK_CAPTURE(finish_states, counted_wide, finish_counted_wide);
BENCHMARK_CAPTURE(merge_and_finish, in_one_pass, true);
BENCHMARK_CAPTURE(merge_and_finish, in_two_passes, false);

BENCHMARK_MAIN();
