// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The operations of a plan as launches and staged messages.
#include "tree_attn/distributed/decoders/device_fabric.hpp"

#include "tree_attn/reference/state/state.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tree_attn {
namespace {

DeviceBlocks::Operator elementwise(Combine::Operator op) {
  return op == Combine::Operator::kMax ? DeviceBlocks::Operator::kMax : DeviceBlocks::Operator::kAdd;
}

bool gathers(const Plan& plan) {
  return std::ranges::any_of(plan.operations, [](const Operation& each) { return std::holds_alternative<AllGather>(each); });
}

}  // namespace

DeviceFabric::DeviceFabric(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v, MakeBlocks make_blocks,
                           DeviceStream* stream, std::span<const float> scales)
    : transport_(transport),
      device_(transport.device()),
      plan_(std::move(plan)),
      n_rows_(n_rows),
      d_v_(d_v),
      offsets_(plan_.offsets(n_rows, d_v)),
      memory_(device_ != nullptr && gathers(plan_) ? device_->allocate_to_gather(n_elements(!scales.empty()) * sizeof(float))
                                                   : nullptr),
      blocks_(make_blocks(n_elements(!scales.empty()), d_v, stream, memory_ ? memory_->of(transport.rank()) : nullptr)),
      staging_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(offsets_.back()))),
      n_out_(static_cast<std::size_t>(size(plan_.z))),
      has_scales_(!scales.empty()) {
  if (has_scales_) {
    std::vector<float> of_elements(n_out_);
    for (std::size_t i = 0; i < n_out_; ++i) of_elements[i] = scales[i * scales.size() / n_out_];
    blocks_->upload(offsets_.back(), of_elements);
  }
  output_ = blocks_->on_host(size(plan_.z) + size(plan_.lse));
  if (device_ != nullptr) device_->add_graphs(blocks_->stream());
}

DeviceFabric::~DeviceFabric() {
  if (device_ != nullptr)
    device_->remove_graphs(blocks_->stream());
  else
    blocks_->stream().forget();
  if (transport_.has_messages_in_flight()) static_cast<void>(staging_.release());
}

void DeviceFabric::queue(const float* states) {
  const Traffic before = transport_.traffic();
  try {
    take_states(states);
    transport_.check();
    transport_.count_collectives(plan_.n_collectives);
    for (const Operation& operation : plan_.operations) std::visit([this](const auto& each) { run(each); }, operation);
    give_output();
  } catch (...) {
    transport_.abandon();
    throw;
  }
  if (device_ != nullptr) queued_ = device_->take_queued();
  recorded_ = transport_.traffic().since(before);
  is_queued_ = true;
}

OutputView DeviceFabric::settle() {
  was_launched_ = !std::exchange(is_queued_, false);
  if (was_launched_) transport_.count_graph(recorded_);
  if (device_ != nullptr)
    device_->settle(queued_);
  else
    blocks_->stream().wait();
  if (leaves_output_) return {on_device(plan_.z), on_device(plan_.lse), true};
  return {output_.first(n_out_), output_.subspan(n_out_)};
}

OutputView DeviceFabric::step(const float* states) {
  blocks_->stream().repeat([&] { queue(states); }, may_be_recorded());
  return settle();
}

std::int64_t DeviceFabric::n_states(Block block) const { return n_scalars(block) / state_size(d_v_); }

std::span<float> DeviceFabric::staged(Blocks blocks) const {
  return {staging_.get() + at(blocks.first), static_cast<std::size_t>(size(blocks))};
}

void DeviceFabric::take_states(const float* states) {
  const bool is_sliced = plan_.n_own > 0 && plan_.widths.front().rows.of > 1;
  if (is_sliced) {
    for (Block block = 0; block < plan_.n_own; ++block)
      blocks_->take(at(block), states + plan_.offset_of_own(block, n_rows_, d_v_), size({block, 1}));
  } else {
    blocks_->take(0, states, at(plan_.n_own));
  }
  if (device_ != nullptr) device_->queue_on(blocks_->stream());
}

