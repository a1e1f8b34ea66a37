// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What device memory is for, said where it is allocated: what a launch may expect to find there.
#pragma once

namespace tree_attn {

/// The emulator holds a kernel to it; a GPU does not ask.
enum class MemoryUse {
  Persistent,  ///< keeps its contents from launch to launch
  Input,       ///< the same, and no kernel writes it
  Window,      ///< persistent, and launches that run at the same time hand data to each other in it, also of other devices
  Scratch,     ///< undefined when a launch begins: what is read there this launch has written, see Launch::continues
};

}  // namespace tree_attn
