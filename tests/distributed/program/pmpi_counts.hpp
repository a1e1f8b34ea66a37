// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts of the messages that this process has given MPI to send, for programs that pmpi_counts.cpp is linked into.
#pragma once

#include <span>

namespace tree_attn::test {

/// Messages to one rank, and their bytes.
struct GivenToMpi {
  long long messages = 0, bytes = 0;
};

/// By rank that the message goes to.
std::span<const GivenToMpi> given_to_mpi();

}  // namespace tree_attn::test
