// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Measurements as a table for people and as JSON for programs.
#pragma once

#include "distributed/measure/measure.hpp"
#include "distributed/measure/step_time.hpp"

#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// Properties of the machine, for `info` and for reports.
struct Machine {
  std::string cpu, mpi, nccl, compiler, build_type;
  std::string instruction_set;  ///< of the loops of the CPU backend
  int cores = 0;
  std::vector<std::string> gpus;  ///< names of the GPUs of all backends in this build
};

/// The part of a report that all its runs share.
struct ReportHeader {
  std::string command;  ///< as typed
  std::string backend, transport;
  WorkloadShape shape;
  int steps = 1, threads = 1, ranks = 1, nodes = 1;
  Machine machine;
};

/// The table: one line per algorithm, below a line that names the workload, the ranks and the backend.
std::string table(const ReportHeader& header, std::span<const Measurement> measurements);

/// The machine-readable report. Values that were not measured are null.
std::string json(const ReportHeader& header, std::span<const Measurement> measurements);

/// The part of a prediction that all algorithms share.
struct PredictionHeader {
  std::string command;  ///< as typed
  WorkloadShape shape;
  Topology topology;
  Cluster cluster;
};
/// The prediction for an algorithm, with step_us.
struct NamedPrediction {
  std::string algorithm;
  int radix = 0;  ///< of the plan; 0: it has none
  Prediction predicted;
};

/// The table: one line per algorithm, below the workload and the cluster.
std::string table(const PredictionHeader& header, std::span<const NamedPrediction> predictions);

/// The same for programs.
std::string json(const PredictionHeader& header, std::span<const NamedPrediction> predictions);

}  // namespace tree_attn
