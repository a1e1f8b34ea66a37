// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Caches with a session over them.
#include "tree_attn/distributed/decoders/shard_decoder.hpp"

namespace tree_attn {
namespace {

OpenCache open(const Backend& backend, const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity,
               double scale) {
  OpenCache opened{backend.make_cache(shape, leaves, capacity), nullptr};
  opened.session = opened.cache->open(scale);
  return opened;
}

}  // namespace

ShardDecoder::ShardDecoder(const Backend& backend, const AttentionShape& shape, const OwnedLeaves& leaves,
                           std::int64_t capacity, double scale)
    : backend_(backend), scale_(scale), own_(open(backend, shape, leaves, capacity, scale)) {}

OpenCache ShardDecoder::open_cache(std::int64_t n) const {
  const OwnedLeaves& own = cache().leaves();
  return open(backend_, cache().shape(), own.order() == LeafOrder::kContiguous ? OwnedLeaves({0, n}) : own, n, scale_);
}

ShardDecoder open_shard(const Backend& backend, const TensorView& q, const Shard& shard,
                        std::span<const std::int64_t> lengths, double scale) {
  ShardDecoder decoder(backend, shape_of(q, shard.k, shard.v), {shard.begin, shard.end()}, scale);
  decoder.cache().borrow(shard, rows_in_use(lengths, decoder.cache().leaves()));
  return decoder;
}

}  // namespace tree_attn
