// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Test for a sanitizer: the longest sweeps then visit a part of their cases.
#pragma once

namespace tree_attn::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace tree_attn::test
