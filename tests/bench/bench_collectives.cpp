// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The hand-written AllReduce beside the library's, on messages of the size of a decode step (section 6).
///
/// Run: mpirun -n 8 build-bench/bench_collectives
///
/// Prints JSON: the median over rounds of (time of ours) / (time of MPI_Allreduce), the two taking turns, and the same for
/// the three AllReduces of Alg. 3 over one.
#include "distributed/exchange/plan_builder.hpp"
#include "distributed/program/measure.hpp"
#include "distributed/transport/mpi_session.hpp"
#include "distributed/transport/mpi_transport.hpp"
#include "tests/support/plan_runner.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

using namespace tree_attn;

constexpr int kRounds = 41, kCallsARound = 20;

/// Seconds of a round of calls, of the slowest rank.
double time_of(const Ranks& ranks, const std::function<void()>& call) {
  ranks.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCallsARound; ++i) call();
  return ranks.all_max(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

/// The sum of n elements over all ranks, by the plan of a decode step.
class SumOverRanks {
 public:
  SumOverRanks(Transport& transport, std::size_t n)
      : runner_(test::runner_of(transport, plan_of(transport), static_cast<std::int64_t>(n), 1)) {}
  void operator()() {
    std::ranges::fill(runner_.elements({0, 1}), 1.0f);
    runner_.step({});
  }

 private:
  static Plan plan_of(const Transport& transport) {
    PlanBuilder builder;
    const Blocks mine = builder.allocate(kScalarBlock);
    builder.all_reduce(transport.topology(), transport.rank(), mine, Combine::Operator::kAdd);
    return builder.take();
  }

  Runner runner_;
};

}  // namespace

int main(int argc, char** argv) {
  constexpr double kTimeout = 60;
  MpiSession session(&argc, &argv, kTimeout);
  const MpiRanks& ranks = session.ranks();
  MpiTransport transport(ranks, ranks.topology(0));

  // 16 heads of 128: the numerators, and with a shift and a sum each the states.
  const std::size_t heads = 16, state = heads * 130;
  std::vector<float> elements(state, 1.0f), result(state);
  SumOverRanks of_states(transport, state), of_scalars(transport, heads);
  std::vector<double> over_library, three_over_one;
  for (int round = 0; round < kRounds; ++round) {
    const double ours = time_of(ranks, [&] { of_states(); });
    const double library = time_of(ranks, [&] {
      MPI_Allreduce(elements.data(), result.data(), static_cast<int>(elements.size()), MPI_FLOAT, MPI_SUM, ranks.comm());
    });
    const double three = time_of(ranks, [&] { of_scalars(), of_states(), of_scalars(); });
    over_library.push_back(ours / library);
    three_over_one.push_back(three / ours);
  }
  if (ranks.rank() == 0) {
    std::printf("{\"ranks\": %d, \"ours_over_library\": %.3f, \"three_over_one\": %.3f}\n", ranks.size(),
                latency_of(over_library).median, latency_of(three_over_one).median);
  }
  return 0;
}
