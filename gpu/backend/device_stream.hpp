// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A stream of a device on which kernels and a message-passing library queue by turns.
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include <cstddef>

namespace tree_attn {

/// A stream of the device that is current when it is made.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  /// The stream as NCCL takes it: a cudaStream_t. Of an emulated device an emulated::OutsideStream*.
  virtual void* handle() = 0;
  /// What is queued from now on begins after all that the default stream was given before, and so after steps of a
  /// DecodeSession.
  virtual void follow_default() = 0;
  /// Marks the place up to which operations are queued. @returns its index: marks are counted from 0 after clear_marks()
  virtual std::size_t mark() = 0;
  /// Whether the stream has come to a mark. It does not wait. @throws DeviceError of an operation before it that failed
  virtual bool has_passed(std::size_t mark) = 0;
  /// Forgets all marks.
  virtual void clear_marks() = 0;
};

}  // namespace tree_attn
