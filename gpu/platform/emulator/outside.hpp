// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A stream as a library that is loaded at run time sees it: no function of the emulator has to be linked to it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace tree_attn::emulated {

/// Device memory that an operation reads or writes.
struct OutsideAccess {
  void* at = nullptr;
  std::size_t n_bytes = 0;
  bool writes = false;
};

/// Where such a library queues an operation: the handle of an emulated stream points to one.
class OutsideStream {
 public:
  virtual ~OutsideStream() = default;
  /// Queues an operation. Its accesses are checked, and count as those of a copy.
  /// @param name in reports, "ncclGroupEnd"
  /// @param advance called again and again from when the stream gets there; the operation ends when it returns true
  virtual void queue(const char* name, std::vector<OutsideAccess> accesses, std::function<bool()> advance) = 0;
};

}  // namespace tree_attn::emulated
