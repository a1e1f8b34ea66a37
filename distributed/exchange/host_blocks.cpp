// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The operations of a plan in host memory, element by element.
#include "distributed/exchange/host_blocks.hpp"

#include "reference/energy/log_sum_exp.hpp"
#include "reference/state/state.hpp"
#include "reference/tensor/convert.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace tree_attn {
namespace {

/// The larger element, or NaN if either is NaN. MPI_MAX and fmaxf would drop a NaN.
float larger_or_nan(float left, float right) { return left > right || left != left ? left : right; }

}  // namespace

void set_head(float* states, const TensorView& o, const TensorView& lse, std::int64_t i, std::int64_t h, LseForm form) {
  const std::int64_t d_v = o.shape[3];
  for (std::int64_t j = 0; j < o.shape[2]; ++j, states += state_size(d_v)) {
    float of_row = 0;
    load_row(lse, i, h, j, &of_row);
    // The output is loaded into the state, which ends as long as it.
    float* const row = states + kValues;
    if (of_row != -std::numeric_limits<float>::infinity()) load_row(o, i, h, j, row);
    set_from_lse(states, row, of_row, d_v, form);
  }
}

void HostBlocks::take(std::int64_t at, const float* from, std::int64_t n) { std::copy_n(from, n, address(at)); }

void HostBlocks::convert(const TensorView& from, const TensorView& to) {
  std::vector<float> row(static_cast<std::size_t>(from.shape[3]));
  for (std::int64_t i = 0; i < from.shape[0]; ++i) {
    for (std::int64_t h = 0; h < from.shape[1]; ++h) {
      for (std::int64_t j = 0; j < from.shape[2]; ++j) {
        load_row(from, i, h, j, row.data());
        store(row.data(), to.dtype, to.shape[3], const_cast<std::byte*>(to.row(i, h, j)));
      }
    }
  }
}

void HostBlocks::set_from_lse(std::int64_t states, const TensorView& o, const TensorView& lse, LseForm form) {
  const std::int64_t n_of_head = o.shape[2] * state_size(d_v_);
  for (std::int64_t i = 0; i < o.shape[0]; ++i) {
    for (std::int64_t h = 0; h < o.shape[1]; ++h, states += n_of_head) set_head(address(states), o, lse, i, h, form);
  }
}

void HostBlocks::merge(std::span<const Pair> pairs, std::int64_t n_rows) {
  for (const auto& [left, right] : pairs) kernel_.merge_states(address(left), address(right), address(left), n_rows, d_v_);
}

void HostBlocks::combine(Operator op, std::span<const Pair> pairs, std::int64_t n) {
  for (const auto& [left, right] : pairs) {
    float* const to = address(left);
    const float* const from = address(right);
    switch (op) {
      case Operator::kCopy: std::copy_n(from, n, to); break;
      case Operator::kMax: std::transform(to, to + n, from, to, larger_or_nan); break;
      case Operator::kAdd: std::transform(to, to + n, from, to, std::plus<float>()); break;
      case Operator::kMultiply: std::transform(to, to + n, from, to, std::multiplies<float>()); break;
    }
  }
}

void HostBlocks::set_empty(std::int64_t state, std::int64_t n_rows) {
  for (std::int64_t r = 0; r < n_rows; ++r) tree_attn::set_empty(address(state) + r * state_size(d_v_), d_v_);
}

void HostBlocks::finish(Pair states, std::int64_t z, std::int64_t lse, std::int64_t n_rows, const float* sinks) {
  float* const state = address(states.left);
  const float* right = states.right == states.left ? nullptr : address(states.right);
  if (sinks != nullptr) {
    if (right != nullptr) kernel_.merge_states(state, std::exchange(right, nullptr), state, n_rows, d_v_);
    for (std::int64_t r = 0; r < n_rows; ++r) add_sink(state + r * state_size(d_v_), sinks[r], d_v_);
  }
  if (right != nullptr)
    kernel_.finish_merged(state, right, n_rows, d_v_, address(z), address(lse));
  else
    kernel_.finish_states(state, n_rows, d_v_, address(z), address(lse));
}

void HostBlocks::weigh(std::int64_t z, std::int64_t lse, std::int64_t m, std::int64_t n_rows) {
  float *values = address(z), *own = address(lse);
  const float* const largest = address(m);
  for (std::int64_t r = 0; r < n_rows; ++r, values += d_v_) {
    // safe_weight() gives an empty shard weight 0, also where all shards are empty.
    own[r] = static_cast<float>(safe_weight(own[r], largest[r]));
    for (std::int64_t j = 0; j < d_v_; ++j) values[j] *= own[r];
  }
}

void HostBlocks::divide(std::int64_t n, std::int64_t D, std::int64_t m, std::int64_t n_rows, const float* sinks) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  float *values = address(n), *sum = address(D), *largest = address(m);
  for (std::int64_t r = 0; r < n_rows; ++r, values += d_v_) {
    if (sinks != nullptr) {
      const float top = larger_or_nan(largest[r], sinks[r]), factor = static_cast<float>(safe_weight(largest[r], top));
      for (std::int64_t j = 0; j < d_v_; ++j) values[j] *= factor;
      sum[r] = factor * sum[r] + static_cast<float>(safe_weight(sinks[r], top));
      largest[r] = top;
    }
    const float m_and_sum[] = {largest[r], sum[r]};  // laid out as a state; the base of the exponent does not matter here
    for (std::int64_t j = 0; j < d_v_; ++j) values[j] = finish_value(m_and_sum, values[j]);
    sum[r] = largest[r] + std::log(sum[r]);
    if (sum[r] != sum[r]) sum[r] = kNaN;
  }
}

}  // namespace tree_attn
