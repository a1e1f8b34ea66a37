// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Properties of this machine.
#pragma once

#include "distributed/measure/report.hpp"

#include <string>

namespace tree_attn {

/// The machine on which this process runs.
Machine this_machine();
/// Name and version of the MPI in use: "Open MPI v4.1.4", "MPICH 4.0.2".
std::string mpi_library();

}  // namespace tree_attn
