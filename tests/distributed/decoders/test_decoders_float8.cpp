// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shards of F8_E4M3 over ranks: with scales that are powers of two they have the bits of the scaled elements in
/// BF16.
#include "tree_attn/tests/support/decoding.hpp"
#include "tree_attn/tests/support/float8.hpp"

namespace tree_attn::test {
namespace {

/// Decodes on every rank, in one call or in parts, with a causal edge and a window.
std::vector<RankResult> decode(RankGroup& rank_group, const Algorithm& algorithm, TensorWorkload& workload,
                               const KvScales& scales, const Topology& topology, std::span<const KeyRange> ranges,
                               LeafOrder order, bool in_parts) {
  return rank_group.run(topology, [&](Transport& transport) {
    const OwnedLeaves mine(topology.range_of(transport.rank(), ranges), order);
    OpenShard shard = open_shard(cpu_backend(), workload.shape(), mine, 1, workload.scale);
    shard.cache->set_scales(scales);
    fill(*shard.cache, workload, workload.lengths());
    const auto decoder = algorithm.open(transport, shard, ranges);
    const Step step{workload.query(0), workload.lengths(), {.causal = true, .window = 300, .sinks = 5}};
    if (!in_parts) return decoder->step(step).copy();
    decoder->start(step);
    return decoder->finish().copy();
  });
}

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("decoders: F8_E4M3 with scales has the bits of scaled elements in BF16, by every algorithm, in both orders") {
  const Axes axes{.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 24, .value_dim = 9, .n_queries = 2, .n_keys = 700};
  const Float8Case c = float8_case(610, axes, {-3, 0, 4, 1}, {2, -4, 0, 7}, std::vector<std::int64_t>{700, 130});
  for (RankGroup* rank_group : rank_groups({1, 2, 3, 5})) {
    const int p = rank_group->size();
    const Topology topology = mixed_grouping(p);
    for (const Algorithm& algorithm : algorithms()) {
      for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
        if (order == LeafOrder::kDealt && !algorithm.takes_dealt) continue;
        INFO(algorithm.name << " on " << p << " ranks, " << name_of(order));
        const std::vector<KeyRange> ranges = order == LeafOrder::kDealt ? dealt_ranges(p) : even_ranges(700, p, kLeafKeys);
        std::int64_t n_held = 0;
        const auto sixteen = decode(*rank_group, algorithm, *c.sixteen, {}, topology, ranges, order, false);
        for (const bool in_parts : {false, true}) {
          const auto eight = decode(*rank_group, algorithm, *c.eight, c.scales, topology, ranges, order, in_parts);
          for (std::size_t rank = 0; rank < eight.size(); ++rank) {
            CHECK(same_bits(eight[rank].output, sixteen[rank].output));
            CHECK(2 * eight[rank].traffic.buffer_kv_bytes == sixteen[rank].traffic.buffer_kv_bytes);
            n_held += eight[rank].traffic.buffer_kv_bytes;
          }
        }
        CHECK((n_held > 0) == (algorithm.name == "ring" && p > 1));
      }
    }
  }
}

}  // namespace tree_attn::test
