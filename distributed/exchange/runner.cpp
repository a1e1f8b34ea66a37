// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The operations of a plan as operations on blocks, and messages.
#include "distributed/exchange/runner.hpp"

#include "distributed/exchange/host_blocks.hpp"
#include "reference/state/state.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

namespace tree_attn {
namespace {

template <class Kind>
bool holds(const Plan& plan) {
  return std::ranges::any_of(plan.operations, [](const Operation& each) { return std::holds_alternative<Kind>(each); });
}

}  // namespace

void RunnerSize::fit(const Plan& plan, std::int64_t n_rows, std::int64_t d_v) {
  std::int64_t n = 0;
  for (const BlockWidth& width : plan.widths) n += width.rows.most(n_rows) * (width.vectors * d_v + width.scalars);
  elements = std::max(elements, n);
  outputs = std::max(outputs, n_rows * (d_v + 1));
  gathers = gathers || holds<AllGather>(plan);
}

RunnerMemory::RunnerMemory(Transport& transport, const RunnerSize& size, std::int64_t d_v, MakeBlocks make_blocks,
                           DeviceStream* stream, std::span<const float> scales)
    : transport_(transport),
      n_scales_(std::ssize(scales)),
      scale_size_(scales.empty() ? 0 : size.outputs / (d_v + 1) * d_v / n_scales_),
      scales_at_(size.elements) {
  if (make_blocks == nullptr) {
    blocks_ = std::make_unique<HostBlocks>(size.elements, d_v);
    return;
  }
  NcclTransport* const device = transport.device();
  const std::int64_t n = size.elements + n_scales_ * scale_size_;
  if (device != nullptr && size.gathers)
    of_library_ = device->allocate_to_gather(static_cast<std::size_t>(n) * sizeof(float));
  auto blocks = make_blocks(n, d_v, stream, of_library_ ? of_library_->data() : nullptr);
  on_device_ = blocks.get();
  blocks_ = std::move(blocks);
  if (device == nullptr) staging_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(size.elements));
  std::vector<float> of_elements;
  for (const float scale : scales) of_elements.insert(of_elements.end(), static_cast<std::size_t>(scale_size_), scale);
  if (!of_elements.empty()) on_device_->upload(scales_at_, of_elements);
  output_ = on_device_->on_host(size.outputs);
  if (device != nullptr) device->add_graphs(on_device_->stream());
}

RunnerMemory::~RunnerMemory() {
  NcclTransport* const device = on_device_ != nullptr ? transport_.device() : nullptr;
  if (device != nullptr)
    device->remove_graphs(on_device_->stream());
  else if (on_device_ != nullptr)
    on_device_->stream().forget();
  if (!transport_.has_messages_in_flight()) return;
  static_cast<void>(staging_.release());
  if (on_device_ == nullptr) static_cast<void>(blocks_.release());
}

Runner::Runner(Transport& transport, Plan plan, std::int64_t n_rows, std::int64_t d_v, std::shared_ptr<RunnerMemory> memory)
    : transport_(transport),
      device_(transport.device()),
      plan_(std::move(plan)),
      n_rows_(n_rows),
      d_v_(d_v),
      divides_(holds<Divide>(plan_)),
      offsets_(plan_.offsets(n_rows, d_v)),
      memory_(std::move(memory)),
      blocks_(memory_->blocks_.get()),
      on_device_(memory_->on_device_) {
  if (offsets_.back() > memory_->scales_at_) throw std::logic_error("Runner: a plan for more memory");
  static std::atomic<std::uint64_t> n_runners = 0;
  graph_ = ++n_runners;
  // A step takes no memory: a rank without would let the others wait.
  auto most_pairs = static_cast<std::size_t>(memory_->n_scales_);
  for (const Operation& operation : plan_.operations) {
    if (const auto* combine = std::get_if<Combine>(&operation)) most_pairs = std::max(most_pairs, combine->pairs.size());
    if (const auto* fold = std::get_if<Fold>(&operation))
      most_pairs = std::max(most_pairs, static_cast<std::size_t>(fold->states.n));
  }
  pairs_.reserve(most_pairs);
}

