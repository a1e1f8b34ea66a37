// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The list of algorithms, and the decoder of those that have a plan.
#include "distributed/decoders/decoder.hpp"

#include "reference/data/input_error.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace tree_attn {

namespace {

/// Decodes the own shard, then carries out the plan.
class PlanDecoder : public Decoder {
 public:
  PlanDecoder(Transport& transport, ShardDecoder& shard, Plan plan)
      : Decoder(transport, shard),
        plan_(std::move(plan)),
        fabric_(transport, plan_, shard.cache().shape().n_rows(), shard.cache().shape().value_dim) {}
  OutputView step(const TensorView& q, std::span<const std::int64_t> lengths, int lift) override {
    return run_plan(plan_, fabric_, decode_own_shard(q, lengths, lift), lift);
  }

 private:
  const Plan plan_;
  HostFabric fabric_;
};

}  // namespace

Decoder::Decoder(Transport& transport, ShardDecoder& shard)
    : transport_(transport), shard_(shard), progress_([&transport] { transport.progress(); }) {}

Forest<float>& Decoder::decode_own_shard(const TensorView& q, std::span<const std::int64_t> lengths, int lift) {
  Forest<float>& states = shard_.session().decode(q, lengths, lift, progress_).host();
  states_ready_ = transport_.seconds();
  return states;
}

extern const Algorithm kTwoLevel, kLeaders, kPaper, kPacked, kFused, kGather, kRing, kRingState;

std::span<const Algorithm> algorithms() {
  static const Algorithm all[] = {kTwoLevel, kLeaders, kPaper, kPacked, kFused, kGather, kRing, kRingState};
  return all;
}

const Algorithm& find_algorithm(std::string_view name) {
  std::string known;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.name == name) return algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  throw InputError("--algorithm " + std::string(name) + ": unknown; use one of " + known);
}

OutputView run_plan(const Plan& plan, HostFabric& fabric, const Forest<float>& own, int lift) {
  if (own.subtrees().size() != static_cast<std::size_t>(plan.n_subtrees()))
    throw std::logic_error("run_plan: the plan is for another range of positions");
  for (Block block = 0; block < plan.n_own; ++block) {
    const std::span<float> elements = fabric.elements({block, 1});
    std::copy_n(own.states().begin() + plan.offset_of_own(block, own.n_rows(), own.d_v()), elements.size(),
                elements.begin());
  }
  execute(plan, fabric, lift);
  return {fabric.elements(plan.z), fabric.elements(plan.lse)};
}

std::unique_ptr<Decoder> Algorithm::open(Transport& transport, ShardDecoder& shard, std::span<const KeyRange> ranges,
                                         const PlanOptions& options) const {
  if (const auto* own = std::get_if<OwnDecoder>(&exchange)) return own->open(transport, shard, ranges);
  return std::make_unique<PlanDecoder>(
      transport, shard,
      std::get<PlanOf>(exchange)(transport.topology(), transport.rank(), ranges, options.for_shape(shard.cache().shape())));
}

RankCost Algorithm::cost(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape,
                         const PlanOptions& options) const {
  if (const auto* own = std::get_if<OwnDecoder>(&exchange)) return own->cost(topology, rank, ranges, shape);
  return cost_of(std::get<PlanOf>(exchange)(topology, rank, ranges, options.for_shape(shape)), shape.n_rows(),
                 shape.value_dim);
}

double Algorithm::decoder_bytes(const Backend& backend, const Topology& topology, int rank, std::span<const KeyRange> ranges,
                                const AttentionShape& shape, const PlanOptions& options) const {
  if (const auto* own = std::get_if<OwnDecoder>(&exchange)) return own->bytes(backend, ranges, shape);
  const double n_rows =
      static_cast<double>(shape.batch) * static_cast<double>(shape.heads) * static_cast<double>(shape.n_queries);
  double elements = 0;
  for (const auto& [vectors, scalars, rows] :
       std::get<PlanOf>(exchange)(topology, rank, ranges, options.for_shape(shape)).widths) {
    const double n = std::floor(n_rows * (rows.index + 1) / rows.of) - std::floor(n_rows * rows.index / rows.of);
    elements += n * (vectors * static_cast<double>(shape.value_dim) + scalars);
  }
  return elements * sizeof(float);
}

}  // namespace tree_attn
