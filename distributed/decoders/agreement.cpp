// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Values as names and texts, gathered from all ranks at once.
#include "tree_attn/distributed/decoders/agreement.hpp"

#include "tree_attn/distributed/transport/ranks.hpp"
#include "tree_attn/reference/data/fnv1a.hpp"
#include "tree_attn/reference/data/input_error.hpp"
#include "tree_attn/reference/decode/page_table.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace tree_attn {
namespace {

std::uint64_t hash_of(const Topology& topology) {
  std::vector<int> nodes;
  for (int rank = 0; rank < topology.size(); ++rank) nodes.push_back(topology.node_of(rank));
  return fnv1a(std::as_bytes(std::span(nodes)));
}

}  // namespace

/// A member that is added to a structure does not compile until it is named here.
std::vector<Field> fields_of(const PlanOptions& options) {
  // The shape of the states, n_rows and d_v, follows from that of the cache.
  const auto& [radix, node_radix, slice_bytes, network, library, on_host, steps_done, n_rows, d_v] = options;
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
          Field{"windows on the host", on_host},
          Field{"steps done", steps_done}};
}

void require_equal(Transport& transport, std::string_view function, std::string_view what, std::span<const Field> fields) {
  if (transport.size() == 1) return;
  std::vector<decltype(Field::value)> mine(fields.size()), all(fields.size() * static_cast<std::size_t>(transport.size()));
  std::ranges::transform(fields, mine.begin(), &Field::value);
  if (transport.ranks().all_equal(fnv1a(std::as_bytes(std::span(mine))), what)) return;
  transport.ranks().all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), what);
  const auto text = [](const auto& value) { return std::string(value.begin(), std::ranges::find(value, '\0')); };
  for (std::size_t rank = 1; rank * mine.size() < all.size(); ++rank) {
    std::string line;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto &first = all[i], &second = all[rank * mine.size() + i];
      if (first == second) continue;
      line += (line.empty() ? "" : ", ") + std::string(fields[i].name) + " (" + text(first) + " and " + text(second) + ")";
    }
    if (!line.empty())
      throw InputError(std::string(function) + ": ranks 0 and " + std::to_string(rank) + " differ in " + line);
  }
}

void require_agreement(std::string_view algorithm, Transport& transport, const OpenShard& shard,
                       std::span<const KeyRange> ranges, const PlanOptions& options) {
  const auto& [dtype, value_dtype, batch, heads, kv_heads, n_queries, head_dim, value_dim, values_in_keys] =
      shard.cache->shape();
  const PageRule pages = shard.cache->pages() != nullptr ? shard.cache->pages()->rule() : PageRule{};
  std::vector<Field> fields{Field{"algorithm", algorithm},
                            Field{"hash of nodes", hash_of(transport.topology())},
                            Field{"number of ranges", ranges.size()},
                            Field{"hash of ranges", fnv1a(std::as_bytes(ranges))},
                            Field{"order of leaves", name_of(shard.cache->leaves().order())},
                            Field{"scale", shard.session->scale()},
                            Field{"type", name_of(dtype)},
                            Field{"type of values", name_of(value_dtype)},
                            Field{"batch", batch},
                            Field{"heads", heads},
                            Field{"KV heads", kv_heads},
                            Field{"queries", n_queries},
                            Field{"head dim", head_dim},
                            Field{"value dim", value_dim},
                            Field{"values in keys", values_in_keys},
                            Field{"hash of key scales", fnv1a(std::as_bytes(std::span(shard.cache->scales().k)))},
                            Field{"hash of value scales", fnv1a(std::as_bytes(std::span(shard.cache->scales().v)))},
                            Field{"pages", pages.n_pages},
                            Field{"window of pages", pages.window},
                            Field{"sinks of pages", pages.sinks}};
  std::ranges::copy(fields_of(options), std::back_inserter(fields));
  require_equal(transport, "Algorithm::open", "all ranks to open " + std::string(algorithm), fields);
}

}  // namespace tree_attn
