// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs the decoders in tests: a workload, a layout, an algorithm, and the checks of every result.
#pragma once

#include "distributed/program/measure.hpp"
#include "tests/support/rank_group.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace tree_attn::test {

/// The node of every rank, and the range of keys that it holds.
struct Layout {
  Topology topology;
  std::vector<KeyRange> ranges;
  bool copied = true;  ///< whether shards are dense copies of exactly their size, or views of the whole

  std::string text() const {
    std::ostringstream text;
    text << topology.size() << " ranks, nodes:";
    for (int rank = 0; rank < topology.size(); ++rank) text << ' ' << topology.node_of(rank);
    text << ", ranges:";
    for (const KeyRange& range : ranges) text << ' ' << range.begin << ".." << range.end;
    return text.str();
  }
};

/// Number of ranks that hold keys.
inline std::int64_t n_holders(std::span<const KeyRange> ranges) {
  return std::count_if(ranges.begin(), ranges.end(), [](const KeyRange& range) { return range.size() > 0; });
}

/// A cut of n positions into p ranges of whole units, some of them empty.
inline std::vector<KeyRange> uneven_ranges(std::mt19937& random, std::int64_t n, int p, std::int64_t unit = kLeafKeys) {
  std::vector<std::int64_t> cuts{0, n};
  while (std::ssize(cuts) <= p) cuts.push_back(static_cast<std::int64_t>(random()) % (n + 1) / unit * unit);
  std::sort(cuts.begin(), cuts.end());
  std::vector<KeyRange> ranges;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) ranges.push_back({cuts[i], cuts[i + 1]});
  return ranges;
}

/// Ranks assigned to nodes round-robin, so that no node is a range of ranks.
inline Topology round_robin(int size, int n_nodes) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < size; ++rank) node_of_rank.push_back(rank % n_nodes);
  return Topology(node_of_rank);
}

/// Groupings of p ranks: one node, one node per rank, pairs, threes with a smaller last node, round-robin, and a very uneven
/// one.
inline std::vector<Topology> groupings(int p) {
  std::vector<Topology> topologies{Topology::pretend(p, p)};
  if (p > 1) topologies.push_back(Topology::pretend(p, 1));
  if (p > 2) topologies.push_back(round_robin(p, 2));
  if (p > 3) {
    topologies.push_back(Topology::pretend(p, 2));
    topologies.push_back(Topology::pretend(p, 3));
    topologies.push_back(round_robin(p, 3));
    std::vector<int> uneven(static_cast<std::size_t>(p), 7);
    uneven[1] = 3;
    topologies.emplace_back(uneven);
  }
  return topologies;
}

/// The most mixed grouping: nodes that are not ranges of ranks, if there are enough ranks.
inline Topology mixed_grouping(int p) {
  return p > 4 ? round_robin(p, 3) : p > 2 ? round_robin(p, 2) : Topology::pretend(p, 1);
}

/// Decodes all keys on one rank, without code of distributed/. Canonical algorithms must return these bits.
inline DecodeOutput decode_alone(TensorWorkload& workload) {
  Forest<float> forest = decode_shard(workload.query(0), workload.whole(), workload.lengths(), workload.scale);
  return finish_rows(forest.fold(), workload.shape().n_rows(), workload.shape().value_dim);
}

/// Adds what one rank has counted in a step: to the sums over all ranks, and to what the busiest one has.
inline void add(Traffic& all, const Traffic& of_rank) {
  all.messages += of_rank.messages, all.bytes += of_rank.bytes, all.bytes_between_nodes += of_rank.bytes_between_nodes;
  all.merge_steps = std::max(all.merge_steps, of_rank.merge_steps);
  all.collectives = std::max(all.collectives, of_rank.collectives);
}
inline void check_predicted(const Traffic& counted, const Prediction& predicted) {
  CHECK(counted.messages == predicted.messages);
  CHECK(counted.bytes == predicted.bytes);
  CHECK(counted.bytes_between_nodes == predicted.bytes_between_nodes);
  CHECK(counted.merge_steps == predicted.merge_steps);
  CHECK(counted.collectives == predicted.collectives);
}

/// Runs one algorithm on a backend, and returns the result of every rank.
inline std::vector<RankResult> decode(RankGroup& rank_group, const Algorithm& algorithm, TensorWorkload& workload,
                                      const Layout& layout, const Backend& backend = cpu_backend()) {
  return rank_group.run(layout.topology, [&](Transport& transport) {
    const KeyRange mine = transport.topology().range_of(transport.rank(), layout.ranges);
    Shard shard = workload.shard(mine);
    const Tensor k = copy_of(layout.copied ? shard.k : TensorView{}), v = copy_of(layout.copied ? shard.v : TensorView{});
    if (layout.copied) shard = {k.view(), v.view(), mine.begin};
    OpenShard decoder = open_shard(backend, workload.query(0), shard, workload.lengths(), workload.scale);
    return algorithm.open(transport, decoder, layout.ranges)->step({workload.query(0), workload.lengths()}).copy();
  });
}

/// Runs all algorithms on all layouts. Checks that all ranks have the same bits, that canonical algorithms have the bits of
/// a single rank, and that all results are within the bound of the oracle. `also(algorithm, output)` adds the checks of one
/// test.
template <class Also>
void check_all(RankGroup& rank_group, TensorWorkload& workload, const std::vector<Layout>& layouts, const Also& also) {
  std::optional<Verifier> verify;
  DecodeOutput alone;
  if (rank_group.has_oracle()) {
    verify.emplace(workload, workload.scale, rank_group.size(), cpu_backend());
    alone = decode_alone(workload);
  }
  for (const Layout& layout : layouts) {
    for (const Algorithm& algorithm : algorithms()) {
      INFO(algorithm.name << ", " << layout.text());
      const std::vector<RankResult> results = decode(rank_group, algorithm, workload, layout);
      const DecodeOutput& output = results[0].output;
      for (const RankResult& rank : results) CHECK(same_bits(rank.output, output));
      if (verify) {
        if (algorithm.keeps_bits) CHECK(same_bits(output, alone));
        const Errors errors = (*verify)(algorithm, output);
        CHECK_MESSAGE(errors.passed, "largest error over bound: " << errors.max_over_bound);
      }
      also(algorithm, output);
    }
  }
}
inline void check_all(RankGroup& rank_group, TensorWorkload& workload, const std::vector<Layout>& layouts) {
  check_all(rank_group, workload, layouts, [](const Algorithm&, const DecodeOutput&) {});
}

}  // namespace tree_attn::test
