// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts of clusters that do not exist: one in which all is well, and everything that can be wrong with it.
#pragma once

#include "tree_attn/distributed/job/judge.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace tree_attn::test {

/// Machines "node01", "node02", ... with as many GPUs as ranks, which all reach each other.
inline std::vector<RankFacts> healthy_cluster(int n_nodes, int ranks_per_node) {
  std::vector<RankFacts> facts;
  for (int rank = 0; rank < n_nodes * ranks_per_node; ++rank) {
    const std::string node = std::to_string(rank / ranks_per_node);
    RankFacts one;
    one.node = rank / ranks_per_node;
    one.host = "node0" + std::to_string(one.node + 1);
    one.cores = "24";
    one.interface = "eth0 192.168.1." + std::to_string(one.node + 1);
    one.driver = "CUDA 13.0";
    one.gpu = "NVIDIA H200", one.capability = "9.0";
    for (int gpu = 0; gpu < ranks_per_node; ++gpu) one.sees.push_back("GPU-5f0c" + node + std::to_string(gpu));
    one.uuid = one.sees[static_cast<std::size_t>(rank % ranks_per_node)];
    std::ranges::remove_copy(one.sees, std::back_inserter(one.reaches), one.uuid);
    one.kernels = "80-real,90a-real, by CUDA 13.0.88";
    one.nccl = "2.30.7", one.nccl_path = "/opt/nccl/libnccl.so.2", one.nccl_low_latency = "1";
    facts.push_back(one);
  }
  return facts;
}

/// Something that is wrong with a cluster, and the line that says so.
struct Fault {
  std::string name;  ///< as the table of the chapter has it
  Severity severity;
  Need need;
  int n_nodes;  ///< of two ranks each, before the fault
  std::function<void(std::vector<RankFacts>&)> make;
  std::string line;
};

/// Every fault that judge() knows.
inline std::vector<Fault> faults() {
  using Facts = std::vector<RankFacts>;
  constexpr Severity kFailure = Severity::kFailure, kWarning = Severity::kWarning;
  const auto all = [](auto change) {
    return [change](Facts& facts) {
      for (RankFacts& one : facts) change(one);
    };
  };
  const auto without_gpu = [](RankFacts& one) {
    one.gpu.clear(), one.capability.clear(), one.uuid.clear(), one.sees.clear(), one.reaches.clear();
  };
  return {
      {"no driver", kFailure, Need::kGpu, 1, all([=](RankFacts& one) {
         without_gpu(one), one.driver.clear(), one.no_driver = "libcuda.so.1: cannot open shared object file";
       }),
       "--backend cuda: no driver for ranks 0, 1 on node01: libcuda.so.1: cannot open shared object file; install NVIDIA's "
       "driver; --backend emulated runs the same kernels on the CPU"},
      {"a rank without a GPU", kFailure, Need::kGpu, 2,
       [=](Facts& facts) {
         for (const std::size_t rank : {2U, 3U})
           without_gpu(facts[rank]), facts[rank].no_gpu = "the driver shows none (CUDA_VISIBLE_DEVICES is \"\")";
       },
       "--backend cuda: no GPU for ranks 2, 3 on node02: the driver shows none (CUDA_VISIBLE_DEVICES is \"\"); start ranks "
       "where the GPUs are, or list devices that are there"},
      {"no kernel for the GPU", kFailure, Need::kGpu, 2,
       [](Facts& facts) { facts[1].no_kernel = facts[2].no_kernel = "built for 80-real, the NVIDIA H200 needs 90a-real"; },
       "--backend cuda: no kernel for ranks 1, 2: built for 80-real, the NVIDIA H200 needs 90a-real; build with "
       "-DCMAKE_CUDA_ARCHITECTURES for it; there are kernels for 8.0 and later"},
      {"no peer access", kFailure, Need::kPeerAccess, 1, [](Facts& facts) { facts[0].reaches.clear(); },
       "--algorithm one-shot: the GPU of rank 0 on node01 cannot reach that of rank 1; use --windows host, another "
       "algorithm, or GPUs that share NVLink or a PCIe switch"},
      {"peer access not known", kWarning, Need::kPeerAccess, 1,
       all([](RankFacts& one) { one.sees = {one.uuid}, one.reaches.clear(); }),
       "not known: other GPUs of the machine are hidden from ranks 0, 1; use srun --gpus-per-node, without --gpus-per-task "
       "and "
       "--gpu-bind"},
      {"no NCCL", kFailure, Need::kNccl, 1,
       all([](RankFacts& one) { one.nccl.clear(), one.no_nccl = "libnccl.so.2 was not found"; }),
       "--transport nccl: no NCCL for ranks 0, 1 on node01: libnccl.so.2 was not found; pip install "
       "nvidia-nccl-cu13 (or -cu12), and add the folder of libnccl.so.2 to LD_LIBRARY_PATH"},
      {"different versions of NCCL", kFailure, Need::kNccl, 2, [](Facts& facts) { facts[3].nccl = "2.29.7"; },
       "--transport nccl: 2.29.7 on rank 3, 2.30.7 on ranks 0-2; install one version on all machines"},
      {"few buffers of NCCL between machines", kWarning, Need::kNccl, 2,
       [](Facts& facts) { facts[2].nccl_low_latency = "0", facts[3].nccl_low_latency = ""; },
       "a message between machines takes 22.4 us by NCCL's model, and 9.3 us with more buffers; set "
       "NCCL_ALLOC_P2P_NET_LL_BUFFERS=1 for ranks 2, 3 on node02"},
      {"a backend that was not built in", kFailure, Need::kNothing, 1, all([](RankFacts& one) {
         one.no_backend = {"--backend cuda: not built in (no nvcc found); build with nvcc 12.5 or later"};
       }),
       "--backend cuda: not built in (no nvcc found); build with nvcc 12.5 or later"}};
}

}  // namespace tree_attn::test
