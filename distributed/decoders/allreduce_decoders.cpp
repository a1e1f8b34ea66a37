// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decoding with AllReduce: the paper's three, two, and one (Alg. 3).
///
/// The step from three to one is that of the state: once (e, D, n) travel together, one operator merges them, and neither
/// the maximum nor the denominator needs a round of its own.
#include "distributed/decoders/decoder.hpp"

#include "reference/energy/log_sum_exp.hpp"

#include <cmath>
#include <limits>

namespace tree_attn {
namespace {

/// The larger, and NaN if either is NaN: MPI_MAX and fmaxf drop it.
void larger_or_nan(std::span<float> left, std::span<const float> right) {
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!(left[i] > right[i] || left[i] != left[i])) left[i] = right[i];
  }
}

void add(std::span<float> left, std::span<const float> right) {
  for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
}

/// The partial results of a rank in the paper's form: o and lse of its own keys.
DecodeOutput local_output(Transport& transport, const Backend& backend, const DecodeStep& step) {
  Forest<float> forest = local_forest(transport, backend, step);
  return finish_rows(forest.fold(), step.n_rows(), step.d_v());
}

/// Turns o and lse into n = o exp(lse - m) and D = exp(lse - m), in place; with a lift both are 2^-lift of that, so that no sum
/// of n overflows.
void weigh(DecodeOutput& local, std::span<const float> m, const DecodeStep& step) {
  const std::int64_t d_v = step.d_v();
  const float unit = pow2(static_cast<float>(-step.lift));
  for (std::size_t r = 0; r < m.size(); ++r) {
    const float weight = unit * static_cast<float>(safe_weight(local.lse[r], m[r]));  // an empty shard weighs nothing
    local.lse[r] = weight;
    for (std::int64_t j = 0; j < d_v; ++j) local.out[r * static_cast<std::size_t>(d_v) + static_cast<std::size_t>(j)] *= weight;
  }
}

/// z = n / D, lse = m + ln D.
DecodeOutput divide(std::vector<float> n, std::vector<float> D, std::span<const float> m, const DecodeStep& step) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t d_v = step.d_v();
  for (std::size_t r = 0; r < D.size(); ++r) {
    const float m_and_sum[] = {m[r], D[r]};  // the beginning of a state, but for the base of the exponent
    for (std::int64_t j = 0; j < d_v; ++j) {
      float& z = n[r * static_cast<std::size_t>(d_v) + static_cast<std::size_t>(j)];
      z = finish_value(m_and_sum, z);
    }
    D[r] = m[r] + std::log(std::ldexp(D[r], step.lift));
    if (D[r] != D[r]) D[r] = m[r] == -std::numeric_limits<float>::infinity() ? m[r] : kNaN;
  }
  return {std::move(n), std::move(D)};
}

}  // namespace

DecodeOutput decode_paper(Transport& transport, const Backend& backend, const DecodeStep& step) {
  DecodeOutput local = local_output(transport, backend, step);      // (o, lse) of this shard
  std::vector<float> m = local.lse;
  all_reduce(transport, m, larger_or_nan);                          // m = AllReduce(max, lse)
  weigh(local, m, step);                                            // n = o exp(lse - m), D = exp(lse - m)
  all_reduce(transport, local.out, add);                            // n = AllReduce(sum, n)
  all_reduce(transport, local.lse, add);                            // D = AllReduce(sum, D)
  return divide(std::move(local.out), std::move(local.lse), m, step);
}

DecodeOutput decode_packed(Transport& transport, const Backend& backend, const DecodeStep& step) {
  DecodeOutput local = local_output(transport, backend, step);
  std::vector<float> m = local.lse;
  all_reduce(transport, m, larger_or_nan);
  weigh(local, m, step);

  // One message: [n | D].
  std::vector<float> packed = std::move(local.out);
  packed.insert(packed.end(), local.lse.begin(), local.lse.end());
  all_reduce(transport, packed, add);
  const auto split = packed.end() - static_cast<std::ptrdiff_t>(m.size());
  std::vector<float> D(split, packed.end());
  packed.erase(split, packed.end());
  return divide(std::move(packed), std::move(D), m, step);
}

DecodeOutput decode_fused(Transport& transport, const Backend& backend, const DecodeStep& step) {
  Forest<float> forest = local_forest(transport, backend, step);
  const std::span<const float> folded = forest.fold();
  std::vector<float> states(folded.begin(), folded.end());
  const std::int64_t size = state_size(step.d_v());
  all_reduce(transport, states, [&](std::span<float> left, std::span<const float> right) {
    for (std::int64_t r = 0; r < step.n_rows(); ++r) merge(left.data() + r * size, right.data() + r * size, step.d_v());
  });
  return finish_rows(states, step.n_rows(), step.d_v());
}

}  // namespace tree_attn
