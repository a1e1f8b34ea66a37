// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The combine of a decode step beside MPI_Allreduce of the same bytes (section 6).
///
/// Run: mpirun -n 8 build-bench/bench_combine
///
/// Every rank has the states of one subtree, and no keys: what is timed is the exchange, the merges and the finish. The
/// algorithms and MPI_Allreduce take turns. Prints one JSON object per message size: of the time per call of the slowest
/// rank the tenth percentile over rounds, which other work on the machine disturbs least, and the median; and the ratios of
/// both to those of MPI_Allreduce, where the ratio at the median is the median of the ratios within a round. An optional
/// argument is the number of consecutive ranks that count as a node.
#include "distributed/decoders/decoder.hpp"
#include "distributed/program/mpi_session.hpp"
#include "distributed/transport/mpi_transport.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace {

using namespace tree_attn;

constexpr int kRounds = 161, kCallsPerRound = 5;
constexpr std::int64_t kKeysPerRank = 1024, kValueDim = 128;
constexpr std::int64_t kRows[] = {16, 32, 128};  // states of 8, 16 and 65 KiB

/// The plan of an algorithm, and memory for it.
struct Combiner {
  Combiner(const Algorithm& of, Transport& transport, std::span<const KeyRange> ranges, std::int64_t n_rows)
      : algorithm(of),
        plan(std::get<PlanOf>(of.exchange)(transport.topology(), transport.rank(), ranges)),
        fabric(transport, plan, n_rows, kValueDim) {}

  const Algorithm& algorithm;
  Plan plan;
  HostFabric fabric;
  std::vector<double> times, ratios;
};

double quantile(std::vector<double> samples, double q) {
  const auto at = samples.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(samples.size()));
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

/// Microseconds per call in a round of calls, of the slowest rank.
double time_of(const Ranks& ranks, const std::function<void()>& call) {
  ranks.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCallsPerRound; ++i) call();
  return ranks.all_max(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count()) /
         kCallsPerRound;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double kTimeout = 60;
  MpiSession session(&argc, &argv, kTimeout);
  const MpiRanks& ranks = session.ranks();
  MpiTransport transport(ranks, ranks.topology(argc > 1 ? std::atoi(argv[1]) : 0));
  const std::vector<KeyRange> ranges = even_ranges(kKeysPerRank * ranks.size(), ranks.size(), kLeafKeys);
  const auto [begin, end] = transport.topology().range_of(ranks.rank(), ranges);

  for (const std::int64_t n_rows : kRows) {
    Forest<float> states(n_rows, kValueDim);
    std::ranges::fill(states.assign(cover(begin, end)), 1.0f);
    std::vector<std::unique_ptr<Combiner>> combiners;
    for (const Algorithm& algorithm : algorithms()) {
      if (std::holds_alternative<PlanOf>(algorithm.exchange))
        combiners.push_back(std::make_unique<Combiner>(algorithm, transport, ranges, n_rows));
    }
    std::vector<float> elements(states.states().begin(), states.states().end()), sum(elements.size());
    std::vector<double> library;
    for (int round = 0; round < kRounds; ++round) {
      library.push_back(time_of(ranks, [&] {
        MPI_Allreduce(elements.data(), sum.data(), static_cast<int>(elements.size()), MPI_FLOAT, MPI_SUM, ranks.comm());
      }));
      for (const auto& each : combiners) {
        each->times.push_back(time_of(ranks, [&] { run_plan(each->plan, each->fabric, states); }));
        each->ratios.push_back(each->times.back() / library.back());
      }
    }
    if (ranks.rank() != 0) continue;
    const double least = quantile(library, 0.1);
    std::printf("{\"ranks\": %d, \"bytes\": %zu, \"allreduce\": {\"p10_us\": %.1f, \"median_us\": %.1f}", ranks.size(),
                elements.size() * sizeof(float), least, quantile(library, 0.5));
    for (const auto& each : combiners) {
      const double p10 = quantile(each->times, 0.1);
      std::printf(", \"%s\": {\"p10_us\": %.1f, \"median_us\": %.1f, \"p10_ratio\": %.3f, \"median_ratio\": %.3f}",
                  std::string(each->algorithm.name).c_str(), p10, quantile(each->times, 0.5), p10 / least,
                  quantile(each->ratios, 0.5));
    }
    std::printf("}\n");
  }
  return 0;
}
