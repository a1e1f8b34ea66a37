// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How much memory the work will take, and whether the machine has it.
#pragma once

#include "distributed/measure/measure.hpp"

#include <string>

namespace tree_attn {

/// Bytes of memory that this machine can still give out, at most what a container allows; infinity where neither is known.
double available_memory();

/// "b = 1, n_h = 16, n_kv = 16, l = 1, N = 4096, d_h = 128, d_v = 128": what takes the memory, in a message.
std::string axes_text(const WorkloadShape& shape);

/// Refuses work that the machine has no room for: Linux hands out more memory than there is, and kills the process that uses
/// it.
/// @param subject what takes the memory
/// @throws InputError "SUBJECT needs about 3.0 GiB of memory on one machine, which has 1.0 GiB left"
void require_memory(const std::string& subject, double bytes);

/// Bytes that a rank takes to decode with keys at the positions of `range`, besides these keys and values: per row about
/// twice the states of the maximal subtrees of the range; per query of a group a state for every level of the tree; a leaf
/// of keys and values; the lengths. Axes count although another axis is 0: a header of 200 bytes can ask for terabytes.
double decode_bytes(const WorkloadShape& shape, KeyRange range);

/// Bytes that attention() takes: results in double, the scores of one block of rows, a piece of keys and values, the
/// lengths.
/// @param n_results results of d_v + 1 elements per row: 1, with zeta 2, with the error bounds 3
double oracle_bytes(const WorkloadShape& shape, int n_results);

/// What else takes memory when an input is decoded.
struct MemoryUse {
  bool keys_in_memory;      ///< keys and values are made up or enlarged; those of a file are pages that can be read again
  int kv_shards_in_flight;  ///< shards more, on their way: as many as the algorithm that holds most
  bool oracle;              ///< rank 0 computes the oracle and its error bounds, over all keys
};
/// Refuses to decode what the machine of this rank has no room for.
/// @param machines which ranks share a machine, and so its memory
/// @throws InputError as require_memory() does
void check_memory(const std::string& subject, const Bench& bench, const Topology& machines, const MemoryUse& use);

}  // namespace tree_attn
