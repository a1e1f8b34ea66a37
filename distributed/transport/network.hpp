// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Latencies and bandwidths of a cluster: the alpha-beta model, with a cost per message (eq. (11)-(14)).
#pragma once

#include <cstdint>

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
  /// Messages above this number of bytes are cut into slices of rows. Below it, the further round takes longer than the
  /// bytes that it saves.
  std::int64_t slice_bytes = 32 * 1024;
  int links_per_node = 0;  ///< to other nodes, which its ranks share; 0: one for each rank
  double gather_us = 0;    ///< latency of an AllGather by the library inside a node; 0: it has none
};

/// @name The network of a transport
/// Constants of the default radix, one set for each transport (Transport::network()). They are assumed and never measured
/// when a program starts, so that every rank chooses the same schedule. `--latency`, `--bandwidth` and `--overhead` replace
/// them.
/// @{

/// MPI over host memory. A message inside a node is copied once or twice; between nodes it takes about 3 us and the link of
/// 400 Gb/s that all ranks of a node share; a processor spends 0.3 us on each message that it sends or receives. Usual
/// values, not measured here.
inline constexpr Network kMpiNetwork{.inside = {.latency_us = 1, .bytes_per_us = 10e3},
                                     .between = {.latency_us = 3, .bytes_per_us = 50e3},
                                     .overhead_us = 0.3,
                                     .links_per_node = 1};
/// Memory that the ranks of a node share, and MPI between nodes. Inside a node a combine of 8 KB takes less than half of its
/// time over MPI (README.md, `two-level`). Half of MPI's latency is assumed here.
inline constexpr Network kSharedNetwork{.inside = {.latency_us = 0.5, .bytes_per_us = 10e3},
                                        .between = kMpiNetwork.between,
                                        .overhead_us = kMpiNetwork.overhead_us,
                                        .links_per_node = kMpiNetwork.links_per_node};
/// Ranks that are threads: every message is one copy in memory, between pretended nodes too. The latency of MPI inside a
/// node, whose ranks also wait for a core of the same machine; not measured here.
inline constexpr Network kThreadNetwork{
    .inside = kMpiNetwork.inside, .between = kMpiNetwork.inside, .overhead_us = kMpiNetwork.overhead_us};
/// NCCL between the memories of GPUs. A round is one kernel of NCCL and a step of a ring, by NCCL's own constants
/// (src/graph/tuning.cc; docs/IV.4-network.md): over NVLink 6.6 + 0.6 us in the low-latency protocol, between nodes
/// 8.4 + 14 us in the simple one, since sends and receives have no buffers for the other. Users measure 3 to 16.5 us over
/// NVLink (NVIDIA/nccl issues 1487, 1984 and 568: H100, H800, A100). Bandwidths are those of the paper's cluster, NVLink 4
/// and one link of 400 Gb/s. Processors spend nothing on a message. A message of more than 16 KiB leaves the low-latency
/// protocol inside a node (NCCL_P2P_LL_THRESHOLD, of one channel). Not measured here: that takes several GPUs.
inline constexpr Network kNcclNetwork{.inside = {.latency_us = 7.2, .bytes_per_us = 450e3},
                                      .between = {.latency_us = 22.4, .bytes_per_us = 50e3},
                                      .overhead_us = 0,
                                      .slice_bytes = 16 * 1024};
/// An AllGather by NCCL in a window of all GPUs of a node, from 2.27 on, whose kernels store into the memory of the others:
/// NCCL's own constant for the low-latency protocol on GPUs before Blackwell (src/sym_kernels.cc). Not measured here.
inline constexpr double kNcclGatherUs = 4.5;
/// NCCL's network where NCCL_ALLOC_P2P_NET_LL_BUFFERS is 1 on all ranks: 6.6 + 2.7 us between nodes.
inline constexpr Network kNcclLowLatencyNetwork{.inside = kNcclNetwork.inside,
                                                .between = {.latency_us = 9.3, .bytes_per_us = 50e3},
                                                .overhead_us = 0,
                                                .slice_bytes = kNcclNetwork.slice_bytes};
/// @}

}  // namespace tree_attn
