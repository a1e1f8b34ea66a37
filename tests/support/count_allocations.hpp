// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counts allocations, and lets one fail: replaces operator new in the program that includes this file, which must do
/// so once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

/// Calls of operator new so far, in all threads.
std::atomic<int> n_allocations = 0;
/// Calls of operator new of this thread alone: a library of messages may have threads of its own.
thread_local int n_allocations_here = 0;
/// Allocations that this thread has not released; negative where it has released those of another.
thread_local int n_live_here = 0;
/// Allocations of this thread before one fails, once; -1: none fails.
thread_local int n_left_here = -1;

void* counted(std::size_t n, std::size_t alignment = alignof(std::max_align_t)) {
  if (n_left_here >= 0 && n_left_here-- == 0) throw std::bad_alloc();
  ++n_allocations;
  ++n_allocations_here;
  if (void* memory = std::aligned_alloc(alignment, (n + alignment - 1) / alignment * alignment + (n == 0 ? alignment : 0))) {
    ++n_live_here;
    return memory;
  }
  throw std::bad_alloc();
}

/// Not inlined: compilers warn when memory from operator new is passed to free().
[[gnu::noinline]] void release(void* memory) {
  n_live_here -= memory != nullptr;
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t n) { return counted(n); }
void* operator new(std::size_t n, std::align_val_t alignment) { return counted(n, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
// Those of arrays call these, but for those of a sanitizer.
void* operator new[](std::size_t n) { return counted(n); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
