// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Facts that every rank found on its machine, as rows of text. Plain values, so that tables can be tested with
/// clusters that do not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tree_attn {

/// Facts that one rank found. A `no_...` says why something is missing, in the words of the system; "" if it is there.
struct RankFacts {
  int node = 0;                        ///< number of its machine
  std::string host, cores, interface;  ///< its name, the cores that the rank may use, where NCCL's bootstrap would listen
  std::string no_driver, driver;       ///< of the GPUs, by the newest CUDA that it knows: "CUDA 13.0"
  std::string no_gpu, gpu;             ///< the one that it uses: "NVIDIA H200"
  std::string capability, uuid;        ///< "9.0"; "GPU-5f0c...", the identity of a GPU: its index differs between processes
  std::string no_kernel, kernels;      ///< for that GPU; "80-real,90a-real, by CUDA 13.0.88"
  std::vector<std::string> reaches;    ///< identities of the GPUs into whose memory its GPU can store
  std::string no_nccl, nccl;           ///< "2.30.7"
  std::string nccl_path;
  std::string no_memfd, no_ipc;  ///< memory of the next rank of its machine: pages without a name; of a GPU, by CUDA IPC
};

/// Facts as text, for messages between ranks.
std::string to_text(const RankFacts& facts);
/// The inverse. @throws std::exception if the text is not of to_text()
RankFacts facts_of_text(const std::string& text);

/// Facts as a table for people, in which equal ranks of a machine share a line. Below it a row for everything that some rank
/// does not have, for ranks on one GPU, and for few cores with NCCL: why, and where the book says what to do. @param facts
/// of all ranks, by rank
std::string table(std::span<const RankFacts> facts);

/// The GPUs that several ranks have, as "GPU-5f0c..., for ranks 0, 1". @param uuids of the GPUs by rank; "" of none
std::vector<std::string> shared_gpus(std::span<const std::string> uuids);

/// Tests whether kernels for an architecture in CMake's notation run on a GPU: those for "80-real" on 8.0 and later of 8,
/// for "90a-real" on 9.0 alone, for "80", which has PTX, on 8.0 and all later ones.
bool runs_on(std::string_view architecture, int major, int minor);

}  // namespace tree_attn
