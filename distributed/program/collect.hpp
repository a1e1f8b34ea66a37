// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Collects the facts of all ranks.
#pragma once

#include "distributed/program/facts.hpp"
#include "distributed/transport/ranks.hpp"
#include "distributed/transport/topology.hpp"

#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// The facts of all ranks, by rank: on rank 0, elsewhere nothing. Collective.
/// @param machines which ranks share a machine
/// @param devices as --devices gives them; none for ranks that are processes
std::vector<RankFacts> collect_facts(const Ranks& ranks, const Topology& machines, std::span<const int> devices);

/// The identity of the GPU that a rank uses, "GPU-5f0c..."; "" if the driver names none. @param devices as of
/// collect_facts()
std::string gpu_identity(std::span<const int> devices, int rank, const Topology& machines);

/// The interface on which NCCL's bootstrap would listen here, "eth0 192.168.1.4": the first whose name begins with
/// NCCL_SOCKET_IFNAME; without it one of "ib", then the first but those of containers and lo. "" if there is none.
std::string bootstrap_interface();

}  // namespace tree_attn
