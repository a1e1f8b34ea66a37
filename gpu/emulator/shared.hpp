// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pointers into shared memory: plain ones, or in shadow mode ones that check every access.
#pragma once

#include "gpu/emulator/runtime.hpp"

#include <cstddef>
#include <cstdint>

#if defined(TREE_ATTN_EMULATOR_SHADOW)
#include "gpu/emulator/checked_pointer.hpp"
#endif

namespace tree_attn::emulated {

#if defined(TREE_ATTN_EMULATOR_SHADOW)

/// A pointer into shared memory, checked.
template <class T>
using Shared = CheckedPointer<T>;

/// Views shared memory as elements of another type.
template <class U, class T>
Shared<U> shared_as(Shared<T> shared) {
  return shared.template as<U>();
}

#else

/// A pointer into shared memory, plain.
template <class T>
using Shared = T*;

/// Views shared memory as elements of another type.
template <class U, class T>
Shared<U> shared_as(T* shared) {
  return reinterpret_cast<U*>(shared);
}

namespace runtime {

/// The plain pointer, for an access of n bytes that a function of device.hpp makes; checked in shadow mode.
template <Access, class T>
T* plain(T* at, int, const Line&) {
  return at;
}
/// A pointer as Arena and remote() make it.
template <class T>
T* pointer_to(std::byte* at, std::int64_t, const Line&) {
  return reinterpret_cast<T*>(at);
}

}  // namespace runtime

#endif

/// Hands out the dynamic shared memory of the block, piece by piece; every thread makes the same calls.
class Arena {
 public:
  /// The next n elements.
  /// @param alignment of their address in bytes: 128, or a larger power of two up to 1024
  template <class T>
  Shared<T> take(std::int64_t n, int alignment = 128, const Line& line = Line::current()) {
    return runtime::pointer_to<T>(
        runtime::take(n_takes_++, static_cast<std::size_t>(n) * sizeof(T), static_cast<std::size_t>(alignment), line), n,
        line);
  }

 private:
  int n_takes_ = 0;
};

}  // namespace tree_attn::emulated
