// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decode steps on a simulated cluster: the exchange of the library over a simulated MPI, with a model of the decode
/// (section 6). Loaded by smpirun on every rank.
///
/// Run: tests/bench/simulated/mpirun h100 8 --seq-len 640000 --algorithms two-level,ring
#include "distributed/program/measure.hpp"
#include "distributed/program/report.hpp"
#include "distributed/transport/mpi_transport.hpp"
#include "tests/support/model_backend.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

void tree_attn::test::pass_time(double seconds, const std::function<void()>& progress) {
  if (progress) progress();
  if (seconds > 0)
    std::this_thread::sleep_for(std::chrono::round<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
}

namespace {

using namespace tree_attn;
using test::pass_time;

/// Ranks that leave a barrier at the same moment: they share one clock, so they agree on it. They have no deadline, and
/// their collectives, outside the steps, are those of the simulator that send few messages.
class SimulatedRanks final : public MpiRanks {
 public:
  explicit SimulatedRanks(Deadline& none) : MpiRanks(MPI_COMM_WORLD, none, false) {}

  void barrier() const override {
    MPI_Barrier(comm());
    constexpr double kUntilThen = 0.1;  // longer than the agreement takes
    const double then = all_max(MPI_Wtime()) + kUntilThen;
    pass_time(then - MPI_Wtime());
  }
  using MpiRanks::all_gather;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view) const override {
    const int n = static_cast<int>(mine.size());
    MPI_Allgather(mine.data(), n, MPI_BYTE, all.data(), n, MPI_BYTE, comm());
  }
  void broadcast(std::span<std::byte> bytes, int root, std::string_view) const override {
    MPI_Bcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, root, comm());
  }

 protected:
  void all_reduce(std::span<std::uint64_t> numbers, Reduction reduction, std::string_view) const override {
    const MPI_Op op = reduction == Reduction::kMax ? MPI_MAX : reduction == Reduction::kMin ? MPI_MIN : MPI_SUM;
    MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()), MPI_UINT64_T, op, comm());
  }
};

/// Messages and merges that take the time of a model.
class SimulatedTransport final : public MpiTransport {
 public:
  /// @param merge_seconds of a merge step: the time that a GPU needs for it
  /// @param message_seconds of a message at its sender, and again at its receiver: of a processor that drives MPI
  SimulatedTransport(const MpiRanks& ranks, Topology topology, double merge_seconds, double message_seconds)
      : MpiTransport(ranks, std::move(topology)), merge_seconds_(merge_seconds), message_seconds_(message_seconds) {}

  double seconds() const override { return MPI_Wtime(); }
  void count_merge_steps(std::int64_t n) override {
    MpiTransport::count_merge_steps(n);
    pass_time(static_cast<double>(n) * merge_seconds_);
  }
  /// All buffers of all ranks are the same few pages, and the simulator copies no message between two of them.
  Allocate allocate() const override {
    return [](std::size_t n_bytes) -> Memory {
      return {static_cast<std::byte*>(SMPI_SHARED_MALLOC(n_bytes)), [](std::byte* bytes) { SMPI_SHARED_FREE(bytes); }};
    };
  }

 protected:
  void start_send(std::span<const std::byte> bytes, int to) override {
    MpiTransport::start_send(bytes, to);
    pass_time(message_seconds_);
  }
  void start_receive(std::span<std::byte> bytes, int from) override {
    MpiTransport::start_receive(bytes, from);
    ++n_receives_;
  }
  void finish_messages() override {
    MpiTransport::finish_messages();
    pass_time(std::exchange(n_receives_, 0) * message_seconds_);
  }

 private:
  double merge_seconds_, message_seconds_;
  int n_receives_ = 0;
};

