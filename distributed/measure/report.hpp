// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What was measured, as a table for people and as JSON for programs.
#pragma once

#include <span>
#include <string>

#include "distributed/measure/measure.hpp"

namespace tree_attn {

/// What a report says beside its runs.
struct ReportHeader {
  std::string command;    ///< as it was typed
  std::string backend, transport;
  ProblemShape shape;
  int steps = 1, ranks = 1, nodes = 1;
};

/// The table: one line an algorithm, with a line above it that says what was decoded where.
std::string table(const ReportHeader& header, std::span<const Measurement> measurements);

/// The machine-readable report; numbers that were not measured are null.
std::string json(const ReportHeader& header, std::span<const Measurement> measurements);

/// The machine, one line a property: what `info` prints and a report holds.
struct Machine {
  std::string cpu, mpi, nccl, compiler, build_type;
  int cores = 0;
};
/// The machine at hand.
Machine this_machine();
/// Name and version of the MPI in use: "Open MPI v4.1.4", "MPICH 4.0.2".
std::string mpi_library();

}  // namespace tree_attn
