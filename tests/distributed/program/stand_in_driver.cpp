// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library in the place of libcuda.so.1, for tests of `info`: it shows GPUs that do not exist and runs nothing.
///
/// STAND_IN_GPUS is how many it shows, STAND_IN_FIRST the identity of the first, STAND_IN_MAJOR their compute capability
/// before the point, STAND_IN_APART the index of a GPU that no other can reach, STAND_IN_ERROR the status of cuInit(),
/// STAND_IN_IPC that of cuIpcOpenMemHandle(). The file STAND_IN_CONTEXTS.driver lists the GPUs on which the process has made
/// a context here.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

int number(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return number("STAND_IN_ERROR", 0); }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuDeviceGetCount(int* n) {
  *n = number("STAND_IN_GPUS", 0);
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}

int cuDeviceGetName(char* name, int n_bytes, int) {
  std::snprintf(name, static_cast<std::size_t>(n_bytes), "Stand-in GPU");
  return 0;
}

int cuDeviceGetUuid_v2(std::array<unsigned char, 16>* uuid, int device) {
  *uuid = {0x5f, 0x0c};
  (*uuid)[15] = static_cast<unsigned char>(number("STAND_IN_FIRST", 0) + device);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? number("STAND_IN_MAJOR", 9) : 0;
  return 0;
}

int cuDeviceCanAccessPeer(int* can, int from, int to) {
  const int apart = number("STAND_IN_APART", -1);
  *can = from != apart && to != apart;
  return 0;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  static int one;
  if (const char* const path = std::getenv("STAND_IN_CONTEXTS"); path != nullptr)
    std::ofstream(path + std::string(".driver"), std::ios::app) << " " << device;
  *context = &one;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuMemAlloc_v2(std::uint64_t* memory, std::size_t) {
  *memory = 1;
  return 0;
}
int cuMemFree_v2(std::uint64_t) { return 0; }

struct IpcHandle {
  char bytes[64];
};
int cuIpcGetMemHandle(IpcHandle* handle, std::uint64_t) {
  std::snprintf(handle->bytes, sizeof handle->bytes, "memory");
  return 0;
}
int cuIpcOpenMemHandle_v2(std::uint64_t* memory, IpcHandle handle, unsigned) {
  *memory = 2;
  return handle.bytes[0] == 'm' ? number("STAND_IN_IPC", 0) : 1;
}
int cuIpcCloseMemHandle(std::uint64_t memory) { return memory == 2 ? 0 : 1; }
}
