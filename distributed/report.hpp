// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What was measured, as a table for people and as JSON for programs.
#pragma once

#include <span>
#include <string>

#include "distributed/measure.hpp"

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

/// Bytes of memory that this machine can still give out, at most what a container allows; infinity where nobody tells.
double available_memory();

/// Finds out before the work, and not behind it, that a file could not be written. @throws InputError
/// @param devices_too whether a device or a pipe will do
void check_writable(const std::string& path, bool devices_too);

/// Writes a file in one go: under another name first, so that no half of it is ever seen; a device or a pipe is written as
/// it is. @throws InputError
void write_file(const std::string& path, const std::string& text);

}  // namespace tree_attn
