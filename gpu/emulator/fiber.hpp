// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fibers: a stack and an address to go on, which is all that a thread of a block is.
#pragma once

#include <cstddef>

namespace tree_attn::emulated::runtime {

/// Something that can be switched to: a thread of a block, or the host thread that runs them.
struct Fiber {
  void* context = nullptr;     ///< where it goes on
  std::byte* stack = nullptr;  ///< lowest address; null until known for a host thread
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  ///< ASan's, while another fiber runs
  void* watched = nullptr;     ///< TSan's idea of this fiber
};

/// The stack of an ended fiber is kept for the next: a fresh one costs page faults. One pool a process.
std::byte* take_stack();
void give_back(std::byte* stack);

/// Readies a fiber to run entry().
void start_fiber(Fiber& fiber, void (*entry)());
/// Makes a fiber of the running host thread. A thread_local object whose destructor calls end_fiber() does this first.
void adopt_host_thread(Fiber& fiber);
/// Switches; returns when another fiber switches back. `ends`: none will.
void switch_fiber(Fiber& from, Fiber& to, bool ends = false);
/// Back on the host thread: frees what an ended, or abandoned, fiber holds. Its locals are not destroyed: kernels own
/// nothing.
void end_fiber(Fiber& fiber, const Fiber& host);

}  // namespace tree_attn::emulated::runtime
