// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Compares the memory of keys and values with that of the machine.
#pragma once

#include "distributed/program/measure.hpp"

#include <filesystem>
#include <string>

namespace tree_attn {

/// Bytes of memory that are left: MemAvailable of the machine, and at most what the container leaves of its limit,
/// memory.max less what memory.current counts beside pages of files. At least 0; infinity if neither is known. Where
/// memory.current or memory.stat is missing or has no such number, that number is 0.
/// @param container folder of its control group (version 2)
double available_memory(const std::filesystem::path& meminfo = "/proc/meminfo",
                        const std::filesystem::path& container = "/sys/fs/cgroup");

/// "b = 1, n_h = 16, n_kv = 16, l = 1, N = 4096, d_h = 128, d_v = 128", for messages.
std::string axes_text(const WorkloadShape& shape);

/// Refuses work that exceeds the memory of the machine. Linux overcommits memory, and the OOM killer ends the process on
/// first use.
/// @param subject the work, for the message
/// @throws InputError "SUBJECT needs about 3.0 GiB of memory on one machine, which has 1.0 GiB left"
void require_memory(const std::string& subject, double bytes);
/// "keys and values of 4096 positions: 3.0 GiB are not given, and the machine has 8.0 GiB left": what an allocation that has
/// failed was for. A limit of the process, as of `ulimit -v`, may be lower than what is left.
std::string refused_memory(const std::string& subject, double bytes);

/// Bytes of what attention() returns, in double, and of its lengths. The rows that it computes at a time are small beside
/// keys and values.
/// @param n_results results of d_v + 1 elements per row: 1, with zeta 2, with the error bounds 3
double oracle_bytes(const WorkloadShape& shape, int n_results);

/// Memory that a decode holds beside its queries and outputs.
struct MemoryUse {
  bool keys_in_memory;  ///< keys and values are synthetic; those of a file are pages that can be evicted
  std::span<const Algorithm* const> algorithms;  ///< run one after the other, some with shards of other ranks in flight
  bool oracle;                                   ///< rank 0 computes the oracle and its error bounds, over all keys
};
/// Refuses a decode whose keys, values and outputs exceed the memory of the machine of this rank. States are not counted.
/// @param machines which ranks share a machine, and therefore its memory
/// @throws InputError as require_memory() does
void check_memory(const std::string& subject, const Bench& bench, const Topology& machines, const MemoryUse& use);

}  // namespace tree_attn
