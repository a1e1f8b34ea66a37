// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A library to preload: the rank NO_THREAD_RANK, or a process without ranks, cannot start its first thread.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  static std::atomic_flag called;
  const char* own = std::getenv("OMPI_COMM_WORLD_RANK");
  if (own == nullptr) own = std::getenv("PMI_RANK");
  const char* failing = std::getenv("NO_THREAD_RANK");
  if (!called.test_and_set() && (own == nullptr || (failing != nullptr && std::string(own) == failing))) return EAGAIN;
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}
