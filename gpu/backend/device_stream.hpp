// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A stream of a device on which kernels and a message-passing library queue by turns.
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tree_attn {

/// A stream of the device that is current when it is made.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  /// The stream as NCCL takes it: a cudaStream_t. Of an emulated device an emulated::OutsideStream*.
  virtual void* handle() = 0;
  /// Orders everything queued from now on after everything queued on the default stream before, and so after steps of a
  /// DecodeSession.
  virtual void follow_default() = 0;
  /// Orders everything queued from now on after everything queued before on another stream, which has this handle; null: the
  /// default stream.
  virtual void follow(void* other) = 0;
  /// Orders everything queued on that stream from now on after everything queued here before.
  virtual void lead(void* other) = 0;
  /// Returns whether that stream is being captured.
  virtual bool is_captured(void* other) const = 0;

  /// Waits until all that is queued has run.
  virtual void wait() = 0;

  /// Marks the end of the queued operations. In repeat() the mark is a part of the graph, and moves to every replay.
  /// @returns its index: marks are counted from 0 after keep_marks(0)
  virtual std::size_t mark() = 0;
  /// Tests whether the stream has passed a mark, without waiting. @throws DeviceError of an operation before it that failed
  virtual bool has_passed(std::size_t mark) = 0;
  /// Forgets all marks but the first n.
  virtual void keep_marks(std::size_t n) = 0;

  /// Chooses the graph of the next repeat(), by a number; 0 at first. The last four that were chosen are kept.
  virtual void choose(std::uint64_t graph) = 0;
  /// Queues operations that are the same in every call for the same graph. The first call queues them, the second records
  /// them, and from then on a call is one launch of that graph. The first also loads kernels, and lets a library connect
  /// ranks and take memory: a recording may not.
  /// @param queue queues them on this stream; called in the first two calls
  /// @param may_record whether a graph may hold them; if not, every call queues them
  virtual void repeat(const std::function<void()>& queue, bool may_record = true) = 0;
  /// Drops all graphs, and a recording that is under way. Replays that are under way go on. The next repeat() is the first.
  virtual void forget() noexcept = 0;
  /// Returns whether the next repeat() is the first.
  virtual bool is_new() const = 0;
};

}  // namespace tree_attn
