// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Nodes, leaders, and the order in which ranks hold the sequence (section 5.3).
#include "distributed/transport/topology.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace tree_attn {

TEST_CASE("topology: pretended nodes are ranges of ranks, the last one may be smaller") {
  const Topology topology = Topology::pretend(7, 3);
  CHECK(topology.n_nodes() == 3);
  CHECK(topology.node(0) == std::vector{0, 1, 2});
  CHECK(topology.node(2) == std::vector{6});
  CHECK(Topology::pretend(4, 100).n_nodes() == 1);
  CHECK(Topology::pretend(4, 1).n_nodes() == 4);
}

TEST_CASE("topology: nodes are numbered by their smallest rank, whatever their labels") {
  const Topology topology({9, -4, 9, 0, -4});
  CHECK(topology.n_nodes() == 3);
  CHECK(topology.node(0) == std::vector{0, 2});
  CHECK(topology.node(1) == std::vector{1, 4});
  CHECK(topology.node(2) == std::vector{3});
  CHECK(topology.order() == std::vector{0, 2, 1, 4, 3});
  CHECK(topology.leaders() == std::vector{0, 1, 3});
  for (int rank = 0; rank < 5; ++rank)
    CHECK(topology.local_rank(rank) == std::vector{0, 0, 1, 0, 1}[static_cast<std::size_t>(rank)]);
}

TEST_CASE("topology: the order is a permutation in which every node is a range, led by its first rank") {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const int size = 1 + static_cast<int>(random() % 20);
    std::vector<int> labels;
    for (int rank = 0; rank < size; ++rank) labels.push_back(static_cast<int>(random() % 5));
    const Topology topology(labels);
    std::vector<int> sorted = topology.order();
    std::sort(sorted.begin(), sorted.end());
    int index = 0;
    for (int node = 0; node < topology.n_nodes(); ++node) {
      const std::vector<int>& ranks = topology.node(node);
      CHECK(std::is_sorted(ranks.begin(), ranks.end()));
      CHECK(topology.leaders()[static_cast<std::size_t>(node)] == ranks.front());
      for (const int rank : ranks) {
        CHECK(topology.order()[static_cast<std::size_t>(index)] == rank);
        CHECK(topology.index_of(rank) == index++);
        CHECK(topology.node_of(rank) == node);
        CHECK(labels[static_cast<std::size_t>(rank)] == labels[static_cast<std::size_t>(ranks.front())]);
      }
    }
    CHECK(index == size);
    for (int rank = 0; rank < size; ++rank) CHECK(sorted[static_cast<std::size_t>(rank)] == rank);
  }
}

}  // namespace tree_attn
