// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The MPI session of the test program, for the tests that are about MPI itself.
#pragma once

#include "distributed/program/mpi_session.hpp"

namespace tree_attn::test {

/// The session that main() has opened.
MpiSession& session();

}  // namespace tree_attn::test
