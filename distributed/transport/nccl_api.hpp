// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The functions of NCCL that the transport and the measurement of ncclAllGather call, declared here: nccl.h needs
/// the CUDA toolkit, the program does not.
///
/// Names, values and layouts are those of nccl.h; tests/distributed/nccl/nccl_header.cpp compares them with it wherever it
/// is found. Device code of NCCL is not used, so a library of any version from kOldestNccl on serves one build.
#pragma once

#include <cstddef>

namespace tree_attn::nccl {

/// A communicator, and a registered window of memory.
struct Comm;
struct Window;

/// ncclResult_t.
enum class Status : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7
};
/// ncclDataType_t: bytes and F32.
enum class Type : int { kInt8 = 0, kFloat32 = 7 };
/// ncclRedOp_t.
enum class Operator : int { kSum = 0, kMax = 2 };

/// ncclUniqueId: identifies the communicator that ranks join.
struct UniqueId {
  char internal[128] = {};
};

/// The beginning of ncclConfig_t, as version 2.14 had it. NCCL reads `size` bytes, and takes defaults for the rest.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  ///< calls return at once, and ncclCommGetAsyncError() says when they are done
};

/// NCCL_WIN_COLL_SYMMETRIC.
inline constexpr int kSymmetricWindow = 1;

/// The oldest library that has all functions but the optional ones, as ncclGetVersion() codes 2.14.3.
inline constexpr int kOldestNccl = 21403;

/// Functions of the library. Those after ncclAllGather, of windows, are null in libraries before 2.27.
struct Functions {
  Status (*ncclGetVersion)(int* version);
  Status (*ncclGetUniqueId)(UniqueId* id);
  Status (*ncclCommInitRankConfig)(Comm** comm, int n_ranks, UniqueId id, int rank, Config* config);
  Status (*ncclCommGetAsyncError)(Comm* comm, Status* error);
  Status (*ncclCommFinalize)(Comm* comm);
  Status (*ncclCommDestroy)(Comm* comm);
  Status (*ncclCommAbort)(Comm* comm);
  const char* (*ncclGetErrorString)(Status status);
  const char* (*ncclGetLastError)(Comm* comm);
  Status (*ncclGroupStart)();
  Status (*ncclGroupEnd)();
  Status (*ncclSend)(const void* from, std::size_t n, Type type, int peer, Comm* comm, void* stream);
  Status (*ncclRecv)(void* to, std::size_t n, Type type, int peer, Comm* comm, void* stream);
  Status (*ncclAllReduce)(const void* from, void* to, std::size_t n, Type type, Operator op, Comm* comm, void* stream);
  Status (*ncclAllGather)(const void* from, void* to, std::size_t n_of_each, Type type, Comm* comm, void* stream);
  Status (*ncclMemAlloc)(void** memory, std::size_t n_bytes);
  Status (*ncclMemFree)(void* memory);
  Status (*ncclCommWindowRegister)(Comm* comm, void* memory, std::size_t n_bytes, Window** window, int flags);
  Status (*ncclCommWindowDeregister)(Comm* comm, Window* window);
};

/// Lists with an entry that a macro makes of the name of each function: of those that every library has, and of those that
/// are null in some.
#define TREE_ATTN_NCCL_REQUIRED(make)                                                                                       \
  make(ncclGetVersion), make(ncclGetUniqueId), make(ncclCommInitRankConfig), make(ncclCommGetAsyncError),                   \
      make(ncclCommFinalize), make(ncclCommDestroy), make(ncclCommAbort), make(ncclGetErrorString), make(ncclGetLastError), \
      make(ncclGroupStart), make(ncclGroupEnd), make(ncclSend), make(ncclRecv), make(ncclAllReduce), make(ncclAllGather)
#define TREE_ATTN_NCCL_OPTIONAL(make) \
  make(ncclMemAlloc), make(ncclMemFree), make(ncclCommWindowRegister), make(ncclCommWindowDeregister)

}  // namespace tree_attn::nccl
