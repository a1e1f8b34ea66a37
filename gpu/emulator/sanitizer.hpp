// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Annotations for the sanitizers, which know threads and heaps, but not fibers and shared memory of blocks.
///
/// Without a sanitizer every function here is empty. Under ThreadSanitizer the emulator itself is compiled without it and
/// runs Unwatched, for the allocator and memcpy() are watched wherever they are called from. What the emulator does to
/// memory on a kernel's behalf it says through note_read() and note_write().
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(TREE_ATTN_EMULATOR_THREAD)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long size);
void __tsan_write_range(void* address, unsigned long size);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}
#endif

namespace tree_attn::emulated::runtime {

/// Stacks are larger where a sanitizer pads every local.
#if defined(__SANITIZE_ADDRESS__) || defined(TREE_ATTN_EMULATOR_THREAD)
inline constexpr std::size_t kStackBytes = 256 * 1024;
#else
inline constexpr std::size_t kStackBytes = 64 * 1024;
#endif

/// Forbids and allows access, to the byte at the end and to 8 bytes at the start. ASan.
inline void forbid([[maybe_unused]] const void* from, [[maybe_unused]] std::size_t n_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(from, n_bytes);
#endif
}
inline void allow([[maybe_unused]] const void* from, [[maybe_unused]] std::size_t n_bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(from, n_bytes);
#endif
}

/// The two ends of what Unwatched is. TSan.
inline void begin_unwatched() {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
#endif
}
inline void end_unwatched() {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__), AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
}
/// A function of the emulator that a kernel has called, whose locks and memory are no concern of the kernel; and, within,
/// the kernel again. TSan.
struct Unwatched {
  Unwatched() { begin_unwatched(); }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
  ~Unwatched() { end_unwatched(); }
};
struct Watched {
  Watched() { end_unwatched(); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() { begin_unwatched(); }
};

/// Orders accesses for TSan: those of the running thread before release(p) happen before those of a thread after its
/// acquire(p).
inline void release([[maybe_unused]] const void* where) {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  const Watched watched;
  __tsan_release(const_cast<void*>(where));
#endif
}
inline void acquire([[maybe_unused]] const void* where) {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  const Watched watched;
  __tsan_acquire(const_cast<void*>(where));
#endif
}

/// The running thread reads or writes memory of the kernel. TSan.
inline void note_read([[maybe_unused]] const void* from, [[maybe_unused]] std::size_t n_bytes) {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  const Watched watched;
  if (n_bytes > 0) __tsan_read_range(const_cast<void*>(from), n_bytes);
#endif
}
inline void note_write([[maybe_unused]] void* to, [[maybe_unused]] std::size_t n_bytes) {
#if defined(TREE_ATTN_EMULATOR_THREAD)
  const Watched watched;
  if (n_bytes > 0) __tsan_write_range(to, n_bytes);
#endif
}

}  // namespace tree_attn::emulated::runtime
