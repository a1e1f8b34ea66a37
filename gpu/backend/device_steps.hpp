// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Decode steps that go on with what others queue: one graph from the keys to the output of all ranks (section 5.3,
/// Alg. 3).
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include "gpu/backend/device_stream.hpp"
#include "reference/decode/step.hpp"

#include <cstdint>
#include <functional>

namespace tree_attn {

/// Operations of a step after its kernel.
class StepEnd {
 public:
  virtual ~StepEnd() = default;
  /// Queues it on the stream of the step; called only when a step is queued or recorded, not when its graph is launched.
  /// @param states of the step, [subtrees][n_rows][2 + d_v] in device memory; null without subtrees
  virtual void queue(const float* states) = 0;
  /// A number that no other plan of the session's steps has: of its graph. @returns at least 1
  virtual std::uint64_t graph() const = 0;
  /// Returns whether a graph may hold the queued operations.
  virtual bool may_be_recorded() const { return true; }
};

/// A DecodeSession on a device.
class DeviceSteps {
 public:
  virtual ~DeviceSteps() = default;
  /// The stream of its steps.
  virtual DeviceStream& stream() = 0;
  /// DecodeSession::decode() and `end` on one stream, by DeviceStream::repeat(). Nothing waits for the step, not the default
  /// stream either: the code that waits for `end` does.
  ///
  /// A library may ask that all ranks record a message, or none. So new graphs have to begin in the same step on all ranks:
  /// they do for an `end` of another graph than the last four, for more queries than in any step before, beyond
  /// most_queries, and for another rule or memory of q. Before a step for which this rank takes memory for keys, all ranks
  /// have to call stream().forget().
  /// @param end outlives the session, or forgets the stream at its end
  /// @param step that DecodeSession::check() has passed
  /// @throws std::invalid_argument for a mask or a soft cap; std::logic_error if this rank would begin a new graph by itself
  virtual void decode_to(StepEnd& end, const Step& step, const std::function<void()>& progress) = 0;
  /// Takes the memory for decode_to(), so that a rank without memory knows it before others wait for its messages. Begins a
  /// new graph where it has to: not for messages that a library records. @param step as decode_to() @throws without memory
  virtual void prepare(const Step& step) = 0;
};

}  // namespace tree_attn
