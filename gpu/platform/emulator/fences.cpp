// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fences and atomics, told to ThreadSanitizer as C++ has them: a fence before an atomic releases, a fence after
/// one acquires, and an atomic alone orders nothing.
///
/// Coarser than the standard in one place: an atomic after a fence also releases what was written between the two.
#include "tree_attn/gpu/platform/emulator/sanitizer.hpp"
#include "tree_attn/gpu/platform/emulator/thread.hpp"

namespace tree_attn::emulated::runtime {

void before_atomic(const void* address) {
  const Unwatched unwatched;
  if (running->fenced) release(address);
}

void after_atomic([[maybe_unused]] const void* address) {
  const Unwatched unwatched;
#if defined(TREE_ATTN_EMULATOR_THREAD)
  // The atomic itself comes before what another thread does after its acquire: one address has one order.
  if (running->fenced) release(address);
  running->touched.push_back(address);
#endif
}

void fence() {
  const Unwatched unwatched;
  running->fenced = true;
  for (const void* address : running->touched) acquire(address);
  running->touched.clear();
}

}  // namespace tree_attn::emulated::runtime
