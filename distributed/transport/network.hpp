// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Latencies and bandwidths of a cluster: the alpha-beta model, with a cost per message (eq. (11)-(14)).
#pragma once

namespace tree_attn {

/// A link. A message takes latency_us + bytes / bytes_per_us.
struct Link {
  double latency_us = 0;    ///< alpha
  double bytes_per_us = 0;  ///< beta, in each direction; 1000 B/us is 1 GB/s
};

/// The links of every rank, and what a message costs the ranks that handle it.
struct Network {
  Link inside, between;    ///< between ranks of a node, and between nodes
  double overhead_us = 0;  ///< of every message, at its sender and again at its receiver
};

}  // namespace tree_attn
