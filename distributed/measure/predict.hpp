// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What each algorithm should send and hold, in closed form: held against what was counted (eq. (8)-(14)).
#pragma once

#include <cstdint>
#include <string_view>

#include "reference/data/problem.hpp"
#include "distributed/transport/topology.hpp"

namespace tree_attn {

/// Closed formulas of one decode step.
struct Prediction {
  std::int64_t messages = 0;             ///< sent by all ranks together
  std::int64_t bytes = 0;                ///< sent by all ranks together
  std::int64_t bytes_between_nodes = 0;  ///< of these, the bytes that leave a node
  double paper_bytes = 0;                ///< the paper's volume, eq. (10)-(14), over all ranks; 0 where it has no formula
  double peak_elements = 0;              ///< eq. (8)-(9): elements that one rank holds at the peak
};

/// Predicts a step over N keys, with n_rows = b n_h l queries, S = 4 n_rows (2 + d_v) bytes of states, p ranks, M of them
/// leaders of nodes.
///
///     AllReduce by doubling:  A(p) = m log2 m + 2 (p - m) messages, m the largest power of two <= p
///     paper       A(p) (4 n_rows + 4 n_rows d_v + 4 n_rows)       packed, fused   A(p) of 4 n_rows (2 + d_v)
///     gather      p (p - 1) S        ring-state  p (p - 1) S       ring            (p - 1) times the whole cache
///     two-level   (p - M) S + A(M) S + (p - M) 4 n_rows (1 + d_v)
///
/// Exact where every rank's run is one aligned subtree or the algorithm sends one state a rank; a run that is cut elsewhere
/// sends up to 2 log2 N subtrees and more bytes than this. For two-level the joined runs of nodes must be aligned as well:
/// equal nodes, and as many as a power of two. peak_elements is the paper's: its ring holds two shards, ours three (its own, one
/// computed, one arriving).
/// @paper{eq_8, eq. (8)} @paper{eq_10, eq. (10)}
Prediction predict(std::string_view algorithm, const ProblemShape& shape, const Topology& topology);

}  // namespace tree_attn
