// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Names of the values that ranks compare before they open a decoder.
#include "distributed/exchange/decoder_setup.hpp"

#include "reference/data/fnv1a.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

namespace tree_attn {
/// A member that is added to a structure does not compile until it is named here.
std::vector<Field> fields_of(const PlanOptions& options) {
  // The shape of the states, n_rows, d_v and batch, follows from that of the cache.
  const auto& [radix, node_radix, slice_bytes, network, library, steps_done, n_rows, d_v, batch] = options;
  const auto& [inside, between, overhead, network_slice_bytes, n_links, gather] = network;
  const auto& [latency, bandwidth] = inside;
  return {Field{"radix", radix},
          Field{"radix of nodes", node_radix},
          Field{"slice bytes", slice_bytes.value_or(network_slice_bytes)},
          Field{"latency in a node", latency},
          Field{"bandwidth in a node", bandwidth},
          Field{"latency", between.latency_us},
          Field{"bandwidth", between.bytes_per_us},
          Field{"overhead", overhead},
          Field{"links per node", n_links},
          Field{"AllGather of the library", gather},
          Field{"sums by the library", library},
          Field{"steps done", steps_done}};
}

std::uint64_t hash_of_nodes(const Topology& topology) {
  std::vector<int> nodes;
  for (int rank = 0; rank < topology.size(); ++rank) nodes.push_back(topology.node_of(rank));
  return fnv1a(std::as_bytes(std::span(nodes)));
}

std::vector<Field> fields_of(const DecoderSetup& setup) {
  const auto& [algorithm, shape, ranges, order, scale, scales, pages, most_queries, options] = setup;
  const auto& [dtype, value_dtype, batch, heads, kv_heads, head_dim, value_dim, values_in_keys, row_multiple, portable,
               in_pairs] = shape;
  const auto hash_of = [](std::span<const float> each) { return fnv1a(std::as_bytes(each)); };
  std::vector<Field> fields{Field{"algorithm", algorithm},
                            Field{"number of ranges", ranges.size()},
                            Field{"hash of ranges", fnv1a(std::as_bytes(ranges))},
                            Field{"order of leaves", name_of(order)},
                            Field{"scale", scale},
                            Field{"type", name_of(dtype)},
                            Field{"type of values", name_of(value_dtype)},
                            Field{"batch", batch},
                            Field{"heads", heads},
                            Field{"KV heads", kv_heads},
                            Field{"most queries", most_queries},
                            Field{"head dim", head_dim},
                            Field{"value dim", value_dim},
                            Field{"values in keys", values_in_keys},
                            Field{"hash of key scales", hash_of(scales.k)},
                            Field{"hash of value scales", hash_of(scales.v)},
                            Field{"pages", pages.n_pages},
                            Field{"window of pages", pages.window},
                            Field{"sinks of pages", pages.sinks},
                            Field{"queries of pages", pages.most_queries}};
  std::ranges::copy(fields_of(options), std::back_inserter(fields));
  return fields;
}

}  // namespace tree_attn
