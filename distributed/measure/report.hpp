// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What was measured, as a table for people and as JSON for programs.
#pragma once

#include "distributed/measure/measure.hpp"

#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// The machine, one property per line: what `info` prints and a report holds.
struct Machine {
  std::string cpu, mpi, nccl, compiler, build_type;
  int cores = 0;
  std::vector<std::string> gpus;  ///< by name, of all backends that are built in
};

/// What a report says beside its runs.
struct ReportHeader {
  std::string command;  ///< as it was typed
  std::string backend, transport;
  WorkloadShape shape;
  int steps = 1, ranks = 1, nodes = 1;
  Machine machine;
};

/// The table: one line an algorithm, with a line above it that says what was decoded where.
std::string table(const ReportHeader& header, std::span<const Measurement> measurements);

/// The machine-readable report; numbers that were not measured are null.
std::string json(const ReportHeader& header, std::span<const Measurement> measurements);

}  // namespace tree_attn
