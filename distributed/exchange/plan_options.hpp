// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Inputs of a plan, beside nodes and ranges of positions, and the choice of its radix (section 5.3).
#pragma once

#include "distributed/transport/network.hpp"
#include "reference/state/require.hpp"
#include "reference/tensor/shape.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

namespace tree_attn {

/// Part of the output that a rank ends with.
enum class OutputPart {
  kAll,   ///< every row: [b, n_h, l, d_v] on every rank
  kHeads  ///< of p ranks, rank r has the query heads [r n_h / p, (r + 1) n_h / p): [b, n_h / p, l, d_v]
};

/// Inputs of a plan, beside nodes and ranges; the same on every rank. They decide which rank sends what to which, and no bit
/// of the output of an algorithm that keeps its bits.
struct PlanOptions {
  int radix = 0;       ///< nodes, or rank blocks of nodes, that one round joins, at least 2; 0: default_radix()
  int node_radix = 0;  ///< ranks of a node, or rank blocks, that one round joins, at least 2; 0: default_radix()
  std::optional<std::int64_t> slice_bytes{};  ///< messages above it are cut by rows; by default Network::slice_bytes
  Network network = kMpiNetwork;              ///< for default_radix(), and where to cut
  /// True if sums and maxima over all ranks are left to the library of the transport, an NcclTransport.
  bool library_reduces = false;
  /// First value of the counter of steps in the windows of one-shot. Tests begin just before it wraps.
  unsigned steps_done = 0;
  /// Shape of the states. A decoder sets it for every number of queries, and cost().
  std::int64_t n_rows = 1, d_v = 1, batch = 1;

  std::int64_t slice_limit() const { return slice_bytes.value_or(network.slice_bytes); }
  /// These options for the rows of a step of l queries. The number of rows is limited to 2^62: axes may exceed 64 bits where
  /// another axis is 0.
  PlanOptions for_step(const AttentionShape& shape, std::int64_t l) const {
    PlanOptions options = *this;
    const double n = static_cast<double>(shape.batch) * static_cast<double>(shape.heads) * static_cast<double>(l);
    options.n_rows = static_cast<std::int64_t>(std::fmin(n, 0x1p62));
    options.d_v = shape.value_dim, options.batch = shape.batch;
    return options;
  }
};

/// Rounds that join n rank blocks k at a time: ceil(log_k n). @throws std::invalid_argument if k < 2
inline int n_rounds(int n, int k) {
  require(k >= 2, "n_rounds: ", n, " blocks joined ", k, " at a time");
  int rounds = 0;
  for (std::int64_t joined = 1; joined < n; joined *= k) ++rounds;
  return rounds;
}

/// The time in which M rank blocks are joined, k at a time:
///
///     T(k) = ceil(log_k M) (alpha + (k - 1) (S / beta + 2 o))
///
/// for messages of S bytes, latency alpha and bandwidth beta of their links, and o per message at both ends.
/// @param overhead_us o @param n M @param bytes S
inline double join_time(const Link& link, double overhead_us, int n, int k, double bytes) {
  return n_rounds(n, k) * (link.latency_us + (k - 1) * (bytes / link.bytes_per_us + 2 * overhead_us));
}

/// The radix with the least time between nodes, or between the ranks of a node: join_time() for k = 2, 4, 8, ... < M and
/// k = M, the smaller k among equals; 2 if there are fewer than three. Other radices are left out: blocks of six nodes, say,
/// hold a range that is no aligned subtree, so their messages are several times as long in the next round.
/// @param overhead_us o @param bytes S
inline int default_radix(const Link& link, double overhead_us, int n_nodes, double bytes) {
  int best = 2;
  double least = std::numeric_limits<double>::infinity();
  for (int k = 2;; k *= 2) {
    k = std::min(k, std::max(n_nodes, 2));
    const double time = join_time(link, overhead_us, n_nodes, k, bytes);
    if (time < least) least = time, best = k;
    if (k >= n_nodes) return best;
  }
}

}  // namespace tree_attn
