// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Measurements as a table for people and as JSON for programs.
#pragma once

#include "distributed/exchange/step_time.hpp"
#include "distributed/program/measure.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn {

/// Properties of the machine, for `info` and for reports.
struct Machine {
  std::string cpu, mpi, nccl, compiler, build_type;
  std::string instruction_set;  ///< of the loops of the CPU backend
  int cores = 0;
  std::vector<std::string> gpus;  ///< names of the GPUs of all backends in this build
};

/// Header that the reports of `decode` and `generate` share.
struct RunHeader {
  std::string command;                         ///< as typed
  std::string backend, arithmetic, transport;  ///< arithmetic: Backend::arithmetic()
  int threads = 1, ranks = 1, nodes = 1;
  Machine machine;
};

/// The part of a report that all its runs share.
struct ReportHeader : RunHeader {
  WorkloadShape shape;
  int steps = 1;
};

/// The table: one line per algorithm, below a line that names the workload, the ranks and the backend.
std::string table(const ReportHeader& header, std::span<const Measurement> measurements);

/// The machine-readable report. Values that were not measured are null. JSON has no infinity and no NaN: errors that are not
/// finite are null too, and `passed` is then false. Without --verify it is null, like all errors.
std::string json(const ReportHeader& header, std::span<const Measurement> measurements);

/// The part of a prediction that all algorithms share.
struct PredictionHeader {
  std::string command;  ///< as typed
  WorkloadShape shape;
  Topology topology;
  Cluster cluster;
  std::vector<std::pair<std::string, std::string>> left_out{};  ///< algorithms that cannot combine these ranks, and why
};
/// The prediction for an algorithm, with step_us.
struct NamedPrediction {
  std::string algorithm;
  int radix = 0;  ///< of the plan; 0: it has none
  Prediction predicted;
};

/// The table: one line per algorithm, below the workload and the cluster; then those that are left out.
std::string table(const PredictionHeader& header, std::span<const NamedPrediction> predictions);

/// JSON document of the predictions, for programs.
std::string json(const PredictionHeader& header, std::span<const NamedPrediction> predictions);

/// The largest weight from which on an answer is likely to be in the text, see docs/IV.6-model.md.
inline constexpr double kSureWeight = 0.97;

/// An answer of a language model.
struct Answer {
  std::string question, text;           ///< text without the character that ends it
  std::optional<std::string> expected;  ///< where the questions come with answers
  std::int64_t position = 0;            ///< of the key with the largest weight, when the first character is chosen
  std::int64_t rank = 0, head = 0;      ///< that holds the key; in which the weight is largest
  double weight = 0;                    ///< of that key
  bool is_right() const { return expected && text == *expected; }
};
/// The answers of a language model whose shards one algorithm combines.
struct GenerationRun {
  std::string algorithm;
  int radix = 0;  ///< of the plan for the text; 0: it has none
  std::vector<Answer> answers;
  Latency token;      ///< time of one further character, on rank 0
  Traffic per_token;  ///< of the last character, over all ranks as in Measurement::per_step
  bool same_bits_on_all_ranks = false;
  std::uint64_t digest = 0;  ///< FNV-1a of the logits of all characters of all answers
};
/// The part of these reports that all runs share.
struct GenerationHeader : RunHeader {
  std::string dtype, order;
  std::int64_t n_characters = 0;  ///< of the text
  int global_layers = 1, layers = 1;
  double read_seconds = 0;             ///< of the slowest rank
  std::int64_t kv_bytes = 0;           ///< keys and values of the text, over all ranks
  std::int64_t kv_bytes_per_rank = 0;  ///< the most that one rank holds
};

/// Two lines: the text and the ranks, and the keys and values that they hold.
std::string title(const GenerationHeader& header);
/// One line: where the largest weight of an answer is, and "not sure" where it is below kSureWeight.
std::string where(const Answer& answer, int n_ranks);
/// The table: one line per algorithm.
std::string table(std::span<const GenerationRun> runs);
/// The machine-readable report.
std::string json(const GenerationHeader& header, std::span<const GenerationRun> runs);

}  // namespace tree_attn
