// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decoding in canonical order: gather, two-level, and states around a ring. One tree, so one set of bits (section 5.3).
#include "distributed/decoders/decoder.hpp"

#include <algorithm>

namespace tree_attn {
namespace {

/// The runs of the places at which the ranks of a node stand; nodes hold neighbours of the row.
std::vector<Run> runs_of(const Topology& topology, std::span<const int> ranks, std::span<const Run> runs) {
  std::vector<Run> result;
  for (const int rank : ranks) result.push_back(runs[static_cast<std::size_t>(topology.place_of(rank))]);
  return result;
}

}  // namespace

DecodeOutput decode_gather(Transport& transport, const Backend& backend, const DecodeStep& step) {
  Forest<float> forest = all_gather_forest(transport, step.runs, local_forest(transport, backend, step));
  return finish_forest(transport, forest, step);
}

DecodeOutput decode_two_level(Transport& transport, const Backend& backend, const DecodeStep& step) {
  const Topology& topology = transport.topology();
  const int node = topology.node_of(transport.rank());
  const std::vector<int>& ranks = topology.node(node);
  Forest<float> forest = local_forest(transport, backend, step);

  // Level one: the node's subtrees climb to its leader.
  const int n_ranks = static_cast<int>(ranks.size());
  const int me = static_cast<int>(std::find(ranks.begin(), ranks.end(), transport.rank()) - ranks.begin());
  if (n_ranks > 1) reduce_forest(transport, ranks, runs_of(topology, ranks, step.runs), reduce_to_first(n_ranks, me), forest);

  // Level two: leaders exchange over the network; a node's run is that of its ranks together.
  DecodeOutput output;
  if (me == 0) {
    const std::vector<int> leaders = topology.leaders();
    std::vector<Run> runs;
    for (int i = 0; i < topology.n_nodes(); ++i) {
      const std::vector<Run> members = runs_of(topology, topology.node(i), step.runs);
      runs.push_back({members.front().begin, members.back().end});
    }
    if (leaders.size() > 1) reduce_forest(transport, leaders, runs, butterfly(topology.n_nodes(), node), forest);
    output = finish_forest(transport, forest, step);
  }

  // And down again: z and lse in one message.
  if (n_ranks > 1) {
    const std::size_t n_out = static_cast<std::size_t>(step.n_rows() * step.d_v()),
                      n_rows = static_cast<std::size_t>(step.n_rows());
    const std::span<float> message = transport.buffers[0].first<float>(n_out + n_rows);
    if (me == 0)
      std::copy(output.lse.begin(), output.lse.end(), std::copy(output.out.begin(), output.out.end(), message.begin()));
    broadcast(transport, ranks, message);
    if (me != 0)
      output = {{message.begin(), message.begin() + static_cast<std::ptrdiff_t>(n_out)},
                {message.begin() + static_cast<std::ptrdiff_t>(n_out), message.end()}};
  }
  return output;
}

DecodeOutput decode_ring_state(Transport& transport, const Backend& backend, const DecodeStep& step) {
  Forest<float> forest = ring_gather_forest(transport, step.runs, local_forest(transport, backend, step));
  return finish_forest(transport, forest, step);
}

}  // namespace tree_attn