OutputView Runner::step(std::span<const float> states, std::span<const float> sinks, bool waits) {
  if (std::ssize(states) != at(plan_.n_own)) throw std::logic_error("Runner: the plan is for another range of positions");
  if (on_device_ == nullptr) {
    begin(states.data(), sinks);
    return finish();
  }
  put_sinks(sinks);
  on_device_->stream().repeat([&] { queue(states.data()); }, may_be_recorded());
  return settle(waits);
}

void Runner::put_sinks(std::span<const float> sinks) {
  const float* const there = on_device_->put_sinks(sinks);
  if (std::exchange(sinks_there_, there) != there) on_device_->stream().forget();
}

void Runner::start(std::span<const float> states, std::span<const float> sinks) {
  if (std::ssize(states) != at(plan_.n_own)) throw std::logic_error("Runner: the plan is for another range of positions");
  begin(states.data(), sinks);
  advance();
}

OutputView Runner::finish() {
  advance(true);
  return {elements(plan_.z), elements(plan_.lse)};
}

void Runner::begin(const float* states, std::span<const float> sinks) {
  // The own blocks lie as the states do, unless they are slices of the rows.
  const bool is_sliced = plan_.n_own > 0 && plan_.widths.front().rows.of > 1;
  if (!is_sliced) blocks_->take(0, states, at(plan_.n_own));
  for (Block block = 0; is_sliced && block < plan_.n_own; ++block)
    blocks_->take(at(block), states + plan_.offset_of_own(block, n_rows_, d_v_), size({block, 1}));
  // Messages are queued after that.
  if (on_device_ != nullptr && device_ != nullptr) device_->queue_on(on_device_->stream());
  sinks_ = sinks;
  next_ = 0, is_posted_ = false;
  transport_.check();
  transport_.count_collectives(plan_.n_collectives);
}

bool Runner::advance(bool waits) {
  for (; next_ < plan_.operations.size(); ++next_, is_posted_ = false) {
    const Operation& operation = plan_.operations[next_];
    if (!is_posted_) std::visit([this](const auto& each) { run(each); }, operation);
    const auto* const exchange = std::get_if<Exchange>(&operation);
    if (exchange == nullptr) continue;
    is_posted_ = true;
    if (!waits && !transport_.have_arrived()) return false;
    transport_.wait();
    if (memory_->staging_ == nullptr) continue;
    for (const auto& [peer, blocks] : exchange->receives) on_device_->upload(at(blocks.first), for_messages(blocks));
  }
  return true;
}

void Runner::queue(const float* states) {
  const Traffic before = transport_.traffic();
  try {
    begin(states, {sinks_there_, sinks_there_ == nullptr ? 0 : static_cast<std::size_t>(n_rows_)});
    advance(true);
    give_output();
  } catch (...) {
    transport_.abandon();
    throw;
  }
  if (device_ != nullptr) queued_ = device_->take_queued();
  recorded_ = transport_.traffic().since(before);
  is_queued_ = true;
}

OutputView Runner::settle(bool waits) {
  if (!std::exchange(is_queued_, false)) transport_.count_graph(recorded_);
  if (device_ != nullptr)
    device_->settle(queued_);
  else if (waits || !leaves_output_)
    blocks_->wait();
  if (leaves_output_) return {elements(plan_.z), elements(plan_.lse), true};
  return {on_host(plan_.z), on_host(plan_.lse)};
}

void Runner::give_output() {
  if (leaves_output_ && memory_->n_scales_ > 0) {
    const std::int64_t n = size(plan_.z) / memory_->n_scales_;
    pairs_.clear();
    for (std::int64_t i = 0; i < memory_->n_scales_; ++i)
      pairs_.push_back({at(plan_.z.first) + i * n, memory_->scales_at_ + i * memory_->scale_size_});
    blocks_->combine(BlockMemory::Operator::kMultiply, pairs_, n);
  }
  if (leaves_output_) return;
  for (const Blocks& each : {plan_.z, plan_.lse}) on_device_->give(at(each.first), on_host(each));
}