void DeviceFabric::give_output() {
  const DeviceBlocks::Pair scaled{at(plan_.z.first), offsets_.back()};
  if (leaves_output_ && has_scales_) blocks_->combine(DeviceBlocks::Operator::kMultiply, {&scaled, 1}, size(plan_.z));
  if (leaves_output_) return;
  blocks_->give(at(plan_.z.first), output_.first(n_out_));
  blocks_->give(at(plan_.lse.first), output_.subspan(n_out_));
}

void DeviceFabric::run(const AllReduce& reduce) {
  if (device_ == nullptr) throw std::logic_error("DeviceFabric: the transport has no AllReduce of its own");
  device_->all_reduce(reduce.op, on_device(reduce.blocks));
}

void DeviceFabric::run(const AllGather& gather) {
  if (device_ == nullptr) throw std::logic_error("DeviceFabric: the transport has no AllGather of its own");
  device_->all_gather(on_device(gather.own), on_device(gather.all));
}

void DeviceFabric::run(const Exchange& exchange) {
  if (device_ != nullptr) {
    for (const auto& [peer, blocks] : exchange.receives) transport_.receive(std::as_writable_bytes(on_device(blocks)), peer);
    for (const auto& [peer, blocks] : exchange.sends) transport_.send(std::as_bytes(on_device(blocks)), peer);
    return transport_.wait();
  }
  for (const auto& [peer, blocks] : exchange.receives) transport_.receive(std::as_writable_bytes(staged(blocks)), peer);
  for (const auto& [peer, blocks] : exchange.sends) {
    blocks_->download(at(blocks.first), staged(blocks));
    transport_.send(std::as_bytes(staged(blocks)), peer);
  }
  transport_.wait();
  for (const auto& [peer, blocks] : exchange.receives) blocks_->upload(at(blocks.first), staged(blocks));
}

void DeviceFabric::run(const Combine& combine) {
  pairs_.clear();
  for (const auto& [left, right] : combine.pairs) {
    // Adjacent blocks of states are merged one by one, since each has rows of its own.
    const std::int32_t n = combine.op == Combine::Operator::kMerge ? combine.n : 1;
    for (std::int32_t i = 0; i < n; ++i) pairs_.push_back({at(left + i), at(right + i)});
  }
  if (combine.op == Combine::Operator::kMerge) {
    blocks_->merge(pairs_, n_states(combine.pairs[0].left));
  } else {
    blocks_->combine(elementwise(combine.op), pairs_, size({combine.pairs[0].left, combine.n}));
  }
  transport_.count_merge_steps(static_cast<std::int64_t>(combine.pairs.size()));
}

void DeviceFabric::run(const Copy& copy) {
  for (const auto& [left, right] : copy.pairs) {
    const DeviceBlocks::Pair pair{at(left), at(right)};
    blocks_->combine(DeviceBlocks::Operator::kCopy, {&pair, 1}, size({left, 1}));
  }
}

void DeviceFabric::run(const Fold& fold) {
  if (fold.states.n == 0) return blocks_->set_empty(at(fold.states.first), n_states(fold.states.first));
  pairs_.clear();
  for (Block last = fold.states.first + fold.states.n - 1; last > fold.states.first; --last)
    pairs_.push_back({at(last - 1), at(last)});
  blocks_->merge(pairs_, n_states(fold.states.first));
}

void DeviceFabric::run(const Finish& finish) {
  const std::int64_t state = at(finish.state);
  blocks_->finish({state, finish.right ? at(*finish.right) : state}, at(finish.z), at(finish.lse), n_states(finish.state));
  if (finish.right) transport_.count_merge_steps(1);
}
void DeviceFabric::run(const Weigh& weigh) { blocks_->weigh(at(weigh.z), at(weigh.lse), at(weigh.m), n_scalars(weigh.lse)); }
void DeviceFabric::run(const Divide& divide) {
  blocks_->divide(at(divide.n), at(divide.D), at(divide.m), n_scalars(divide.D));
}

}  // namespace tree_attn
