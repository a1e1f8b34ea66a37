// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Turns error codes of MPI into exceptions.
#pragma once

#include "tree_attn/distributed/transport/transport.hpp"

#include <mpi.h>

#include <string>

namespace tree_attn {

/// @throws TransportError, which names the call, unless the status is MPI_SUCCESS
inline void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw TransportError(TransportError::Kind::kLibrary,
                       std::string(call) + " failed: " + std::string(text, static_cast<std::size_t>(length)), -1, -1,
                       status);
}

}  // namespace tree_attn