std::span<float> Runner::on_host(Blocks of_output) const {
  const std::int64_t first = of_output.first == plan_.z.first ? 0 : size(plan_.z);
  return memory_->output_.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size(of_output)));
}

std::span<float> Runner::elements(Blocks blocks) const {
  return {blocks_->address(at(blocks.first)), static_cast<std::size_t>(size(blocks))};
}

std::span<float> Runner::for_messages(Blocks blocks) const {
  if (memory_->staging_ == nullptr) return elements(blocks);
  return {memory_->staging_.get() + at(blocks.first), static_cast<std::size_t>(size(blocks))};
}

std::int64_t Runner::n_states(Blocks blocks) const { return size(blocks) / state_size(d_v_); }

const float* Runner::sinks_of(Block block) const {
  return sinks_.empty() ? nullptr : sinks_.data() + plan_.widths[static_cast<std::size_t>(block)].rows.begin(n_rows_);
}

NcclTransport& Runner::library(const char* call) const {
  if (device_ == nullptr) throw std::logic_error("Runner: the transport has no " + std::string(call) + " of its own");
  return *device_;
}

void Runner::run(const Exchange& exchange) {
  for (const auto& [peer, blocks] : exchange.receives)
    transport_.receive(std::as_writable_bytes(for_messages(blocks)), peer);
  for (const auto& [peer, blocks] : exchange.sends) {
    if (memory_->staging_ != nullptr) on_device_->download(at(blocks.first), for_messages(blocks));
    transport_.send(std::as_bytes(for_messages(blocks)), peer);
  }
}

void Runner::run(const Combine& combine) {
  using enum BlockMemory::Operator;
  pairs_.clear();
  for (const auto& [left, right] : combine.pairs) pairs_.push_back({at(left), at(right)});
  const Blocks each{combine.pairs[0].left, combine.n};
  if (combine.op == Combine::Operator::kMerge)
    blocks_->merge(pairs_, n_states(each));
  else
    blocks_->combine(combine.op == Combine::Operator::kMax ? kMax : kAdd, pairs_, size(each));
  transport_.count_merge_steps(std::ssize(combine.pairs));
}

void Runner::run(const Copy& copy) {
  for (const auto& [left, right] : copy.pairs) {
    const BlockMemory::Pair pair{at(left), at(right)};
    blocks_->combine(BlockMemory::Operator::kCopy, {&pair, 1}, size({left, 1}));
  }
}

void Runner::run(const Fold& fold) {
  const Blocks first{fold.states.first, 1};
  if (fold.states.n == 0) return blocks_->set_empty(at(first.first), n_states(first));
  pairs_.clear();
  for (Block last = first.first + fold.states.n - 1; last > first.first; --last) pairs_.push_back({at(last - 1), at(last)});
  blocks_->merge(pairs_, n_states(first));
}

void Runner::run(const Finish& finish) {
  // The learned sinks of one block follow each other, those of adjacent blocks need not.
  const std::int32_t n_parts = sinks_.empty() ? 1 : finish.n;
  for (Block i = 0; i < n_parts; ++i) {
    const std::int64_t state = at(finish.state + i);
    blocks_->finish({state, finish.right ? at(*finish.right + i) : state}, at(finish.z + i), at(finish.lse + i),
                    n_states({finish.state + i, finish.n / n_parts}), divides_ ? nullptr : sinks_of(finish.state + i));
  }
  if (finish.right) transport_.count_merge_steps(1);
}

void Runner::run(const Weigh& weigh) { blocks_->weigh(at(weigh.z), at(weigh.lse), at(weigh.m), size({weigh.lse, 1})); }

void Runner::run(const Divide& divide) {
  blocks_->divide(at(divide.n), at(divide.D), at(divide.m), size({divide.D, 1}), sinks_of(divide.D));
}

void Runner::run(const AllReduce& reduce) {
  const auto op = reduce.op == Combine::Operator::kMax ? nccl::Operator::kMax : nccl::Operator::kSum;
  library("AllReduce").all_reduce(op, elements(reduce.blocks));
}

void Runner::run(const AllGather& gather) { library("AllGather").all_gather(elements(gather.own), elements(gather.all)); }

}  // namespace tree_attn
