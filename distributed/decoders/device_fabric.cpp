// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The operations of a plan as launches and staged messages.
#include "tree_attn/distributed/decoders/device_fabric.hpp"

#include "tree_attn/reference/state/state.hpp"

#include <algorithm>
#include <atomic>
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

void FabricSize::fit(const Plan& plan, std::int64_t n_rows, std::int64_t d_v) {
  std::int64_t n = 0;
  for (const BlockWidth& width : plan.widths) n += width.rows.most(n_rows) * (width.vectors * d_v + width.scalars);
  elements = std::max(elements, n);
  outputs = std::max(outputs, n_rows * (d_v + 1));
  gathers = gathers || tree_attn::gathers(plan);
}

DeviceFabricMemory::DeviceFabricMemory(Transport& transport, const FabricSize& size, std::int64_t d_v,
                                       MakeBlocks make_blocks, DeviceStream* stream, std::span<const float> scales)
    : transport_(transport),
      n_scales_(std::ssize(scales)),
      scale_size_(scales.empty() ? 0 : size.outputs / (d_v + 1) * d_v / n_scales_),
      scales_at_(size.elements) {
  NcclTransport* const device = transport.device();
  const std::int64_t n = size.elements + n_scales_ * scale_size_;
  if (device != nullptr && size.gathers)
    of_library_ = device->allocate_to_gather(static_cast<std::size_t>(n) * sizeof(float));
  blocks_ = make_blocks(n, d_v, stream, of_library_ ? of_library_->of(transport.rank()) : nullptr);
  staging_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(size.elements));
  std::vector<float> of_elements;
  for (const float scale : scales) of_elements.insert(of_elements.end(), static_cast<std::size_t>(scale_size_), scale);
  if (!of_elements.empty()) blocks_->upload(scales_at_, of_elements);
  output_ = blocks_->on_host(size.outputs);
  if (device != nullptr) device->add_graphs(blocks_->stream());
}

DeviceFabricMemory::~DeviceFabricMemory() {
  if (NcclTransport* const device = transport_.device())
    device->remove_graphs(blocks_->stream());
  else
    blocks_->stream().forget();
  if (transport_.has_messages_in_flight()) static_cast<void>(staging_.release());
}

DeviceFabric::DeviceFabric(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v,
                           std::shared_ptr<DeviceFabricMemory> memory)
    : transport_(transport),
      device_(transport.device()),
      plan_(std::move(plan)),
      n_rows_(n_rows),
      d_v_(d_v),
      offsets_(plan_.offsets(n_rows, d_v)),
      memory_(std::move(memory)),
      blocks_(memory_->blocks_.get()),
      n_out_(static_cast<std::size_t>(size(plan_.z))) {
  if (offsets_.back() > memory_->scales_at_) throw std::logic_error("DeviceFabric: a plan for more memory");
  static std::atomic<std::uint64_t> n_fabrics = 0;
  graph_ = ++n_fabrics;
}

DeviceFabric::DeviceFabric(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v, MakeBlocks make_blocks,
                           DeviceStream* stream)
    : DeviceFabric(transport, plan, n_rows, d_v, [&] {
        FabricSize size;
        size.fit(plan, n_rows, d_v);
        return std::make_shared<DeviceFabricMemory>(transport, size, d_v, make_blocks, stream);
      }()) {}

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
  return {memory_->output_.first(n_out_), memory_->output_.subspan(n_out_, static_cast<std::size_t>(size(plan_.lse)))};
}

OutputView DeviceFabric::step(const float* states) {
  blocks_->stream().repeat([&] { queue(states); }, may_be_recorded());
  return settle();
}

std::int64_t DeviceFabric::n_states(Block block) const { return n_scalars(block) / state_size(d_v_); }

std::span<float> DeviceFabric::staged(Blocks blocks) const {
  return {memory_->staging_.get() + at(blocks.first), static_cast<std::size_t>(size(blocks))};
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
  if (leaves_output_ && memory_->n_scales_ > 0) {
    const std::int64_t n = size(plan_.z) / memory_->n_scales_;
    pairs_.clear();
    for (std::int64_t i = 0; i < memory_->n_scales_; ++i)
      pairs_.push_back({at(plan_.z.first) + i * n, memory_->scales_at_ + i * memory_->scale_size_});
    blocks_->combine(DeviceBlocks::Operator::kMultiply, pairs_, n);
  }
  if (leaves_output_) return;
  blocks_->give(at(plan_.z.first), memory_->output_.first(n_out_));
  blocks_->give(at(plan_.lse.first), memory_->output_.subspan(n_out_, static_cast<std::size_t>(size(plan_.lse))));
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
