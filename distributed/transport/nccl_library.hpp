// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief NCCL, loaded at run time: a program that links it does not start on a machine without it.
#pragma once

#include "distributed/transport/nccl_api.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace tree_attn {

/// The environment variable that names the library, for an NCCL in an unusual folder: a path, or a name that the loader
/// finds.
inline constexpr const char* kNcclVariable = "TREE_ATTN_NCCL_LIBRARY";

/// The environment variable by which NCCL takes buffers for its low-latency protocol between nodes, if it is 1; sends and
/// receives have none by default (allocP2pNetLLBuffers in src/init.cc and src/transport/net.cc).
inline constexpr const char* kNcclLowLatencyVariable = "NCCL_ALLOC_P2P_NET_LL_BUFFERS";

/// "2.28.9" for 22809, and "2.8.4" for 2804: up to 2.8 a version had one digit less.
std::string nccl_version_text(int code);

/// The loaded library. It stays loaded until the program ends.
class NcclLibrary {
 public:
  /// Loads the library that the variable names, else libnccl.so.2.
  /// @throws InputError if there is none, if a function is missing, or if it is older than kOldestNccl
  static std::shared_ptr<const NcclLibrary> load();

  const nccl::Functions& functions() const { return functions_; }
  /// As ncclGetVersion() codes it.
  int version() const { return version_; }
  std::string version_text() const { return nccl_version_text(version_); }
  /// The file.
  const std::string& path() const { return path_; }
  /// Returns whether the streams that it takes are those of emulated devices: the stand-in of the tests.
  bool is_emulated() const { return is_emulated_; }
  /// Tests whether the library registers windows.
  bool has_windows() const { return functions_.ncclMemAlloc != nullptr && functions_.ncclCommWindowRegister != nullptr; }

  /// Describes the error of a call, as "ncclSend: unhandled system error: last words of the library".
  std::string describe(std::string_view call, nccl::Status status, nccl::Comm* comm) const;

 private:
  NcclLibrary() = default;

  nccl::Functions functions_{};
  int version_ = 0;
  bool is_emulated_ = false;
  std::string path_;
};

}  // namespace tree_attn
