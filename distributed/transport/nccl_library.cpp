// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Finds NCCL and its functions.
#include "distributed/transport/nccl_library.hpp"

#include "reference/data/input_error.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <initializer_list>

namespace tree_attn {
namespace {

constexpr const char* kName = "libnccl.so.2";
/// A library with this symbol takes the streams of emulated devices.
constexpr const char* kEmulatedMark = "tree_attn_nccl_stand_in";

[[noreturn]] void refuse(const std::string& why) { throw InputError("--transport nccl: " + why); }

/// Sets a pointer to the function of that name. @returns the name if the library does not have it, else null
template <class Function>
const char* find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function == nullptr ? name : nullptr;
}

}  // namespace

std::string nccl_version_text(int code) {
  const int major = code >= 10000 ? code / 10000 : code / 1000, minor = code >= 10000 ? code / 100 % 100 : code / 100 % 10;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(code % 100);
}

std::shared_ptr<const NcclLibrary> NcclLibrary::load() {
  // Never unloaded: NCCL has threads and exit handlers of its own.
  const char* const variable = std::getenv(kNcclVariable);
  const bool is_chosen = variable != nullptr && *variable != '\0';
  const std::string name = is_chosen ? variable : kName;
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    if (is_chosen) refuse(std::string(kNcclVariable) + " is " + readable(name) + ": " + readable(::dlerror()));
    refuse(std::string(kName) + " was not found; pip install nvidia-nccl-cu13 or apt-get install libnccl2, or set " +
           kNcclVariable + " to its path");
  }
  const std::shared_ptr<NcclLibrary> library(new NcclLibrary);
  nccl::Functions& f = library->functions_;
  library->path_ = name;
  if (find(handle, "ncclGetVersion", f.ncclGetVersion) != nullptr)
    refuse(readable(name) + " has no ncclGetVersion: it is not NCCL");
  if (Dl_info info{}; ::dladdr(reinterpret_cast<void*>(f.ncclGetVersion), &info) != 0 && info.dli_fname != nullptr)
    library->path_ = info.dli_fname;
  if (f.ncclGetVersion(&library->version_) != nccl::Status::kSuccess) refuse(readable(name) + ": ncclGetVersion failed");
  if (library->version_ < nccl::kOldestNccl) {
    refuse(readable(library->path_) + " is NCCL " + library->version_text() + ", older than " +
           nccl_version_text(nccl::kOldestNccl) + ", the first with communicators that do not block");
  }

#define TREE_ATTN_FIND(function) find(handle, #function, f.function)
  for (const char* missing : {TREE_ATTN_NCCL_REQUIRED(TREE_ATTN_FIND)})
    if (missing != nullptr) refuse(readable(library->path_) + " has no function " + missing);
  static_cast<void>(std::initializer_list<const char*>{TREE_ATTN_NCCL_OPTIONAL(TREE_ATTN_FIND)});
#undef TREE_ATTN_FIND
  library->is_emulated_ = ::dlsym(handle, kEmulatedMark) != nullptr;
  return library;
}

std::string NcclLibrary::describe(std::string_view call, nccl::Status status, nccl::Comm* comm) const {
  std::string text = std::string(call) + ": " + functions_.ncclGetErrorString(status);
  const char* const last = comm == nullptr ? nullptr : functions_.ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  return text;
}

}  // namespace tree_attn
