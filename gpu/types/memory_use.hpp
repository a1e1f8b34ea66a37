// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Uses of device memory, stated where it is allocated: what a launch may expect to find there.
#pragma once

namespace tree_attn {

/// The emulator holds a kernel to it. A GPU asks only where the memory lies.
enum class MemoryUse {
  Persistent,  ///< keeps its contents from launch to launch
  Input,       ///< the same, and no kernel writes it
  Window,      ///< persistent, and launches that run at the same time hand data to each other in it, also of other devices
  HostWord,    ///< a word of the host that kernels of every device read, see HostWord
  Scratch,     ///< undefined when a launch begins: what is read there this launch has written, see Launch::continues
};

/// Tests whether launches that run at the same time may exchange data in memory of this use, or receive it from a host
/// thread.
constexpr bool is_window(MemoryUse use) { return use == MemoryUse::Window || use == MemoryUse::HostWord; }

}  // namespace tree_attn
