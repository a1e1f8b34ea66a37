// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `tree_attn info`: the features of this build, the hardware found, and how to add what is missing.
#include "distributed/program/machine.hpp"
#include "distributed/program/program.hpp"
#include "gpu/backend/backends.hpp"
#include "reference/data/input_error.hpp"

#include <cstdio>

namespace tree_attn {

Command add_info(CLI::App& program) {
  program.add_subcommand("info", "Show what this build supports and what it found, and how to add what is missing");
  return [](const Ranks& ranks) {
    const Topology topology = ranks.topology(0);
    if (ranks.rank() != 0) return 0;
    const Machine machine = this_machine();
    std::string nodes;
    for (int i = 0; i < topology.n_nodes(); ++i) nodes += (i ? ", " : "") + std::to_string(topology.node(i).size());
    std::printf("tree_attn      %s, %s, %s\n", TREE_ATTN_VERSION, machine.build_type.c_str(), machine.compiler.c_str());
    std::printf("processor      %s, %d cores%s%s\n", machine.cpu.c_str(), machine.cores,
                machine.instruction_set.empty() ? "" : ", decodes with ", machine.instruction_set.c_str());
    std::printf("ranks          %d on %d node%s (%s per node)\n", topology.size(), topology.n_nodes(),
                topology.n_nodes() == 1 ? "" : "s", nodes.c_str());
    // Look up the backends as decode does, so that both commands agree.
    std::string backends, missing, gpus;
    for (const std::string_view name : backend_names()) {
      try {
        backends += (backends.empty() ? "" : ", ") + std::string(find_backend(name).name());
      } catch (const InputError& error) {
        missing += "  missing      " + std::string(error.what()) + "\n";
      }
    }
    for (const std::string& gpu : machine.gpus) gpus += (gpus.empty() ? "" : ", ") + gpu;
    std::printf("backends       %s\n%s", backends.c_str(), missing.c_str());
    std::printf("transports     mpi (%s), threads (--devices)\n", machine.mpi.c_str());
    std::printf("  missing      --transport nccl: not supported by this version\n");
    std::printf("GPUs           %s\n", gpus.empty() ? "none" : gpus.c_str());
    return 0;
  };
}

}  // namespace tree_attn
