// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts of clusters that do not exist: one in which all is well, and everything that can be wrong with it.
#pragma once

#include "tree_attn/distributed/job/judge.hpp"

#include <functional>
#include <string>
#include <vector>

namespace tree_attn::test {

/// Machines "node01", "node02", ... with as many GPUs as ranks, which all reach each other.
inline std::vector<RankFacts> healthy_cluster(int n_nodes, int ranks_per_node) {
  std::vector<RankFacts> facts;
  for (int rank = 0; rank < n_nodes * ranks_per_node; ++rank) {
    const int node = rank / ranks_per_node;
    RankFacts one;
    one.host = "node0" + std::to_string(node + 1);
    one.node = node;
    one.process = 100 + rank;
    one.program = "0.1.0, Release";
    one.mpi = "Open MPI v4.1.4";
    for (int core = 0; core < 12 * ranks_per_node; ++core) one.cores.push_back(core);
    one.shared_memory = 0x1p39;
    one.locked_memory = -1;
    one.built_cuda = 13000;
    one.built_for = {"80", "90a"};
    one.driver = {.missing = "", .release = "580.65.06", .cuda = 13000};
    for (int gpu = 0; gpu < ranks_per_node; ++gpu) {
      GpuFacts found{"NVIDIA H200", "GPU-5f0c" + std::to_string(node) + std::to_string(gpu), 9, 0, {}};
      for (int other = 0; other < ranks_per_node; ++other) {
        if (other != gpu) found.reaches.push_back(other);
      }
      one.gpus.push_back(found);
    }
    one.gpu = rank % ranks_per_node;
    one.nccl = {.missing = "", .path = "/opt/nccl/libnccl.so.2", .found = 23007};
    one.interfaces = {{"lo", "127.0.0.1"}, {"eth0", "192.168.1." + std::to_string(node + 1)}};
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
  return {
      {"no driver", kFailure, Need::kGpu, 1, all([](RankFacts& one) {
         one.gpus.clear(), one.gpu = -1;
         one.driver = {.missing = "libcuda.so.1: cannot open shared object file", .release = "", .cuda = 0};
       }),
       "--backend cuda: no driver for ranks 0 and 1 on node01: libcuda.so.1: cannot open shared object file; install "
       "NVIDIA's "
       "driver, or start the container with --gpus all; --backend emulated runs the same kernels on the CPU"},
      {"a rank without a GPU", kFailure, Need::kGpu, 2,
       [](Facts& facts) {
         for (const std::size_t rank : {2U, 3U}) facts[rank].gpus.clear(), facts[rank].gpu = -1;
       },
       "--backend cuda: no GPU for ranks 2 and 3 on node02: the driver shows none (CUDA_VISIBLE_DEVICES is \"\"); start "
       "ranks "
       "where the GPUs are: mpirun --map-by ppr:8:node, srun --gpus-per-node=8"},
      {"a device that is not there", kFailure, Need::kGpu, 1, [](Facts& facts) { facts[1].gpu = -1; },
       "--backend cuda: no GPU for rank 1 on node01: its machine has 2; list devices that are there, 0-1"},
      {"driver too old", kFailure, Need::kGpu, 1,
       all([](RankFacts& one) { one.driver.release = "550.54.15", one.driver.cuda = 12040; }),
       "--backend cuda: ranks 0 and 1 on node01: driver 550.54.15 knows CUDA 12.4, the program was built with 13.0; install "
       "driver 580 or later, or build with CUDA 12.4"},
      {"driver of an older minor version", kWarning, Need::kGpu, 1, all([](RankFacts& one) { one.built_cuda = 13010; }),
       "ranks 0 and 1 on node01: driver 580.65.06 knows CUDA 13.0, the program was built with 13.1; update the driver if a "
       "call of CUDA asks for it: kernels run, newer features do not"},
      {"no kernel for the GPU", kFailure, Need::kGpu, 1, all([](RankFacts& one) {
         for (GpuFacts& gpu : one.gpus) gpu.name = "Tesla V100", gpu.major = 7, gpu.minor = 0;
       }),
       "--backend cuda: built for sm_80, sm_90a; the Tesla V100 of ranks 0 and 1 on node01 is sm_70; use GPUs of compute "
       "capability 8.0 or later, for which there are kernels"},
      {"kernels for other GPUs", kFailure, Need::kGpu, 1, all([](RankFacts& one) { one.built_for = {"80"}; }),
       "--backend cuda: built for sm_80; the NVIDIA H200 of ranks 0 and 1 on node01 is sm_90; build with "
       "-DCMAKE_CUDA_ARCHITECTURES=90a-real"},
      {"different GPUs", kWarning, Need::kGpu, 2,
       [](Facts& facts) {
         for (std::size_t rank = 2; rank < 4; ++rank) {
           for (GpuFacts& gpu : facts[rank].gpus) gpu.name = "NVIDIA A100", gpu.major = 8;
         }
       },
       "ranks 2 and 3 have NVIDIA A100, ranks 0 and 1 NVIDIA H200; give the slower GPUs shorter shards, --shards: the "
       "slowest "
       "rank decides the time of a step"},
      {"two ranks on one GPU", kFailure, Need::kNccl, 1, [](Facts& facts) { facts[1].gpu = 0; },
       "--transport nccl: ranks 0 and 1 on node01 share GPU-5f0c00; start one rank per GPU, or use NCCL 2.30.3 or later "
       "with "
       "NCCL_MULTI_RANK_GPU_ENABLE=1 (found 2.30.7)"},
      {"two processes on one GPU, in one kernel", kWarning, Need::kOneShot, 1, [](Facts& facts) { facts[1].gpu = 0; },
       "ranks 0 and 1 on node01 share GPU-5f0c00, whose kernels wait for each other and take turns; start one rank per GPU: "
       "the times of one-shot are those of the turns"},
      {"two threads on one GPU, in one kernel", kFailure, Need::kOneShot, 1,
       [](Facts& facts) { facts[1].gpu = 0, facts[1].process = facts[0].process; },
       "--algorithm one-shot: ranks 0 and 1 on node01 share GPU-5f0c00, whose kernels would wait for each other; start one "
       "rank per GPU"},
      {"no peer access", kFailure, Need::kPeerAccess, 1, [](Facts& facts) { facts[0].gpus[0].reaches.clear(); },
       "--algorithm one-shot: the GPU of rank 0 cannot reach that of rank 1 on node01; use --windows host, --algorithm "
       "two-level or gather, or GPUs that share NVLink or a PCIe switch"},
      {"peer access not known", kWarning, Need::kPeerAccess, 1,
       [](Facts& facts) {
         for (RankFacts& one : facts) {
           one.gpus = {one.gpus[static_cast<std::size_t>(one.gpu)]};
           one.gpus[0].reaches.clear(), one.gpu = 0;
         }
       },
       "ranks 0 and 1 do not see the GPUs of the other ranks on their machine, so it is not known whether they reach each "
       "other; let every rank see all GPUs of its machine: srun --gpus-per-node=8, without --gpus-per-task and --gpu-bind"},
      {"one-shot without GPUs", kFailure, Need::kOneShot, 1, all([](RankFacts& one) { one.gpus.clear(), one.gpu = -1; }),
       "--algorithm one-shot: not with --backend cuda: it needs a GPU for every rank; use --backend emulated, which runs "
       "the "
       "same kernels on the CPU"},
      {"no NCCL", kFailure, Need::kNccl, 1, all([](RankFacts& one) {
         one.nccl = {.missing = "libnccl.so.2: cannot open shared object file", .path = "", .found = 0};
       }),
       "--transport nccl: ranks 0 and 1 on node01 cannot load NCCL: libnccl.so.2: cannot open shared object file; pip "
       "install "
       "nvidia-nccl-cu13, and add the folder of libnccl.so.2 to LD_LIBRARY_PATH"},
      {"an NCCL that is too old", kFailure, Need::kNccl, 1, all([](RankFacts& one) { one.nccl.found = 21402; }),
       "--transport nccl: ranks 0 and 1 on node01: /opt/nccl/libnccl.so.2 is NCCL 2.14.2, older than 2.14.3, the first with "
       "communicators that do not block; install NCCL 2.14.3 or later there"},
      {"different versions of NCCL", kFailure, Need::kNccl, 2, [](Facts& facts) { facts[3].nccl.found = 22907; },
       "--transport nccl: rank 3 has NCCL 2.29.7, ranks 0-2 2.30.7; install one version on all machines"},
      {"no interface but lo", kFailure, Need::kNccl, 2,
       [](Facts& facts) {
         for (const std::size_t rank : {2U, 3U}) facts[rank].interfaces.pop_back();
       },
       "--transport nccl: node02 has no network interface but lo for NCCL's bootstrap, and the ranks are on 2 machines; "
       "give "
       "it an address in the network of the others (docker run --network=host)"},
      {"NCCL_SOCKET_IFNAME names no interface", kFailure, Need::kNccl, 1,
       all([](RankFacts& one) { one.socket_ifname = "ib"; }),
       "--transport nccl: NCCL_SOCKET_IFNAME is \"ib\", but node01 has lo, eth0; set it to a prefix of an interface that "
       "all "
       "machines have: mpirun -x NCCL_SOCKET_IFNAME=..."},
      {"one address on two machines", kFailure, Need::kNccl, 2, all([](RankFacts& one) {
         one.interfaces[1] = {"docker0", "172.17.0.1"};
       }),
       "--transport nccl: node01 and node02 both have the address 172.17.0.1 on docker0, which NCCL's bootstrap would use; "
       "name the interface of the network: mpirun -x NCCL_SOCKET_IFNAME=eth0"},
      {"different interfaces", kWarning, Need::kNccl, 2,
       [](Facts& facts) {
         for (const std::size_t rank : {2U, 3U}) facts[rank].interfaces.push_back({"ib0", "10.1.0.4"});
       },
       "NCCL's bootstrap would use different interfaces on different machines: eth0, ib0 (NCCL_SOCKET_IFNAME is not set); "
       "name the one that reaches all machines: mpirun -x NCCL_SOCKET_IFNAME=eth0"},
      {"more ranks than cores", kWarning, Need::kNothing, 2, [](Facts& facts) { facts[2].cores = facts[3].cores = {5}; },
       "ranks 2 and 3 share 1 core of node02: they take turns, and times are those of the cores; start one rank per core, "
       "or "
       "allow the ranks more cores: mpirun --bind-to none, srun --cpus-per-task"},
      {"/dev/shm too small for MPI", kWarning, Need::kNothing, 1,
       all([](RankFacts& one) { one.gpus.clear(), one.gpu = -1, one.shared_memory = 0x1p22; }),
       "/dev/shm of node01 has 4.0 MiB left for 2 ranks; MPI takes about 8.0 MiB; remove what earlier jobs left there, or "
       "enlarge it: mount -o remount,size=2g /dev/shm, docker run --shm-size=2g"},
      {"/dev/shm too small for NCCL", kWarning, Need::kNothing, 1, all([](RankFacts& one) { one.shared_memory = 0x1p26; }),
       "/dev/shm of node01 has 64.0 MiB left for 2 ranks; NCCL asks for 1.0 GiB; remove what earlier jobs left there, or "
       "enlarge it: mount -o remount,size=2g /dev/shm, docker run --shm-size=2g"},
      {"a limit of locked memory", kWarning, Need::kNothing, 1,
       all([](RankFacts& one) { one.has_infiniband = true, one.locked_memory = 65536; }),
       "processes of node01 may lock 64.0 KiB of memory, too little for its InfiniBand; ulimit -l unlimited before the "
       "launcher, docker run --ulimit memlock=-1"},
      {"different builds", kWarning, Need::kNothing, 2, [](Facts& facts) { facts[2].program = "0.2.0, Debug"; },
       "rank 2 has tree_attn 0.2.0, Debug, ranks 0, 1 and 3 0.1.0, Release; install one build on all machines"},
      {"different MPI libraries", kWarning, Need::kNothing, 2, [](Facts& facts) { facts[3].mpi = "Open MPI v4.1.6"; },
       "rank 3 has Open MPI v4.1.6, ranks 0-2 Open MPI v4.1.4; load the same MPI on all machines"},
      {"a backend that was not built in", kFailure, Need::kNothing, 1, all([](RankFacts& one) {
         one.missing = {"--backend cuda: not built in (no nvcc found); build with nvcc 12.5 or later"};
       }),
       "--backend cuda: not built in (no nvcc found); build with nvcc 12.5 or later"}};
}

}  // namespace tree_attn::test
