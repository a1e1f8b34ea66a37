// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts of clusters that do not exist: one in which all is well, and everything that can be wrong with it.
#pragma once

#include "tree_attn/distributed/job/judge.hpp"

#include <algorithm>
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

/// Something that is wrong with a cluster. The chapter on many GPUs has the line that says so.
struct Fault {
  std::string name;  ///< as the table of the chapter has it
  Severity severity;
  Need need;
  std::vector<RankFacts> facts;
};

/// Every fault that judge() knows, on machines of two ranks.
inline std::vector<Fault> faults() {
  constexpr Severity kFailure = Severity::kFailure, kWarning = Severity::kWarning;
  const auto with = [](int n_nodes, const std::vector<std::size_t>& ranks, auto change) {
    std::vector<RankFacts> facts = healthy_cluster(n_nodes, 2);
    for (const std::size_t rank : ranks) change(facts[rank]);
    return facts;
  };
  const auto without_gpu = [](RankFacts& one) {
    one.gpu.clear(), one.capability.clear(), one.uuid.clear(), one.sees.clear(), one.reaches.clear();
  };
  const auto without_driver = [&](RankFacts& one) {
    without_gpu(one), one.driver.clear(), one.no_driver = "libcuda.so.1: cannot open shared object file";
  };
  const auto sees_none = [&](RankFacts& one) {
    without_gpu(one), one.no_gpu = "the driver shows none (CUDA_VISIBLE_DEVICES is \"\")";
  };
  const auto is_newer = [](RankFacts& one) { one.no_kernel = "built for 80-real, the NVIDIA H200 needs 90a-real"; };
  const auto is_hidden = [](RankFacts& one) { one.sees = {one.uuid}, one.reaches.clear(); };
  const auto without_nccl = [](RankFacts& one) { one.nccl.clear(), one.no_nccl = "libnccl.so.2 was not found"; };
  const auto has_few_buffers = [](RankFacts& one) { one.nccl_low_latency = one.uuid == one.sees[0] ? "0" : ""; };
  const auto without_cuda = [](RankFacts& one) {
    one.no_backend = {"--backend cuda: not built in (no nvcc found); build with nvcc 12.5 or later"};
  };
  return {{"no driver", kFailure, Need::kGpu, with(1, {0, 1}, without_driver)},
          {"a rank without a GPU", kFailure, Need::kGpu, with(2, {2, 3}, sees_none)},
          {"no kernel for the GPU", kFailure, Need::kGpu, with(2, {1, 2}, is_newer)},
          {"no peer access", kFailure, Need::kPeerAccess, with(1, {0}, [](RankFacts& one) { one.reaches.clear(); })},
          {"peer access not known", kWarning, Need::kPeerAccess, with(1, {0, 1}, is_hidden)},
          {"no NCCL", kFailure, Need::kNccl, with(1, {0, 1}, without_nccl)},
          {"different versions of NCCL", kFailure, Need::kNccl, with(2, {3}, [](RankFacts& one) { one.nccl = "2.29.7"; })},
          {"few buffers of NCCL between machines", kWarning, Need::kNccl, with(2, {2, 3}, has_few_buffers)},
          {"a backend that was not built in", kFailure, Need::kNothing, with(1, {0, 1}, without_cuda)}};
}

}  // namespace tree_attn::test
