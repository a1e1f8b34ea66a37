// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The MPI session of the test program, for tests of MPI itself.
#pragma once

#include "distributed/transport/mpi_session.hpp"

namespace tree_attn::test {

/// The session that main() opened.
MpiSession& session();

}  // namespace tree_attn::test
