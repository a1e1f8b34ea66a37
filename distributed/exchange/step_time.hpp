// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The time of a decode step on a given cluster, from the plans of all ranks (section 6).
#pragma once

#include "distributed/exchange/plan.hpp"
#include "distributed/transport/network.hpp"
#include "distributed/transport/topology.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace tree_attn {

/// 1 GB/s in bytes per us.
inline constexpr double kGigabytePerSecond = 1e3;

/// The hardware that a step is predicted for.
struct Cluster {
  Network network;
  double memory_bytes_per_us = 0;  ///< bytes of keys and values that a rank decodes per us
  double merge_us = 0;             ///< of one merge step
  bool eager = false;              ///< messages are copied first: a rank goes on while those that it sent are on their way
  /// Until a kernel of another GPU of the node reads what this one has stored. The default is the latency that NCCL's model
  /// gives to a step over NVLink in its low-latency protocol, whose packets carry their own flag too.
  double store_us = 0.6;
};

/// The cluster of section 6: H100 GPUs, NVLink 4 inside a node of 8, one InfiniBand NDR link per GPU between nodes.
///
/// Bandwidths are nominal and of one direction: 450 GB/s and 50 GB/s. Latencies are usual values, 1.5 us and 3 us. 3 TB/s is
/// 90 % of the bandwidth of the memory. Messages and merges cost the processors nothing.
inline constexpr Cluster kPaperCluster{{{1.5, 450 * kGigabytePerSecond}, {3, 50 * kGigabytePerSecond}, 0},
                                       3000 * kGigabytePerSecond};

/// When a message is under way, in us.
struct MessageTime {
  int from = 0, to = 0;
  std::int64_t bytes = 0;
  double leaves = 0, arrives = 0;  ///< handed to the port of its sender; last byte at the receiver
};

/// The time at which the last rank has the output, in us, if all ranks start at time 0: Hockney's alpha-beta model, walked
/// through the rounds of all ranks.
///
/// A rank has two ports, one to the other ranks of its node and one to other nodes. Each sends and receives at the bandwidth
/// of its link, both at the same time. A round that begins at time t goes like this:
/// * Message i = 0, 1, ... of the round leaves at t + i o (o: overhead_us). A port sends its messages one after
///   the other, each in bytes / bandwidth. They share it, so all have arrived one latency after it sent the last byte.
/// * With n messages to send and d bytes to decode, the rank itself is busy until t + n o + d / memory_bytes_per_us.
/// * A port receives messages in the order in which they were sent, the first byte one latency after it left, and each takes
///   bytes / bandwidth again, at the same time as at the sender.
/// * The round ends m o + merge_steps merge_us after the rank is no longer busy, the m messages that it receives are there,
///   and those that it sent have arrived, because it may not change them before (unless `eager`).
///
/// So a round of one message of x bytes each way takes latency + x / bandwidth + o, if o < latency. Not in the model:
/// switches and cables between the ports, and the start of kernels.
///
/// In a round that the kernel stores (RankCost::Round::is_stored) the latency is store_us, o is 0, and no rank waits until
/// what it has stored has arrived.
/// @param costs of every rank of the topology
/// @param[out] messages if not null, all messages are appended
/// @throws std::invalid_argument for another number of ranks; std::logic_error if the messages that ranks send and receive
/// do
///   not match
double step_time(std::span<const RankCost> costs, const Topology& topology, const Cluster& cluster,
                 std::vector<MessageTime>* messages = nullptr);

}  // namespace tree_attn
