// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Properties of this machine.
#pragma once

#include "distributed/program/report.hpp"
#include "distributed/transport/ranks.hpp"

#include <string>

namespace tree_attn {

/// The machine on which this process runs.
Machine this_machine();
/// Name and version of the MPI in use: "Open MPI v4.1.4", "MPICH 4.0.2".
std::string mpi_library();

/// Number of cores that the launcher lets this process use.
int n_allowed_cores();

/// Division of the cores of a node among its ranks. Equal on all ranks.
struct CoreShare {
  int threads_per_rank;        ///< cores of a node / its ranks: the smallest over all nodes, at least 1
  bool ranks_outnumber_cores;  ///< some node has more ranks than cores that they may use
};
/// Counts the cores that the ranks of each node may use, within the limit of the container. Collective.
/// @param machines which ranks share a machine
CoreShare share_cores(const Ranks& ranks, const Topology& machines);

}  // namespace tree_attn
