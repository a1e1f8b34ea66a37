// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Properties of this machine.
#pragma once

#include "tree_attn/distributed/measure/report.hpp"
#include "tree_attn/distributed/transport/ranks.hpp"

#include <string>

namespace tree_attn {

/// The machine on which this process runs.
Machine this_machine();
/// Name and version of the MPI in use: "Open MPI v4.1.4", "MPICH 4.0.2".
std::string mpi_library();

/// Number of cores that the launcher lets this process use.
int n_allowed_cores();

/// Threads per rank that leave no core of a node to two of them: the cores that the ranks of the node may use, within the
/// limit of the container, divided by these ranks; at least 1. The smallest over all nodes, equal on all ranks. Collective.
/// @param machines which ranks share a machine
int threads_per_rank(const Ranks& ranks, const Topology& machines);
/// Whether some node has more ranks than cores that they may use, within the limit of the container. Equal on all ranks.
/// Collective.
bool ranks_outnumber_cores(const Ranks& ranks, const Topology& machines);

}  // namespace tree_attn
