// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One step of decoding with sharded keys and values: what every algorithm is given and returns (sections 5 and 6).
///
/// An algorithm is one file of this folder: its plan, or a loop of its own, and what is known about it. decoder.cpp has the
/// list of all.
#pragma once

#include "distributed/decoders/shard_decoder.hpp"
#include "distributed/transport/plan.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/data/workload.hpp"
#include "reference/decode/decode.hpp"

#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace tree_attn {

/// The input of one step, as one rank sees it.
struct DecodeStep {
  TensorView q;                           ///< queries [b, n_h, l, d_h], the same on every rank
  ShardDecoder& shard;                    ///< keys and values of this rank, and how they are decoded
  std::span<const std::int64_t> lengths;  ///< keys in use per batch entry [b]
  std::span<const KeyRange>
      ranges;    ///< capacity of every place of the row, this rank's among them; neighbours touch, some may be empty
  int lift = 0;  ///< the same on every rank: kLift to decode once more where needs_lift() says so

  std::int64_t n_rows() const { return q.shape[0] * q.shape[1] * q.shape[2]; }
  std::int64_t d_v() const { return shard.cache().shape().value_dim; }
};

/// What an algorithm adds to the error model of the backend (error_bound.hpp).
struct ExchangeRounding {
  double additions_per_lse =
      0;  ///< additions for each unit of the largest |lse|, which a weight exp(lse - m) was rounded from
  double additions_per_rank = 0;  ///< additions for each rank
  double rescalings = 0;          ///< rescalings that are not by a power of two
  bool operator==(const ExchangeRounding&) const = default;
};

/// A plan of one rank, from the positions that every rank holds, in the order of the topology.
using PlanOf = Plan (*)(const Topology& topology, int rank, std::span<const KeyRange> ranges);

/// An algorithm that moves more than states, and so is no plan.
struct OwnLoop {
  DecodeOutput (*run)(Transport&, const DecodeStep&);
  RankCost (*cost)(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape);
};

/// Bytes that the paper's own formula gives for all of p ranks together.
using PaperBytes = double (*)(const WorkloadShape& shape, int p);

/// A way of combining shards; every rank ends with the same output, so all agree on needs_lift().
struct Algorithm {
  std::string_view name;
  std::string_view brief;
  bool keeps_bits = true;  ///< whether the output bits are the same for every number of ranks, shards, nodes and batch
  ExchangeRounding rounding = {};
  int kv_shards_in_flight = 0;  ///< shards of other ranks that a rank holds at once
  std::variant<PlanOf, OwnLoop> exchange;
  PaperBytes paper_bytes = [](const WorkloadShape&, int) { return 0.0; };  ///< 0: the paper has no formula

  /// Decodes one step: collective over the ranks of the transport.
  DecodeOutput run(Transport& transport, const DecodeStep& step) const;
  /// What one rank sends and holds in a step.
  RankCost cost(const Topology& topology, int rank, std::span<const KeyRange> ranges, const WorkloadShape& shape) const;
};

/// All algorithms, in the order of the docs.
std::span<const Algorithm> algorithms();
/// The algorithm of that name. @throws InputError if it is unknown, naming those there are
const Algorithm& find_algorithm(std::string_view name);

/// The states of this rank's own shard on the host, messages in flight advancing meanwhile. They may be used up.
Forest<float>& local_forest(Transport& transport, const DecodeStep& step);
/// Carries out the plan of this rank on its own states.
DecodeOutput run_plan(const Plan& plan, Transport& transport, const Forest<float>& own, int lift);

}  // namespace tree_attn
