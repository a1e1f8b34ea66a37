// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts and times decode steps, and compares outputs with the oracle.
#include "distributed/program/measure.hpp"

#include "gpu/backend/backends.hpp"
#include "reference/data/fnv1a.hpp"
#include "reference/state/subtree.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

namespace tree_attn {
namespace {

std::uint64_t digest_of(const DecodeOutput& output) {
  return fnv1a(std::as_bytes(std::span(output.lse)), fnv1a(std::as_bytes(std::span(output.out))));
}

/// The q-quantile of sorted samples, interpolated linearly.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const std::size_t i = static_cast<std::size_t>(at);
  return i + 1 < sorted.size() ? sorted[i] + (at - static_cast<double>(i)) * (sorted[i + 1] - sorted[i]) : sorted[i];
}

/// The largest number >= 0 of all ranks.
std::int64_t most(const Ranks& ranks, std::int64_t number) {
  return static_cast<std::int64_t>(ranks.all_max(static_cast<std::uint64_t>(number)));
}

}  // namespace

Latency latency_of(std::vector<double> times) {
  require(!times.empty(), "latency_of: no times");
  std::sort(times.begin(), times.end());
  return {quantile(times, 0.5), quantile(times, 0.1), quantile(times, 0.9)};
}

Traffic over_ranks(const Traffic& traffic, const Ranks& ranks) {
  return {most(ranks, traffic.collectives), ranks.all_sum(traffic.messages),
          ranks.all_sum(traffic.bytes),     ranks.all_sum(traffic.bytes_between_nodes),
          most(ranks, traffic.merge_steps), most(ranks, traffic.buffer_kv_bytes)};
}

Measurement measure(const Bench& bench, OpenShard& shard, const Algorithm& algorithm) {
  Transport& transport = bench.transport;
  const Ranks& ranks = transport.ranks();
  Workload& workload = bench.workload;
  KvCache& cache = *shard.cache;
  require(bench.warmup >= 0 && bench.repeat >= 1, "measure: ", bench.warmup, " repetitions to warm up, then ", bench.repeat);
  require(workload.shape().batch == cache.shape().batch, "measure: a workload of ", workload.shape().batch,
          " batch entries, and a cache of ", cache.shape().batch);
  Measurement result;
  result.algorithm = algorithm.name;
  const Topology& topology = transport.topology();
  result.radix = algorithm.radix_of(topology, closed(bench.ranges, workload.shape().longest()),
                                    bench.options.for_step(cache.shape(), workload.shape().n_queries));
  std::unique_ptr<Decoder> decoder = algorithm.open(transport, shard, bench.ranges, bench.options);

  // Decode. The time of a step is that of its slowest rank.
  std::vector<double> latencies, combines;
  const std::vector<std::int64_t> at_start = workload.lengths_at_start();
  for (int repetition = 0; repetition < bench.warmup + bench.repeat; ++repetition) {
    for (std::int64_t i = 0; i < cache.shape().batch; ++i) {
      const std::int64_t before = cache.leaves().n_keys(at_start[static_cast<std::size_t>(i)]);
      cache.truncate(i, std::min(before, cache.lengths()[static_cast<std::size_t>(i)]));
    }
    for (int t = 0; t < workload.steps(); ++t) {
      const std::vector<std::int64_t> lengths = workload.lengths(t);
      fill(cache, workload, lengths);
      const Step step = workload.step(t, lengths);
      transport.clear_traffic();
      ranks.doing("in " + std::string(algorithm.name) + ", step " + std::to_string(t + 1));
      const std::int64_t launched = launches_of_thread();
      ranks.barrier();  // which they leave up to a few microseconds apart: that counts as latency
      const double start = transport.seconds();
      const OutputView output = decoder->step(step);
      const double until_output = 1e6 * (transport.seconds() - start),
                   until_states = 1e6 * (decoder->states_ready() - start);
      result.output = output.copy();
      result.launches_per_step = launches_of_thread() - launched;
      const double latency = ranks.all_max(until_output), slowest_shard = ranks.all_max(until_states);
      if (repetition < bench.warmup) continue;
      latencies.push_back(latency);
      combines.push_back(latency - slowest_shard);
    }
  }
  result.latency = latency_of(std::move(latencies));
  result.combine = latency_of(std::move(combines));

  // Combine the counters of the ranks for the last step.
  result.per_step = over_ranks(transport.traffic(), ranks);
  result.launches_per_step = most(ranks, result.launches_per_step);
  result.windows = decoder->windows();
  result.peak_kv_bytes_per_rank = most(ranks, cache.bytes() + transport.traffic().buffer_kv_bytes);

  // Predict with the types that the backend stores: these are the types that are sent.
  WorkloadShape stored = workload.shape();
  static_cast<AttentionShape&>(stored) = cache.shape();
  if (ranks.rank() == 0 && why_not_predicted(algorithm, stored, topology, bench.ranges, bench.options).empty())
    result.predicted = predict(algorithm, stored, topology, bench.ranges, bench.options);

  result.digest = digest_of(result.output);
  result.same_bits_on_all_ranks = ranks.all_equal(result.digest, "all ranks to compare their output");
  return result;
}

