// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sweeps that a sanitizer would make last for hours visit a part of their cases under one.
#pragma once

namespace tree_attn::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace tree_attn::test
