// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The operations of a plan, element by element.
#include "tree_attn/distributed/decoders/host_fabric.hpp"

#include "tree_attn/reference/energy/log_sum_exp.hpp"
#include "tree_attn/reference/state/state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace tree_attn {
namespace {

/// The larger element, or NaN if either is NaN. MPI_MAX and fmaxf would drop a NaN.
float larger_or_nan(float left, float right) { return left > right || left != left ? left : right; }

}  // namespace

HostFabric::HostFabric(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v,
                       std::shared_ptr<HostMemory> memory)
    : transport_(transport),
      plan_(std::move(plan)),
      n_rows_(n_rows),
      d_v_(d_v),
      divides_(std::ranges::any_of(plan_.operations, [](const Operation& o) { return std::holds_alternative<Divide>(o); })),
      offsets_(plan_.offsets(n_rows, d_v)),
      memory_(memory != nullptr ? std::move(memory) : std::make_shared<HostMemory>(transport, offsets_.back())) {
  if (offsets_.back() > memory_->size()) throw std::logic_error("HostFabric: a plan for more memory");
}

std::span<float> HostFabric::elements(Blocks blocks) const {
  const std::int64_t begin = offsets_[static_cast<std::size_t>(blocks.first)],
                     end = offsets_[static_cast<std::size_t>(blocks.first + blocks.n)];
  return {memory_->get() + begin, static_cast<std::size_t>(end - begin)};
}

std::int64_t HostFabric::n_states(Block block) const { return n_scalars(block) / state_size(d_v_); }

OutputView HostFabric::step(std::span<const float> states, std::span<const float> sinks) {
  begin(states, sinks);
  return finish();
}

void HostFabric::start(std::span<const float> states, std::span<const float> sinks) {
  begin(states, sinks);
  advance();
}

OutputView HostFabric::finish() {
  advance(true);
  return {elements(plan_.z), elements(plan_.lse)};
}

bool HostFabric::advance(bool waits) {
  for (; next_ < plan_.operations.size(); ++next_, is_posted_ = false) {
    const Operation& operation = plan_.operations[next_];
    if (!is_posted_) std::visit([this](const auto& each) { run(each); }, operation);
    if (!std::holds_alternative<Exchange>(operation)) continue;
    is_posted_ = true;
    if (!waits && !transport_.have_arrived()) return false;
    transport_.wait();
  }
  return true;
}

void HostFabric::begin(std::span<const float> states, std::span<const float> sinks) {
  if (std::ssize(states) != offsets_[static_cast<std::size_t>(plan_.n_own)])
    throw std::logic_error("HostFabric: the plan is for another range of positions");
  for (Block block = 0; block < plan_.n_own; ++block)
    std::copy_n(states.data() + plan_.offset_of_own(block, n_rows_, d_v_), elements({block, 1}).size(), at(block));
  sinks_ = sinks;
  next_ = 0, is_posted_ = false;
  transport_.check();
  transport_.count_collectives(plan_.n_collectives);
}

void HostFabric::run(const Exchange& exchange) {
  for (const auto& [peer, blocks] : exchange.receives) transport_.receive(std::as_writable_bytes(elements(blocks)), peer);
  for (const auto& [peer, blocks] : exchange.sends) transport_.send(std::as_bytes(elements(blocks)), peer);
}

void HostFabric::run(const Combine& combine) {
  for (const auto& pair : combine.pairs) {
    const std::span<float> left = elements({pair.left, combine.n});
    const float* const right = at(pair.right);
    switch (combine.op) {
      case Combine::Operator::kMerge:
        kernel_.merge_states(left.data(), right, left.data(), combine.n * n_states(pair.left), d_v_);
        break;
      case Combine::Operator::kMax:
        std::ranges::transform(left, std::span(right, left.size()), left.begin(), larger_or_nan);
        break;
      case Combine::Operator::kAdd:
        std::ranges::transform(left, std::span(right, left.size()), left.begin(), std::plus<float>());
        break;
    }
  }
  transport_.count_merge_steps(std::ssize(combine.pairs));
}

void HostFabric::run(const Copy& copy) {
  for (const auto& [left, right] : copy.pairs) std::ranges::copy(elements({right, 1}), at(left));
}

void HostFabric::run(const Fold& fold) {
  float* first = at(fold.states.first);
  const std::int64_t n_rows = n_states(fold.states.first);
  for (std::int64_t r = 0; fold.states.n == 0 && r < n_rows; ++r) set_empty(first + r * state_size(d_v_), d_v_);
  for (Block last = fold.states.first + fold.states.n - 1; last > fold.states.first; --last)
    kernel_.merge_states(at(last - 1), at(last), at(last - 1), n_rows, d_v_);
}

void HostFabric::run(const Finish& finish) {
  const std::int64_t n = n_states(finish.state);
  float *const z = at(finish.z), *const lse = at(finish.lse);
  float* const state = at(finish.state);
  const float* const right = finish.right ? at(*finish.right) : nullptr;
  if (!sinks_.empty() && !divides_) {
    if (right != nullptr) kernel_.merge_states(state, right, state, n, d_v_);
    for (std::int64_t r = 0; r < n; ++r) add_sink(state + r * state_size(d_v_), sinks_of(finish.state)[r], d_v_);
    kernel_.finish_states(state, n, d_v_, z, lse);
  } else if (right != nullptr) {
    kernel_.finish_merged(state, right, n, d_v_, z, lse);
  } else {
    kernel_.finish_states(state, n, d_v_, z, lse);
  }
  if (finish.right) transport_.count_merge_steps(1);
}

void HostFabric::run(const Weigh& weigh) {
  float *z = at(weigh.z), *lse = at(weigh.lse);
  const float* m = at(weigh.m);
  for (std::int64_t r = 0; r < n_scalars(weigh.lse); ++r) {
    // safe_weight() gives an empty shard weight 0, also where all shards are empty.
    const float weight = static_cast<float>(safe_weight(lse[r], m[r]));
    lse[r] = weight;
    for (std::int64_t j = 0; j < d_v_; ++j) z[r * d_v_ + j] *= weight;
  }
}

void HostFabric::run(const Divide& divide) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  float *n = at(divide.n), *D = at(divide.D);
  float* m = at(divide.m);
  for (std::int64_t r = 0; r < n_scalars(divide.D); ++r) {
    if (!sinks_.empty()) {
      const float sink = sinks_of(divide.D)[r], top = larger_or_nan(m[r], sink),
                  factor = static_cast<float>(safe_weight(m[r], top));
      for (std::int64_t j = 0; j < d_v_; ++j) n[r * d_v_ + j] *= factor;
      D[r] = factor * D[r] + static_cast<float>(safe_weight(sink, top));
      m[r] = top;
    }
    const float m_and_sum[] = {m[r], D[r]};  // laid out as a state; the base of the exponent does not matter here
    for (std::int64_t j = 0; j < d_v_; ++j) n[r * d_v_ + j] = finish_value(m_and_sum, n[r * d_v_ + j]);
    D[r] = m[r] + std::log(D[r]);
    if (D[r] != D[r]) D[r] = kNaN;
  }
}

}  // namespace tree_attn
