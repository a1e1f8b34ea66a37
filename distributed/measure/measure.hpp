// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs an algorithm on a problem, counting and timing it, and holds the result against the oracle (section 6).
#pragma once

#include "distributed/decoders/decoder.hpp"
#include "distributed/measure/predict.hpp"
#include "distributed/transport/ranks.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/data/workload.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tree_attn {

/// Median and tenth and ninetieth percentile of the latencies of a step, in microseconds; of each step the slowest rank.
struct Latency {
  double median = 0, p10 = 0, p90 = 0;
};

/// Distance of an output from the oracle; see error_bound(). Infinite where only one of the two is NaN or Inf.
struct Errors {
  double max_abs = 0;         ///< largest |o - z|
  double max_rel = 0;         ///< largest |o - z| over the largest |z| of its query
  double lse_max = 0;         ///< largest |lse - oracle's|
  double max_over_bound = 0;  ///< largest error over its bound: the check fails above 1
  bool passed = false;        ///< within the bound everywhere, and NaN and Inf exactly where the oracle has them
};

/// What was seen of one algorithm.
struct Measurement {
  std::string algorithm;
  Latency latency;
  Traffic per_step;  ///< sums over ranks of messages and bytes; the busiest rank's collectives and merge steps
  std::int64_t peak_kv_bytes_per_rank = 0;  ///< of the rank that held most
  Prediction predicted;
  std::optional<Errors> errors;  ///< on rank 0, if asked for
  bool same_bits_on_all_ranks = false;
  std::uint64_t digest = 0;  ///< FNV-1a of out and lse of the last step
  DecodeOutput output;       ///< of the last step
};

/// Everything that stays the same from algorithm to algorithm.
struct Bench {
  const Ranks& ranks;
  Transport& transport;
  const Backend& backend;
  Workload& workload;
  std::vector<KeyRange> ranges;  ///< positions of every rank, in the order of the topology, at the last step
  double scale = 1;
  int warmup = 0, repeat = 1;
};

/// Decodes warmup + repeat times all steps of the problem with one algorithm. Before a step the cache gets the keys and
/// values that are new, a position per batch entry; what was appended is dropped before the next repetition.
///
/// @param shard the cache of this rank, filled at least as far as the problem's lengths_at_start()
///
/// Where needs_lift() finds an overflow, the step is decoded a second time with kLift: its time and its traffic are those of
/// both, `predicted` is of one.
Measurement measure(const Bench& bench, ShardDecoder& shard, const Algorithm& algorithm);

/// What the oracle says of the last step, and how far off an output may be.
class Verifier {
 public:
  /// Computes the oracle, on the calling rank alone. Bounds are computed where they are asked for: the problem outlives
  /// this.
  /// @param backend what computed the shards
  Verifier(Workload& workload, double scale, int n_ranks, const Backend& backend);
  /// @param output of the last step, by `algorithm`
  Errors operator()(const Algorithm& algorithm, const DecodeOutput& output) const;

 private:
  struct Truth;
  std::shared_ptr<Truth> truth_;
};

}  // namespace tree_attn
