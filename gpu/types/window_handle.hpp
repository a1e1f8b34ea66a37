// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Handle by which another process of the same machine finds a window.
#pragma once

#include <cstddef>

namespace tree_attn {

/// Plain bytes, of the size of CUDA's handle, with which another process opens a window of this one.
struct WindowHandle {
  alignas(8) std::byte bytes[64] = {};
};

}  // namespace tree_attn