Verifier::Verifier(Workload& workload, double scale, int n_ranks, const Backend& backend,
                   std::function<void(double)> progress)
    : n_ranks_(n_ranks), n_keys_(workload.shape().n_keys) {
  const int last = workload.steps() - 1;
  const WorkloadShape& shape = workload.shape();
  const Shard all = workload.whole();
  q_ = workload.query(last), k_ = all.k, v_ = all.v;
  options_.scale = scale;
  options_.progress = std::move(progress);
  options_.lengths = workload.lengths(last);
  options_.rule = shape.rule;
  options_.key_scale = shape.scales.k, options_.value_scale = shape.scales.v;
  options_.mask = workload.mask(last), options_.softcap = shape.softcap;
  options_.sink.assign(shape.sink.begin(), shape.sink.end());
  oracle_ = attention(q_, k_, v_, options_);

  // F64 inputs are rounded to F32 when they are read. Count this as additional terms of the dot product.
  model_ = tree_decode_model(n_keys_);
  if (shape.dtype == DType::F64) model_.n_additions += 4;
  // Outputs are multiplied by the scale of the values.
  if (!shape.scales.v.empty()) model_.n_additions += 1;
  const ErrorTerms terms = backend.error_terms(shape);
  model_.exp_error = terms.exp_error, model_.score_error = terms.score_error;
  model_.n_additions += terms.n_additions;

  // A weight exp(lse - m) inherits the rounding error of lse, 8 u max(1, |lse|).
  for (const double lse : oracle_.lse) {
    if (std::isfinite(lse)) largest_lse_ = std::max(largest_lse_, std::abs(lse));
  }
}

const ErrorBound& Verifier::bound(const ExchangeRounding& terms) const {
  for (const auto& [known, bound] : bounds_) {
    if (known == terms) return bound;
  }
  ErrorModel widened = model_;
  widened.weight_error += terms.weight_error_per_lse * largest_lse_;
  widened.n_additions += terms.additions_per_rank * n_ranks_ + terms.additions_per_level * n_tree_additions(n_keys_);
  widened.n_rescalings += terms.rescalings;
  return bounds_.emplace_back(terms, error_bound(q_, k_, v_, options_, widened)).second;
}

Errors Verifier::operator()(const Algorithm& algorithm, const DecodeOutput& output) const {
  require(output.out.size() == oracle_.out.size() && output.lse.size() == oracle_.lse.size(), "Verifier: an output of ",
          output.out.size(), " and ", output.lse.size(), " elements, that of the oracle has ", oracle_.out.size(), " and ",
          oracle_.lse.size());
  const ErrorBound& allowed = bound(algorithm.rounding);
  Errors errors{.passed = true};

  // Compare one element with the oracle's. Where the oracle is not finite, ours must not be; where it is NaN, ours must be
  // NaN.
  const auto compare = [&](double ours, double truth, double error_allowed, double& largest) {
    if (!std::isfinite(truth) || !std::isfinite(ours)) {
      const bool as_it_should =
          std::isnan(truth) ? std::isnan(ours) : (std::isinf(truth) && (ours == truth || std::isnan(ours)));
      if (as_it_should) return 0.0;
      errors.passed = false;
      return largest = errors.max_over_bound = std::numeric_limits<double>::infinity();
    }
    const double error = std::abs(ours - truth);
    largest = std::max(largest, error);
    // Denormal outputs have a fixed absolute rounding error.
    const double over = error <= 0x1p-126 ? 0 : error / (error_allowed + 0x1p-24 * std::abs(truth));
    errors.max_over_bound = std::max(errors.max_over_bound, over);
    errors.passed = errors.passed && over <= 1;
    return error;
  };
  const std::size_t n_rows = oracle_.lse.size(), d_v = n_rows == 0 ? 0 : oracle_.out.size() / n_rows;
  constexpr double kInf = std::numeric_limits<double>::infinity(), kLeastScore = -(1 - 0x1p-20) * 0x1p128;
  for (std::size_t r = 0; r < n_rows; ++r) {
    const bool is_below = oracle_.lse[r] * kLog2E <= kLeastScore && output.lse[r] == -kInf;
    double largest_error = 0, largest_z = 0;
    for (std::size_t i = r * d_v; i < (r + 1) * d_v; ++i) {
      const double truth = is_below ? 0 : oracle_.out[i];
      largest_error = std::max(largest_error, compare(output.out[i], truth, is_below ? 0 : allowed.out[i], errors.max_abs));
      if (std::isfinite(truth)) largest_z = std::max(largest_z, std::abs(truth));
    }
    if (largest_z > 0) errors.max_rel = std::max(errors.max_rel, largest_error / largest_z);
    compare(output.lse[r], is_below ? -kInf : oracle_.lse[r], allowed.lse[r], errors.lse_max);
  }
  return errors;
}

}  // namespace tree_attn
