// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Latencies and bandwidths of a cluster: the alpha-beta model, with a cost per message (eq. (11)-(14)).
#pragma once

namespace tree_attn {

/// A link. A message takes latency_us + bytes / bytes_per_us.
struct Link {
  double latency_us = 0;    ///< alpha
  double bytes_per_us = 0;  ///< beta, in each direction; 1000 B/us is 1 GB/s

  bool operator==(const Link&) const = default;
};

/// The links of every rank, and what a message costs the ranks that handle it.
struct Network {
  Link inside, between;    ///< between ranks of a node, and between nodes
  double overhead_us = 0;  ///< of every message, at its sender and again at its receiver

  bool operator==(const Network&) const = default;
};

/// @name The network of a transport
/// Constants of the default radix, one set for each transport (Transport::network()). They are assumed and never measured
/// when a program starts, so that every rank chooses the same schedule. `--latency`, `--bandwidth` and `--overhead` replace
/// them.
/// @{

/// MPI over host memory. A message inside a node is copied once or twice; between nodes it takes about 3 us and one link of
/// 400 Gb/s; a processor spends 0.3 us on each message that it sends or receives. Usual values, not measured here.
inline constexpr Network kMpiNetwork{.inside = {.latency_us = 1, .bytes_per_us = 10e3},
                                     .between = {.latency_us = 3, .bytes_per_us = 50e3},
                                     .overhead_us = 0.3};
/// Memory that the ranks of a node share, and MPI between nodes. Inside a node a combine of 8 KB takes less than half of its
/// time over MPI (README.md, `two-level`). Half of MPI's latency is assumed here.
inline constexpr Network kSharedNetwork{.inside = {.latency_us = 0.5, .bytes_per_us = 10e3},
                                        .between = kMpiNetwork.between,
                                        .overhead_us = kMpiNetwork.overhead_us};
/// Ranks that are threads: every message is one copy in memory, between pretended nodes too. The latency of MPI inside a
/// node, whose ranks also wait for a core of the same machine; not measured here.
inline constexpr Network kThreadNetwork{
    .inside = kMpiNetwork.inside, .between = kMpiNetwork.inside, .overhead_us = kMpiNetwork.overhead_us};
/// NCCL between the memories of GPUs. A round is one kernel of NCCL: 6.6 us, and a step of 0.6 us over NVLink or 2.7 us over
/// a network, by NCCL's own constants for a ring in the low-latency protocol (docs/IV.4-network.md). Bandwidths are those of
/// the paper's cluster, NVLink 4 and one link of 400 Gb/s. Processors spend nothing on a message. Not measured here: that
/// takes several GPUs.
inline constexpr Network kNcclNetwork{.inside = {.latency_us = 7.2, .bytes_per_us = 450e3},
                                      .between = {.latency_us = 9.3, .bytes_per_us = 50e3},
                                      .overhead_us = 0};
/// @}

}  // namespace tree_attn
