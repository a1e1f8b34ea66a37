// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Helpers that tests of the emulator share: kernels are functions of a test file, their errors are text.
#pragma once

#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tree_attn::emulated {

/// Error of an action; empty if there is none.
template <class Act>
std::string error_in(const Act& act) {
  return test::message<DeviceError>(act);
}

/// Error of a launch; empty if there is none.
template <class... Parameters, class... Arguments>
std::string error_of(void (*kernel)(Parameters...), const Launch& config, Arguments&&... arguments) {
  return error_in([&] { launch(kernel, config, Stream{}, std::forward<Arguments>(arguments)...); });
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// n numbers 0, 1, 2, ...
inline DeviceBuffer<float> ascending(int n) {
  std::vector<float> elements(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) elements[static_cast<std::size_t>(i)] = static_cast<float>(i);
  DeviceBuffer<float> buffer(n);
  buffer.upload(elements);
  return buffer;
}

/// True if a kernel may read bytes that the emulator has fenced off: not under ASan, which would end the program, and not in
/// shadow mode, which reports an error.
#if defined(__SANITIZE_ADDRESS__) || defined(TREE_ATTN_EMULATOR_SHADOW)
inline constexpr bool kMayLook = false;
#else
inline constexpr bool kMayLook = true;
#endif

}  // namespace tree_attn::emulated
