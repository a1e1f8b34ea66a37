// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One MpiRanks for all objects over a communicator.
#pragma once

#include "distributed/transport/messages.hpp"

#include <mpi.h>

#include <memory>

namespace tree_attn {

/// Returns the Messages of a communicator: those of the objects that are open over it, else new ones, which duplicate it.
/// Collective. Ranks that have given up are not used again: all ranks close all objects over them, or have given them up,
/// before they open another.
/// @param timeout of new ranks @throws as MpiRanks
std::shared_ptr<Messages> messages_of(MPI_Comm comm, double timeout);

}  // namespace tree_attn
