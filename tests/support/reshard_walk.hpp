// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A cache that moves from one number of ranks to another, again and again, beside one that stays.
#pragma once

#include "tree_attn/distributed/decoders/reshard.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <set>
#include <vector>

namespace tree_attn::test {

/// Three sequences of different lengths, which grow before each move.
class ReshardWalk {
 public:
  ReshardWalk(LeafOrder order, DType dtype, bool values_in_keys = false)
      : shape_{{.dtype = dtype, .value_dtype = dtype, .batch = 3, .heads = 4, .kv_heads = 2, .head_dim = 8, .value_dim = 6},
               kKeys,
               {},
               order} {
    shape_.values_in_keys = values_in_keys;
  }

  /// One rank of the walk. @param numbers of ranks that hold keys, at most those of the transport
  /// @returns wrong outputs, and counts that are not the least
  std::int64_t run(Transport& transport, std::initializer_list<int> numbers) const {
    std::int64_t n_wrong = 0, n_sent = 0, n_keys = 700;
    const int n_ranks = transport.size();
    const auto workload = make_workload(shape_, 17, 1);
    std::vector<KeyRange> ranges = ranges_of(*numbers.begin(), n_ranks);
    OpenShard shard = open(transport, ranges);
    for (const int p : numbers) {
      const std::vector<std::int64_t> lengths{n_keys, n_keys / 3, std::max<std::int64_t>(0, n_keys - 800)};
      fill(*shard.cache, *workload, lengths);
      const std::vector<KeyRange> wanted = ranges_of(p, n_ranks);
      OpenShard moved = open(transport, wanted);
      const std::vector<OwnedLeaves> before = owned_leaves(ranges, shape_.order), after = owned_leaves(wanted, shape_.order);
      transport.clear_traffic();
      reshard(transport, *shard.cache, *moved.cache, before, after, lengths);

      std::int64_t bytes = 0;
      std::set<std::ptrdiff_t> peers;
      for (const std::int64_t length : lengths) {
        for (std::int64_t position = 0; position < length; ++position) {
          if (!holds(shard.cache->leaves(), position) || holds(moved.cache->leaves(), position)) continue;
          bytes += moved.cache->shape().bytes_per_position() / moved.cache->shape().batch;
          const auto has_it = [position](const OwnedLeaves& each) { return holds(each, position); };
          peers.insert(std::ranges::find_if(after, has_it) - after.begin());
        }
      }
      n_wrong += transport.traffic().messages != std::ssize(peers);
      n_wrong += transport.traffic().bytes != bytes;
      n_sent += bytes;

      shard = std::move(moved), ranges = wanted;
      for (const char* algorithm : {"two-level", "gather"}) {
        const std::unique_ptr<Decoder> decoder = find_algorithm(algorithm).open(transport, shard, ranges);
        n_wrong += !same_bits(decoder->step({workload->query(0), lengths}).copy(), fresh(*workload, lengths));
      }
      n_keys += 150;
    }
    // A walk that moves nothing shows nothing.
    if (transport.size() > 1)
      n_wrong += std::ranges::max(transport.ranks().all_gather(n_sent, "the bytes of all ranks")) == 0;
    return n_wrong;
  }

 private:
  static constexpr std::int64_t kKeys = 2048;
  static bool holds(const OwnedLeaves& leaves, std::int64_t position) {
    return leaves.n_keys(position + 1) > leaves.n_keys(position);
  }
  std::vector<KeyRange> ranges_of(int p, int n_ranks) const {
    std::vector<KeyRange> ranges = shape_.order == LeafOrder::kDealt ? dealt_ranges(p) : even_ranges(640, p, kLeafKeys);
    if (shape_.order == LeafOrder::kContiguous) ranges.back().end = kOpenEnd;
    return spread_over(ranges, n_ranks);
  }
  OpenShard open(const Transport& transport, std::span<const KeyRange> ranges) const {
    return open_shard(cpu_backend(), shape_,
                      OwnedLeaves(transport.topology().range_of(transport.rank(), ranges), shape_.order), 0, kScale);
  }
  /// One rank that holds everything, from a cache that was filled at once.
  DecodeOutput fresh(Workload& workload, std::span<const std::int64_t> lengths) const {
    const OwnedLeaves leaves(shape_.order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, kKeys}, shape_.order);
    const auto cache = cpu_backend().make_cache(shape_, leaves, 0);
    fill(*cache, workload, lengths);
    const auto session = cache->open(kScale);
    return finish_rows(session->decode({workload.query(0), lengths}).host().fold(), shape_.n_rows(), shape_.value_dim);
  }
  static constexpr double kScale = 0.4;
  WorkloadShape shape_;
};

}  // namespace tree_attn::test
