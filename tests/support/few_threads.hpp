// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A system that starts few threads: the address space of the process is limited, and every stack needs some of it.
#pragma once

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace tree_attn::test {

/// Until the end of its scope, the process gets 32 MiB beyond what it has: a few stacks of the usual 8 MiB, and what small
/// allocations need. Not under a sanitizer, whose shadow memory is over any limit.
class FewThreads {
 public:
  FewThreads() {
    REQUIRE(::getrlimit(RLIMIT_AS, &before_) == 0);
    std::int64_t n_pages = 0;
    REQUIRE(static_cast<bool>(std::ifstream("/proc/self/statm") >> n_pages));
    const std::int64_t n_bytes = n_pages * ::sysconf(_SC_PAGESIZE) + (std::int64_t{32} << 20);
    const rlimit few{static_cast<rlim_t>(n_bytes), before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &few) == 0);
  }
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;
  ~FewThreads() { ::setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

}  // namespace tree_attn::test
