// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shards of F8_E4M3 over ranks: with scales that are powers of two they have the bits of the scaled elements in
/// BF16.
#include "distributed/exchange/open_shard.hpp"
#include "gpu/backend/backends.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/float8.hpp"

namespace tree_attn::test {
namespace {

/// Decodes on every rank, in one call or in parts, with a causal edge and a window.
std::vector<RankResult> decode(RankGroup& rank_group, const Algorithm& algorithm, const Backend& backend,
                               TensorWorkload& workload, const KvScales& scales, const Topology& topology,
                               std::span<const KeyRange> ranges, LeafOrder order, bool in_parts) {
  return rank_group.run(topology, [&](Transport& transport) {
    const OwnedLeaves mine(topology.range_of(transport.rank(), ranges), order);
    if (&backend != &cpu_backend()) backend.use_gpu(transport.rank());
    OpenShard shard = open_shard(backend, workload.shape(), mine, 1, workload.scale, {}, scales);
    fill(*shard.cache, workload, workload.lengths());
    const auto decoder = algorithm.open(transport, shard, ranges);
    // Kernels that exchange by themselves have no windows.
    const bool is_kernel = algorithm.refusal != nullptr;
    const Step step{workload.query(0), workload.lengths(),
                    is_kernel ? SeenRule{.causal = true} : SeenRule{.causal = true, .window = 300, .sinks = 5}};
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
  const auto check = [&c](RankGroup& rank_group, const Backend& backend, const Algorithm& algorithm, LeafOrder order) {
    const int p = rank_group.size();
    // Kernels that exchange by themselves are for one node.
    const bool is_kernel = algorithm.refusal != nullptr;
    const Topology topology = is_kernel ? Topology::pretend(p, p) : mixed_grouping(p);
    INFO(algorithm.name << " on " << p << " ranks, " << name_of(order) << ", " << backend.name());
    const std::vector<KeyRange> ranges = order == LeafOrder::kDealt ? dealt_ranges(p) : even_ranges(700, p, kLeafKeys);
    std::int64_t n_held = 0;
    const auto sixteen = decode(rank_group, algorithm, backend, *c.sixteen, {}, topology, ranges, order, false);
    for (const bool in_parts : {false, true}) {
      const auto eight = decode(rank_group, algorithm, backend, *c.eight, c.scales, topology, ranges, order, in_parts);
      for (std::size_t rank = 0; rank < eight.size(); ++rank) {
        CHECK(same_bits(eight[rank].output, sixteen[rank].output));
        CHECK(2 * eight[rank].traffic.buffer_kv_bytes == sixteen[rank].traffic.buffer_kv_bytes);
        n_held += eight[rank].traffic.buffer_kv_bytes;
      }
    }
    CHECK((n_held > 0) == (algorithm.name == "ring" && p > 1));
  };
  for (RankGroup* rank_group : rank_groups({1, 2, 3, 5})) {
    for (const Algorithm& algorithm : algorithms()) {
      check(*rank_group, cpu_backend(), algorithm, LeafOrder::kContiguous);
      if (algorithm.takes_dealt) check(*rank_group, cpu_backend(), algorithm, LeafOrder::kDealt);
    }
  }
  for (RankGroup* rank_group : rank_groups({1, 3})) {
    for (const char* const name : {"two-level", "ring", "one-shot"}) {
      const Algorithm& algorithm = find_algorithm(name);
      check(*rank_group, emulated::backend(), algorithm, LeafOrder::kContiguous);
      if (algorithm.takes_dealt) check(*rank_group, emulated::backend(), algorithm, LeafOrder::kDealt);
    }
  }
}

}  // namespace tree_attn::test
