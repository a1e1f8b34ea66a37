// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Loads the driver and NCCL. Types and numbers are those of the driver API, whose binary interface does not change.
#include "tree_attn/distributed/job/libraries.hpp"

#include "tree_attn/distributed/transport/nccl_library.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace tree_attn {
namespace {

/// A library that stays loaded; null if it cannot be.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) missing_ = dlerror();
  }
  /// Why it cannot be used, or "".
  const std::string& missing() const { return missing_; }
  /// A function of this name. Without one the library is not what it should be.
  template <class Function>
  Function* get(const char* name) {
    auto* function = handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
    if (handle_ != nullptr && function == nullptr) missing_ = dlerror();
    return function;
  }
  /// The same, which may be missing.
  template <class Function>
  Function* find(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* handle_;
  std::string missing_;
};

/// "580.65.06" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ...".
std::string driver_release() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line, word;
  std::getline(file, line);
  for (std::istringstream words(line); words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos) return word;
  }
  return "";
}

using DeviceId = int;
using DeviceUuid = std::array<unsigned char, 16>;
constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR

/// As nvidia-smi prints it: GPU-5f0c2e1a-...
std::string uuid_text(const DeviceUuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    std::array<char, 4> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", unsigned{uuid[i]});
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex.data();
  }
  return text;
}

}  // namespace

FoundGpus find_gpus() {
  static Library library("libcuda.so.1");
  FoundGpus found;
  auto* const init = library.get<int(unsigned)>("cuInit");
  auto* const version = library.get<int(int*)>("cuDriverGetVersion");
  auto* const count = library.get<int(int*)>("cuDeviceGetCount");
  auto* const get = library.get<int(DeviceId*, int)>("cuDeviceGet");
  auto* const name = library.get<int(char*, int, DeviceId)>("cuDeviceGetName");
  auto* const attribute = library.get<int(int*, int, DeviceId)>("cuDeviceGetAttribute");
  auto* const can_access = library.get<int(int*, DeviceId, DeviceId)>("cuDeviceCanAccessPeer");
  auto* uuid = library.find<int(DeviceUuid*, DeviceId)>("cuDeviceGetUuid_v2");
  if (uuid == nullptr) uuid = library.get<int(DeviceUuid*, DeviceId)>("cuDeviceGetUuid");
  found.driver.missing = library.missing();
  if (!found.driver.missing.empty()) return found;

  found.driver.release = driver_release();
  version(&found.driver.cuda);
  // 100: the driver shows no device. Anything else is a driver that does not work.
  constexpr int kNoDevice = 100;
  int n = 0;
  int status = init(0);
  if (status == 0) status = count(&n);
  if (status != 0 && status != kNoDevice) found.driver.missing = "cuInit: error " + std::to_string(status);

  std::vector<DeviceId> ids(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    GpuFacts gpu;
    std::array<char, 256> text{};
    DeviceUuid bytes{};
    DeviceId& id = ids[static_cast<std::size_t>(i)];
    if (get(&id, i) != 0 || name(text.data(), static_cast<int>(text.size()) - 1, id) != 0 || uuid(&bytes, id) != 0 ||
        attribute(&gpu.major, kMajor, id) != 0 || attribute(&gpu.minor, kMinor, id) != 0) {
      found.driver.missing = "the driver does not answer for device " + std::to_string(i);
      return found;
    }
    gpu.name = text.data();
    gpu.uuid = uuid_text(bytes);
    found.gpus.push_back(std::move(gpu));
  }
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      int can = 0;
      if (i != j && can_access(&can, ids[static_cast<std::size_t>(i)], ids[static_cast<std::size_t>(j)]) == 0 && can != 0)
        found.gpus[static_cast<std::size_t>(i)].reaches.push_back(j);
    }
  }
  return found;
}

NcclFacts ask_nccl() {
  static Library library(wanted_nccl().name.c_str());
  NcclFacts found;
  auto* const version = library.get<int(int*)>("ncclGetVersion");
  found.missing = library.missing();
  if (!found.missing.empty()) return found;
  if (const int status = version(&found.found); status != 0)
    found.missing = "ncclGetVersion: error " + std::to_string(status);
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(version), &where) != 0 && where.dli_fname != nullptr) found.path = where.dli_fname;
  return found;
}

}  // namespace tree_attn
