// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How another process of the same machine finds a window.
#pragma once

#include <cstddef>

namespace tree_attn {

/// What a process tells another one, so that this one can open its window: plain bytes, of the size of CUDA's.
struct WindowHandle {
  alignas(8) std::byte bytes[64] = {};
};

}  // namespace tree_attn
