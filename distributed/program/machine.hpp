// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The machine at hand.
#pragma once

#include "distributed/measure/report.hpp"

#include <string>

namespace tree_attn {

/// The machine that this process runs on.
Machine this_machine();
/// Name and version of the MPI in use: "Open MPI v4.1.4", "MPICH 4.0.2".
std::string mpi_library();

}  // namespace tree_attn
