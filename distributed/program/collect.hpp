// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Collects the facts of all ranks, and refuses a decode that they make impossible.
#pragma once

#include "tree_attn/distributed/job/judge.hpp"
#include "tree_attn/distributed/program/decode_options.hpp"
#include "tree_attn/distributed/transport/ranks.hpp"

#include <string>
#include <vector>

namespace tree_attn {

/// The facts of all ranks, by rank: on rank 0, elsewhere nothing. Collective.
/// @param machines which ranks share a machine
/// @param devices as --devices gives them; "" for ranks that are processes
std::vector<RankFacts> collect_facts(const Ranks& ranks, const Topology& machines, const std::string& devices);

/// The interface on which NCCL's bootstrap would listen here, "eth0 192.168.1.4": the first whose name begins with
/// NCCL_SOCKET_IFNAME; without it one of "ib", then the first but those of containers and lo. "" if there is none.
std::string bootstrap_interface();

/// Ends a decode on GPUs, over NCCL or not, before it begins if the facts make it impossible, with the line that `info`
/// prints. Collective if the backend needs a GPU; otherwise nothing is asked.
/// @throws InputError on all ranks
void require_possible(const ClusterOptions& options, const Ranks& ranks, const Topology& machines);

}  // namespace tree_attn
