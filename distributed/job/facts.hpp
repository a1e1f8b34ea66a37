// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What every rank found on its machine: cores, memory, GPUs, libraries, network interfaces. Nothing is judged here.
///
/// The facts are plain values, so that judge() can be tested with clusters that do not exist.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tree_attn {

/// A GPU that a rank sees.
struct GpuFacts {
  std::string name, uuid;    ///< "NVIDIA H200"; "GPU-5f0c...", the identity of a GPU: its index differs between processes
  int major = 0, minor = 0;  ///< compute capability
  std::vector<int> reaches;  ///< indices of the GPUs of this rank into whose memory it can store
};

/// The driver of the GPUs.
struct DriverFacts {
  std::string missing;  ///< why it cannot be asked, in the words of the system; "" if it answers
  std::string release;  ///< "580.65.06"; "" if unknown
  int cuda = 0;         ///< newest CUDA that it knows: 13000 is 13.0
};

/// The library NCCL.
struct NcclFacts {
  std::string missing;  ///< why it cannot be loaded, in the words of the loader; "" if it can
  std::string path;     ///< of the library
  int found = 0;        ///< its version: 23007 is 2.30.7
};

/// A network interface that is up and has an address.
struct InterfaceFacts {
  std::string name, address;
};

/// What one rank found.
struct RankFacts {
  std::string host;                  ///< name of its machine
  int node = 0;                      ///< number of its machine
  int process = 0;                   ///< on that machine; ranks may be threads of one
  std::string program, mpi;          ///< version and build type of the program; name of the MPI library
  std::vector<std::string> missing;  ///< backends that cannot be used, each as an error of decode

  std::vector<int> cores;      ///< that the launcher lets it use
  double container_cores = 0;  ///< that its container may use at a time; 0: no limit
  double shared_memory = 0;    ///< free bytes of /dev/shm
  double locked_memory = 0;    ///< limit of RLIMIT_MEMLOCK in bytes; -1: none
  bool has_infiniband = false;

  int built_cuda = 0;                  ///< CUDA version that the kernels were built with, 13000 is 13.0; 0: not built in
  std::vector<std::string> built_for;  ///< architectures of the kernels: "80", "90a", "80+PTX"
  DriverFacts driver;
  std::vector<GpuFacts> gpus;  ///< that it sees
  int gpu = -1;                ///< index of the one that it uses; -1: none

  NcclFacts nccl;
  bool gpus_may_be_shared = false;  ///< NCCL_MULTI_RANK_GPU_ENABLE is 1
  std::string visible_devices;      ///< CUDA_VISIBLE_DEVICES
  std::string socket_ifname;        ///< NCCL_SOCKET_IFNAME
  std::vector<InterfaceFacts> interfaces;
};

/// Facts as text, for messages between ranks.
std::string to_text(const RankFacts& facts);
/// The inverse. @throws std::exception if the text is not of to_text()
RankFacts facts_of_text(const std::string& text);

/// "13.0" for 13000.
std::string cuda_text(int version);
/// "16.0 GiB"
std::string bytes_text(double n_bytes);
/// "0", "0 and 1", "0-3, 5 and 7"; after six parts "and 5 more". @param numbers ascending
std::string numbers_text(std::span<const int> numbers);

/// Facts as a table for people: one line per machine and, if there are any, one line per GPU in use.
std::string table(std::span<const RankFacts> facts);

}  // namespace tree_attn
