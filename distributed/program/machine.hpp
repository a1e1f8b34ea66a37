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

/// How the ranks of a node share the cores that they may use, within the limit of the container. Equal on all ranks.
struct CoreShare {
  int threads_per_rank;        ///< that leave no core to two ranks, on the node where they are fewest; at least 1
  bool ranks_outnumber_cores;  ///< on some node
};
/// Collective. @param machines which ranks share a machine
CoreShare share_cores(const Ranks& ranks, const Topology& machines);

}  // namespace tree_attn
