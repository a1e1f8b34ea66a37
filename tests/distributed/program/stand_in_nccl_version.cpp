// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library in the place of libnccl.so.2, for tests of `info`: it has a version, STAND_IN_NCCL, and nothing else.
#include <cstdlib>

extern "C" int ncclGetVersion(int* version) {
  const char* const value = std::getenv("STAND_IN_NCCL");
  *version = value == nullptr ? 23007 : std::atoi(value);
  return 0;
}
