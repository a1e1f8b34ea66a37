// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The combine of a decode step beside MPI_Allgather and MPI_Allreduce of the same bytes (section 6).
///
/// Run: mpirun -n 8 build-bench/bench_combine
///
/// Every rank has the states of one subtree, and no keys: what is timed is the exchange, the merges and the finish. The
/// states are written before every call, as a decode does: the library too sends what its peer has not read before. The
/// algorithms, over MPI and through shared memory, and the two collectives of the library take turns. Prints one JSON object
/// per message size: of the time per call of the slowest rank the tenth percentile over rounds, which other work on the
/// machine disturbs least, and the median; and the medians of the ratios within a round to MPI_Allgather and to
/// MPI_Allreduce. Optional arguments are the number of consecutive ranks that count as a node (0: ranks that share memory),
/// and the radix, inside nodes too (0: the default of the library). `tree_attn` takes 2 where ranks outnumber the cores of
/// their node.
#include "distributed/exchange/decoder.hpp"
#include "distributed/program/measure.hpp"
#include "distributed/transport/mpi_session.hpp"
#include "distributed/transport/mpi_transport.hpp"
#include "distributed/transport/shared_transport.hpp"
#include "tests/support/plan_runner.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace tree_attn;

constexpr int kRounds = 161, kCallsPerRound = 5;
constexpr std::int64_t kKeysPerRank = 1024, kValueDim = 128;
constexpr std::int64_t kRows[] = {16, 32, 128};  // states of 8, 16 and 65 KiB

/// The plan of an algorithm, and memory for it.
struct Combiner {
  Combiner(const Algorithm& of, Transport& transport, std::span<const KeyRange> ranges, const PlanOptions& options)
      : name(std::string(of.name) + (transport.name() == "mpi" ? "" : ", " + std::string(transport.name()))),
        runner(test::runner_of(transport,
                               std::get<PlanOf>(of.exchange)(transport.topology(), transport.rank(), ranges, options),
                               options.n_rows, kValueDim)) {}

  std::string name;
  Runner runner;
  std::vector<double> times, of_allgather, of_allreduce;  ///< per round
};

/// Microseconds per call in a round of calls, of the slowest rank. Before each call, outside of its time, the states are
/// written: then they are in the caches of this rank's core, and in no other.
double time_of(const Ranks& ranks, std::span<float> states, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  Clock::duration time{};
  ranks.barrier();
  for (int i = 0; i < kCallsPerRound; ++i) {
    std::ranges::fill(states, 1.0f);
    const auto start = Clock::now();
    call();
    time += Clock::now() - start;
  }
  return ranks.all_max(std::chrono::duration<double, std::micro>(time).count()) / kCallsPerRound;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double kTimeout = 60;
  MpiSession session(&argc, &argv, kTimeout);
  const MpiRanks& ranks = session.ranks();
  const Topology topology = ranks.topology(argc > 1 ? std::atoi(argv[1]) : 0);
  MpiTransport over_mpi(ranks, topology);
  SharedTransport through_memory(ranks, topology);
  const std::vector<KeyRange> ranges = even_ranges(kKeysPerRank * ranks.size(), ranks.size(), kLeafKeys);
  const auto [begin, end] = topology.range_of(ranks.rank(), ranges);

  PlanOptions options;
  options.radix = options.node_radix = argc > 2 ? std::atoi(argv[2]) : 0;
  options.d_v = kValueDim;
  for (const std::int64_t n_rows : kRows) {
    options.n_rows = n_rows;
    Forest<float> states(n_rows, kValueDim);
    const std::span<float> elements = states.assign(cover(begin, end));
    std::vector<std::unique_ptr<Combiner>> combiners;
    for (const Algorithm& algorithm : algorithms()) {
      if (!std::holds_alternative<PlanOf>(algorithm.exchange)) continue;
      for (Transport* const transport : {static_cast<Transport*>(&over_mpi), static_cast<Transport*>(&through_memory)})
        combiners.push_back(std::make_unique<Combiner>(algorithm, *transport, ranges, options));
    }
    std::vector<float> sum(elements.size()), all(elements.size() * static_cast<std::size_t>(ranks.size()));
    const int n = static_cast<int>(elements.size());
    std::vector<double> allgather, allreduce;
    for (int round = 0; round < kRounds; ++round) {
      allgather.push_back(time_of(
          ranks, elements, [&] { MPI_Allgather(elements.data(), n, MPI_FLOAT, all.data(), n, MPI_FLOAT, ranks.comm()); }));
      allreduce.push_back(time_of(ranks, elements,
                                  [&] { MPI_Allreduce(elements.data(), sum.data(), n, MPI_FLOAT, MPI_SUM, ranks.comm()); }));
      for (const auto& each : combiners) {
        each->times.push_back(time_of(ranks, elements, [&] { each->runner.step(states.states()); }));
        each->of_allgather.push_back(each->times.back() / allgather.back());
        each->of_allreduce.push_back(each->times.back() / allreduce.back());
      }
    }
    if (ranks.rank() != 0) continue;
    std::printf("{\"ranks\": %d, \"bytes\": %zu", ranks.size(), elements.size() * sizeof(float));
    for (const auto& [name, times] : {std::pair{"MPI_Allgather", &allgather}, std::pair{"MPI_Allreduce", &allreduce}})
      std::printf(", \"%s\": {\"p10_us\": %.1f, \"median_us\": %.1f}", name, latency_of(*times).p10,
                  latency_of(*times).median);
    for (const auto& each : combiners) {
      std::printf(", \"%s\": {\"p10_us\": %.1f, \"median_us\": %.1f, \"of_allgather\": %.3f, \"of_allreduce\": %.3f}",
                  each->name.c_str(), latency_of(each->times).p10, latency_of(each->times).median,
                  latency_of(each->of_allgather).median, latency_of(each->of_allreduce).median);
    }
    std::printf("}\n");
  }
  return 0;
}