/// Options of the command line, each with a value.
std::map<std::string, std::string> options_of(int argc, char** argv) {
  std::map<std::string, std::string> options{{"--algorithms", "two-level"},
                                             {"--seq-len", "4096"},
                                             {"--batch", "1"},
                                             {"--heads", "16"},
                                             {"--kv-heads", ""},
                                             {"--head-dim", "128"},
                                             {"--ranks-per-node", "8"},
                                             {"--radix", "0"},
                                             {"--node-radix", "0"},
                                             {"--links-per-node", "0"},
                                             {"--order", "contiguous"},
                                             {"--report", ""},
                                             {"--merge-us", "0"},
                                             {"--message-us", "0"},
                                             {"--bandwidth", std::to_string(test::kModelBytesPerSecond)}};
  for (int i = 1; i < argc; i += 2) {
    const auto found = options.find(argv[i]);
    if (found == options.end() || i + 1 == argc)
      throw std::invalid_argument(std::string(argv[i]) + " is unknown, or has no value");
    found->second = argv[i + 1];
  }
  return options;
}

void run(int argc, char** argv) {
  auto options = options_of(argc, argv);
  const auto number = [&](const char* name) { return std::stod(options[name]); };
  const auto integer = [&](const char* name) { return std::stoll(options[name]); };
  std::vector<const Algorithm*> chosen;
  std::istringstream names(options["--algorithms"]);
  for (std::string name; std::getline(names, name, ',');) chosen.push_back(&find_algorithm(name));
  if (options["--kv-heads"].empty()) options["--kv-heads"] = options["--heads"];

  WorkloadShape shape{{.dtype = DType::BF16, .value_dtype = DType::BF16}, integer("--seq-len"), {}};
  shape.batch = integer("--batch"), shape.heads = integer("--heads"), shape.kv_heads = integer("--kv-heads");
  shape.head_dim = shape.value_dim = integer("--head-dim");
  shape.order = options["--order"] == name_of(LeafOrder::kDealt) ? LeafOrder::kDealt : LeafOrder::kContiguous;

  Deadline none(0, std::numeric_limits<double>::infinity());
  const SimulatedRanks ranks(none);
  const Topology topology = ranks.topology(static_cast<int>(integer("--ranks-per-node")));
  const std::vector<KeyRange> ranges = shape.order == LeafOrder::kDealt
                                           ? dealt_ranges(topology.size())
                                           : coarse_ranges(shape.n_keys, topology.size(), kLeafKeys);
  SimulatedTransport transport(ranks, topology, 1e-6 * number("--merge-us"), 1e-6 * number("--message-us"));
  const Backend& backend = test::model_backend(number("--bandwidth"));
  const std::unique_ptr<Workload> workload = test::make_axes(shape, 1);
  const OwnedLeaves leaves(topology.range_of(ranks.rank(), ranges), shape.order);
  OpenShard shard = open_shard(backend, shape, leaves, shape.n_keys, 1);
  fill_at_start(*shard.cache, *workload, workload->lengths_at_start());

  PlanOptions plan;
  plan.network = transport.network();
  plan.network.links_per_node = static_cast<int>(integer("--links-per-node"));
  plan.radix = static_cast<int>(integer("--radix"));
  // GPUs of a node exchange at once, since their messages cost nothing here.
  const auto node_radix = static_cast<int>(integer("--node-radix"));
  plan.node_radix = node_radix > 0 ? node_radix : std::max(2, static_cast<int>(integer("--ranks-per-node")));
  const Bench bench{ranks, transport, backend, *workload, ranges, 1, 0, 1, plan};
  std::vector<Measurement> measurements;
  for (const Algorithm* algorithm : chosen) measurements.push_back(measure(bench, shard, *algorithm));
  if (ranks.rank() != 0) return;
  ReportHeader header;
  header.backend = backend.name(), header.transport = "simulated mpi", header.shape = shape;
  header.ranks = topology.size(), header.nodes = topology.n_nodes();
  std::fputs(table(header, measurements).c_str(), stdout);
  if (!options["--report"].empty()) std::ofstream(options["--report"]) << json(header, measurements);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int status = 0;
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulated: %s\n", error.what());
    status = 2;
  }
  MPI_Finalize();
  return status;
}
