// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of algorithms, and the decoder of those that have a plan.
#include "distributed/decoders/decoder.hpp"

#include "distributed/transport/device_fabric.hpp"
#include "reference/data/input_error.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <stdexcept>

namespace tree_attn {

namespace {

/// Writes the plan of this rank for closed ranges.
using PlanFor = std::function<Plan(std::span<const KeyRange> ranges)>;

/// Decodes the own shard, then carries out the plan.
class PlanDecoder : public Decoder {
 public:
  PlanDecoder(Transport& transport, ShardDecoder& shard, std::span<const KeyRange> ranges, PlanFor plan_for)
      : Decoder(transport, shard), ranges_(ranges.begin(), ranges.end()), plan_for_(std::move(plan_for)) {
    if (!is_open()) plan(ranges_);
  }
  OutputView step(const TensorView& q, std::span<const std::int64_t> lengths, int lift) override {
    // The lengths are the same on every rank, so all ranks write new plans in the same step.
    if (is_open()) {
      const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
      if ((!fabric_ && !on_device_) || closed(ranges_.back(), longest).end != planned_end_) plan(closed(ranges_, longest));
    }
    return on_device_ ? step_on_device(q, lengths, lift)
                      : run_plan(plan_, *fabric_, decode_own_shard(q, lengths, lift), lift);
  }

 private:
  /// The same with states that stay in device memory. All is queued; the only wait is the one before the output is copied.
  OutputView step_on_device(const TensorView& q, std::span<const std::int64_t> lengths, int lift) {
    DeviceTransport& device = *transport_.device();
    try {
      const float* const states = shard_.session().decode(q, lengths, lift, progress_).device();
      if (states == nullptr && plan_.n_own > 0 && shard_.cache().shape().n_rows() > 0)
        throw std::logic_error("PlanDecoder: the transport sends from device memory, the backend has states on the host");
      on_device_->take_states(plan_, states);
      execute(plan_, *on_device_, lift);
      device.settle();
    } catch (...) {
      device.abandon();
      throw;
    }
    set_states_ready(device.settled_from());
    return {on_device_->output(plan_.z), on_device_->output(plan_.lse)};
  }

  bool is_open() const { return !ranges_.empty() && ranges_.back().end == kOpenEnd; }
  void plan(std::span<const KeyRange> ranges) {
    planned_end_ = ranges.empty() ? 0 : ranges.back().end;
    plan_ = plan_for_(ranges);
    const AttentionShape& shape = shard_.cache().shape();
    if (DeviceTransport* const device = transport_.device())
      on_device_.emplace(transport_, plan_, shape.n_rows(), shape.value_dim, device->make_blocks());
    else
      fabric_.emplace(transport_, plan_, shape.n_rows(), shape.value_dim);
  }

  std::vector<KeyRange> ranges_;
  PlanFor plan_for_;
  std::int64_t planned_end_ = 0;  ///< of the last range in the plan
  Plan plan_;
  std::optional<HostFabric> fabric_;
  std::optional<DeviceFabric> on_device_;  ///< in its place, if messages are sent from device memory
};

}  // namespace

Decoder::Decoder(Transport& transport, ShardDecoder& shard)
    : transport_(transport), shard_(shard), progress_([&transport] { transport.progress(); }) {}

Forest<float>& Decoder::decode_own_shard(const TensorView& q, std::span<const std::int64_t> lengths, int lift) {
  Forest<float>& states = shard_.session().decode(q, lengths, lift, progress_).host();
  set_states_ready(transport_.seconds());
  return states;
}

extern const Algorithm kTwoLevel, kLeaders, kPaper, kPacked, kFused, kGather, kRing, kRingState, kOneShot;

std::span<const Algorithm> algorithms() {
  static const Algorithm all[] = {kTwoLevel, kLeaders, kPaper, kPacked, kFused, kGather, kRing, kRingState};
  return all;
}

std::span<const Algorithm> kernel_algorithms() {
  static const Algorithm all[] = {kOneShot};
  return all;
}

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const auto& all : {algorithms(), kernel_algorithms()}) {
    for (const Algorithm& algorithm : all) {
      if (algorithm.name == name) return algorithm;
      known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
    }
  }
  throw InputError("--algorithm " + std::string(name) + ": unknown; use one of " + known);
}

OutputView run_plan(const Plan& plan, HostFabric& fabric, const Forest<float>& own, int lift) {
  if (own.subtrees().size() != static_cast<std::size_t>(plan.n_subtrees()))
    throw std::logic_error("run_plan: the plan is for another range of positions");
  fabric.take_states(plan, own.states());
  execute(plan, fabric, lift);
  return {fabric.elements(plan.z), fabric.elements(plan.lse)};
}

std::unique_ptr<Decoder> Algorithm::open(Transport& transport, ShardDecoder& shard, std::span<const KeyRange> ranges,
                                         const PlanOptions& options) const {
  if (const auto* own = std::get_if<OwnDecoder>(&exchange)) return own->open(transport, shard, ranges, options);
  return std::make_unique<PlanDecoder>(
      transport, shard, ranges,
      [plan_of = std::get<PlanOf>(exchange), &transport, options = options.for_shape(shard.cache().shape())](
          std::span<const KeyRange> all) { return plan_of(transport.topology(), transport.rank(), all, options); });
}

RankCost Algorithm::cost(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape,
                         const PlanOptions& options) const {
  if (const auto* own = std::get_if<OwnDecoder>(&exchange)) return own->cost(topology, rank, ranges, shape);
  RankCost cost =
      cost_of(std::get<PlanOf>(exchange)(topology, rank, closed(ranges, shape.longest()), options.for_shape(shape)),
              shape.n_rows(), shape.value_dim);
  const OwnedLeaves leaves(topology.range_of(rank, ranges), shape.order);
  cost.rounds.front().decoded_bytes = leaves.n_keys(shape.longest()) * shape.bytes_per_position();
  return cost;
}

double Algorithm::decoder_bytes(const Backend& backend, const Topology& topology, int rank, std::span<const KeyRange> ranges,
                                const WorkloadShape& shape, const PlanOptions& options) const {
  if (const auto* own = std::get_if<OwnDecoder>(&exchange)) return own->bytes(backend, ranges, shape);
  const double n_rows =
      static_cast<double>(shape.batch) * static_cast<double>(shape.heads) * static_cast<double>(shape.n_queries);
  double elements = 0;
  for (const auto& [vectors, scalars, rows] :
       std::get<PlanOf>(exchange)(topology, rank, closed(ranges, shape.longest()), options.for_shape(shape)).widths) {
    const double n = std::floor(n_rows * (rows.index + 1) / rows.of) - std::floor(n_rows * rows.index / rows.of);
    elements += n * (vectors * static_cast<double>(shape.value_dim) + scalars);
  }
  return elements * sizeof(float);
}

}  // namespace tree_attn
