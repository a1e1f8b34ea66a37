// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted is predicted: messages, bytes, merges and keys held of every algorithm, on every number of ranks, in both
/// orders of leaves. Over MPI, what MPI was given to send as well (section 6).
#include "tests/support/decoding.hpp"
#include "tests/support/model_backend.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

#include <set>

namespace tree_attn::test {
namespace {

/// Decodes one step of axes, with the default cuts of the program, and returns the traffic of all ranks. Traffic does not
/// depend on elements, so long sequences have none.
/// @returns buffer_kv_bytes: keys and values of the rank itself included
std::vector<RankResult> decode_axes(RankGroup& rank_group, const Algorithm& algorithm, const WorkloadShape& shape,
                                    const Topology& topology, std::span<const KeyRange> ranges) {
  constexpr double kBytesPerSecond = 1e30;
  const bool has_elements = shape.n_keys <= 5000;
  const Backend& backend = has_elements ? cpu_backend() : model_backend(kBytesPerSecond);
  return rank_group.run(topology, [&](Transport& transport) {
    const auto workload = has_elements ? make_workload(shape, 3, 1) : make_axes(shape, 1);
    const OwnedLeaves leaves(topology.range_of(transport.rank(), ranges), shape.order);
    OpenShard shard = open_shard(backend, shape, leaves, shape.n_keys, 1);
    fill(*shard.cache, *workload, workload->lengths(0));
    const DecodeOutput output =
        algorithm.open(transport, shard, ranges)->step({workload->query(0), workload->lengths(0)}).copy();
    transport.count_held_kv_bytes(transport.traffic().buffer_kv_bytes + shard.cache->bytes());
    return output;
  });
}

}  // namespace

// Lengths as users have them: less than a leaf on some ranks, a power of two, the paper's, and one that nothing divides.
// Under a sanitizer, up to 5 ranks.
TEST_CASE("predict: everything counted is what was predicted, 1 to 16 ranks, nodes of 1, 2, 3, 4 or all, both orders") {
  std::vector<int> sizes{1, 2, 3, 4, 5};
  if (takes_all_cases() && !kIsSanitized) sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  for (RankGroup* rank_group : rank_groups(sizes)) {
    const int p = rank_group->size();
    for (const int per_node : std::set<int>{1, 2, 3, 4, p}) {
      if (per_node > p) continue;
      const Topology topology = Topology::pretend(p, per_node);
      for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
        for (const std::int64_t n_keys : {1000, 4096, 80000, 1000003}) {
          WorkloadShape shape{{.dtype = DType::BF16, .value_dtype = DType::BF16}, n_keys, {}, order};
          shape.heads = shape.kv_heads = shape.head_dim = shape.value_dim = 1, shape.values_in_keys = n_keys == 4096;
          const std::vector<KeyRange> ranges =
              order == LeafOrder::kDealt ? dealt_ranges(p) : coarse_ranges(n_keys, p, kLeafKeys);
          for (const Algorithm& algorithm : algorithms()) {
            INFO(algorithm.name << ", " << n_keys << " keys, " << name_of(order) << ", "
                                << (Layout{topology, ranges}.text()));
            Traffic counted, over_mpi;
            std::int64_t peak = 0;
            bool is_over_mpi = false;
            for (const RankResult& rank : decode_axes(*rank_group, algorithm, shape, topology, ranges)) {
              add(counted, rank.traffic), add(over_mpi, rank.over_mpi.value_or(Traffic{}));
              peak = std::max(peak, rank.traffic.buffer_kv_bytes);
              is_over_mpi = rank.over_mpi.has_value();
            }
            const Prediction predicted = predict(algorithm, shape, topology, ranges);
            check_predicted(counted, predicted);
            CHECK(peak == predicted.peak_kv_bytes);
            over_mpi.collectives = counted.collectives, over_mpi.merge_steps = counted.merge_steps;
            if (is_over_mpi) check_predicted(over_mpi, predicted);
          }
        }
      }
    }
  }
}

}  // namespace tree_attn::test
