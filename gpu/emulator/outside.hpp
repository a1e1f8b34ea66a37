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

/// Goes on with an operation. @returns whether it is done
using OutsideAdvance = std::function<bool()>;

/// Stream in which such a library queues an operation: the handle of an emulated stream points to one.
class OutsideStream {
 public:
  virtual ~OutsideStream() = default;
  /// Queues an operation. Its accesses are checked, and count as those of a copy.
  /// @param name in reports, "ncclGroupEnd"
  /// @param begin called when the operation is queued; if the stream is being captured, in every replay. What it returns is
  /// called again and again from when the stream gets there, until it returns true
  virtual void queue(const char* name, std::vector<OutsideAccess> accesses, std::function<OutsideAdvance()> begin) = 0;
  /// Returns whether the stream is being captured.
  virtual bool is_captured() const = 0;
};

}  // namespace tree_attn::emulated
