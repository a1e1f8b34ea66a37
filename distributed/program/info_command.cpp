// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn info`: the features of this build, and what every rank found.
#include "distributed/program/collect.hpp"
#include "distributed/program/decode_options.hpp"
#include "distributed/program/machine.hpp"
#include "distributed/program/program.hpp"
#include "gpu/backend/backends.hpp"

#include <cstdio>
#include <memory>

namespace tree_attn {
namespace {

/// The lines about the program and the machine of rank 0.
void print_build(const RankFacts& first, const Topology& topology) {
  const Machine machine = this_machine();
  std::printf("tree_attn      %s, %s, %s\n", TREE_ATTN_VERSION, machine.build_type.c_str(), machine.compiler.c_str());
  std::printf("processor      %s, %d cores%s%s\n", machine.cpu.c_str(), machine.cores,
              machine.instruction_set.empty() ? "" : ", decodes with ", machine.instruction_set.c_str());
  std::string nodes, backends, missing;
  for (int i = 0; i < topology.n_nodes(); ++i) nodes += (i ? ", " : "") + std::to_string(topology.node(i).size());
  std::printf("ranks          %d on %d node%s (%s per node)\n", topology.size(), topology.n_nodes(),
              topology.n_nodes() == 1 ? "" : "s", nodes.c_str());
  // Those that decode takes. Whether there is a GPU for one on GPUs is a fact of every rank.
  for (const std::string_view name : backend_names()) {
    const Backend* const built = built_backend(name);
    try {
      if (built == nullptr || !built->needs_gpu()) find_backend(name);
      backends += (backends.empty() ? "" : ", ") + std::string(name);
    } catch (const InputError& error) {
      missing += std::string("               not here: ") + error.what() + "\n";
    }
  }
  std::printf("backends       %s\n%s", backends.c_str(), missing.c_str());
  if (!first.kernels.empty()) std::printf("kernels        for %s\n", first.kernels.c_str());
  if (!first.nccl.empty()) std::printf("NCCL           %s\n", first.nccl_path.c_str());
  std::printf("transports     mpi (%s), shared, nccl, threads (--devices)\n", machine.mpi.c_str());
}

int run_info(std::span<const int> devices, const Ranks& ranks) {
  const Topology topology = ranks.topology(0);
  const std::vector<RankFacts> facts = collect_facts(ranks, topology, devices);
  if (ranks.rank() != 0) return 0;
  print_build(facts[0], topology);
  std::printf("\n%s", table(facts).c_str());
  return 0;
}

}  // namespace

Command add_info(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("info", "Show what this build supports and what the ranks found");
  const auto devices = std::make_shared<std::vector<int>>();
  add_devices_option(*command, *devices);
  command->footer(
      "\nUnder mpirun it shows the facts of all machines.\n"
      "Example:\n"
      "  mpirun -n 8 tree_attn info");
  return [devices](const Ranks& ranks) { return run_info(*devices, ranks); };
}

}  // namespace tree_attn
