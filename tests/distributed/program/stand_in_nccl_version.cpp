// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library in the place of libnccl.so.2, for tests of `info`: it has a version, STAND_IN_NCCL, and names that no
/// test calls.
#include <cstdlib>

#define NAME(function) \
  extern "C" int function() { return 1; }
NAME(ncclGetUniqueId)
NAME(ncclCommInitRankConfig)
NAME(ncclCommGetAsyncError)
NAME(ncclCommFinalize)
NAME(ncclCommDestroy)
NAME(ncclCommAbort)
NAME(ncclCommSplit)
NAME(ncclCommWindowRegister)
NAME(ncclGetErrorString)
NAME(ncclGetLastError)
NAME(ncclGetPeerDevicePointer)
NAME(ncclGroupStart)
NAME(ncclGroupEnd)
NAME(ncclMemAlloc)
NAME(ncclSend)
NAME(ncclRecv)
NAME(ncclAllReduce)
NAME(ncclAllGather)

extern "C" int ncclGetVersion(int* version) {
  const char* const value = std::getenv("STAND_IN_NCCL");
  *version = value == nullptr ? 23007 : std::atoi(value);
  return 0;
}
