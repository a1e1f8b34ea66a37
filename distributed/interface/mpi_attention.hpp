// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention over the ranks of a communicator.
#pragma once

#include "distributed/interface/attention.hpp"
#include "distributed/transport/mpi_messages.hpp"
#include "distributed/transport/mpi_ranks.hpp"

namespace tree_attn {

/// Attention over the ranks of a communicator, which is duplicated. Collective; MPI is initialized before, and finalized
/// after the object is destroyed.
///
/// All objects of a process on one communicator share its duplicate and, of equal nodes and memory, one transport: one of
/// them at a time has a step under way, and an error that ends one ends all. The destructor of the last object is
/// collective, and so is that of the last one of equal nodes and memory. Objects on other duplicates of a communicator are
/// apart.
/// @param timeout seconds that one wait may take without progress, may be infinite; that of all objects on the communicator
///   from now on, but for kernels of one-shot, which keep theirs; an open that is refused changes none
/// @throws as MpiRanks and Attention; a timeout that one rank refuses is refused by all
inline Attention open_attention(MPI_Comm comm, const AttentionShape& shape, AttentionSetup setup = {}, double timeout = 60) {
  // A rank that refuses its own timeout tells the others.
  if (!(timeout >= 0)) {
    setup.refusal = line_of("open_attention: a timeout of ", timeout, " s");
    timeout = 60;
  }
  Attention attention(messages_of(comm, timeout), shape, setup);
  attention.transport().ranks().deadline().set_seconds(timeout);
  return attention;
}

}  // namespace tree_attn
