// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs, counts and times an algorithm on a workload, and compares the result with the oracle (section 6).
#pragma once

#include "distributed/exchange/decoder.hpp"
#include "distributed/program/predict.hpp"
#include "distributed/transport/ranks.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/data/workload.hpp"
#include "reference/oracle/attention.hpp"
#include "reference/oracle/error_bound.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tree_attn {

/// Median, 10th and 90th percentile of a time of each step in microseconds.
struct Latency {
  double median = 0, p10 = 0, p90 = 0;
};

/// Percentiles of a list of times, or of other numbers, in their unit. @throws std::invalid_argument if there is none
Latency latency_of(std::vector<double> times);

/// The counters of all ranks: sums of messages and bytes, the most of everything else. Collective.
Traffic over_ranks(const Traffic& traffic, const Ranks& ranks);

/// Distance of an output o from the oracle's output z; see error_bound(). Infinite if only one of the two is NaN or Inf.
struct Errors {
  double max_abs = 0;         ///< largest |o - z|
  double max_rel = 0;         ///< largest |o - z| relative to the largest |z| of its query
  double lse_max = 0;         ///< largest |lse - lse of the oracle|
  double max_over_bound = 0;  ///< largest ratio of an error to its bound: the check fails above 1
  /// All errors are within the bound; where the oracle has NaN the output has it too, and where it has Inf the output has
  /// the same Inf or NaN. Scores of less than -2^128 in base two may count as masked: a row with no other score may be that
  /// of no keys, which not_finite() names.
  bool passed = false;
};

/// The results of one algorithm.
struct Measurement {
  std::string algorithm;
  Latency latency;  ///< of the slowest rank of each step
  /// From the time when the last rank has the states of its shard to the time when the last rank has the output. For the
  /// ring, which decodes the shards of all ranks, that includes every shard but the first.
  Latency combine;
  int radix = 0;     ///< of the plan; 0: it has none
  Traffic per_step;  ///< sums over ranks of messages and bytes; collectives and merge steps of the busiest rank
  std::int64_t launches_per_step = 0;  ///< kernels and graphs that the host of the busiest rank launches in the last step
  std::string windows;                 ///< see Decoder::windows()
  std::int64_t peak_kv_bytes_per_rank = 0;  ///< largest over the ranks
  std::optional<Prediction> predicted;      ///< on rank 0, unless why_not_predicted() says why not
  std::optional<Errors> errors;             ///< on rank 0, if requested
  bool same_bits_on_all_ranks = false;
  std::uint64_t digest = 0;  ///< FNV-1a of out and lse of the last step
  DecodeOutput output;       ///< of the last step
};

/// The setup that all algorithms of a comparison share.
struct Bench {
  Transport& transport;
  const Backend& backend;
  Workload& workload;
  std::vector<KeyRange> ranges;  ///< of every rank in the tree, in the order of the topology; the last may be open
  int warmup = 0, repeat = 1;
  PlanOptions options{};
};

/// Decodes all steps of the workload with one algorithm, warmup + repeat times. Before each step the new keys and values are
/// appended to the cache, one position per batch entry. Before the next repetition they are dropped again.
/// @param shard the cache of this rank, filled at least up to the workload's lengths_at_start()
/// @throws std::invalid_argument if nothing is repeated, or the cache has another batch than the workload
Measurement measure(const Bench& bench, OpenShard& shard, const Algorithm& algorithm);

/// Compares outputs of the last step with the oracle.
class Verifier {
 public:
  /// Computes the oracle, on the calling rank alone. The workload must outlive this object.
  /// @param backend the backend that computed the shards
  /// @param progress see AttentionOptions; also while a bound is computed
  Verifier(Workload& workload, double scale, int n_ranks, const Backend& backend, std::function<void(double)> progress = {});
  /// @param algorithm the algorithm that computed `output`
  /// @param output the output of the last step @throws std::invalid_argument if it has another size than the oracle's
  Errors operator()(const Algorithm& algorithm, const DecodeOutput& output) const;

 private:
  const ErrorBound& bound(const ExchangeRounding& terms) const;

  TensorView q_, k_, v_;
  AttentionOptions options_;
  ErrorModel model_;  // of the backend
  int n_ranks_;
  std::int64_t n_keys_;  // of the longest sequence
  AttentionResult oracle_;
  double largest_lse_ = 1;
  mutable std::vector<std::pair<ExchangeRounding, ErrorBound>> bounds_;  // on first use
};

}  // namespace tree_attn
