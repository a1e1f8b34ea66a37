// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief State blocks in host memory or on a device, and the operations that combine them: what a plan of distributed/ runs
/// on (section 5.3).
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include "gpu/backend/device_stream.hpp"
#include "reference/state/lse.hpp"
#include "reference/tensor/view.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace tree_attn {

/// One array of host or device memory that holds all state blocks of a step, on which a Runner works. An address in it is an
/// offset in elements. For n_rows query rows, all or some of those of a step, a block of states is [n_rows][2 + d_v], of
/// vectors [n_rows][d_v], of scalars [n_rows]. On a device everything is queued on a stream.
class BlockMemory {
 public:
  /// Two blocks of the same width.
  struct Pair {
    std::int64_t left = 0, right = 0;
  };
  enum class Operator { kCopy, kMax, kAdd, kMultiply };

  virtual ~BlockMemory() = default;
  /// Address of an element.
  virtual float* address(std::int64_t at) = 0;
  /// Copies n elements of the same memory.
  virtual void take(std::int64_t at, const float* from, std::int64_t n) = 0;
  /// Copies between tensors of the same axes in the same memory, rounded to the type of `to`.
  virtual void convert(const TensorView& from, const TensorView& to) = 0;
  /// Writes set_from_lse() of every row. @param o [.., .., .., d_v], lse [.., .., .., 1] in the same memory; the states have
  /// the order of their axes
  virtual void set_from_lse(std::int64_t states, const TensorView& o, const TensorView& lse, LseForm form) = 0;
  /// Lets what follows see what the default stream of the device was given before.
  virtual void follow_default() {}
  /// Waits until all that is queued has run.
  virtual void wait() {}

  /// left <- merge(left, right) for blocks of states, pair after pair.
  virtual void merge(std::span<const Pair> pairs, std::int64_t n_rows) = 0;
  /// left <- op(left, right) for n elements each, pair after pair. The maximum is NaN if either is.
  virtual void combine(Operator op, std::span<const Pair> pairs, std::int64_t n) = 0;
  /// Writes the empty state into every row.
  virtual void set_empty(std::int64_t state, std::int64_t n_rows) = 0;
  /// Writes z = n / D and lse of a block of states, or, of two blocks, of merge(left, right). Without sinks states keep
  /// their bits. @param states equal offsets are one block
  /// @param sinks learned logits of the rows, for add_sink(), where the blocks are; null: none
  virtual void finish(Pair states, std::int64_t z, std::int64_t lse, std::int64_t n_rows, const float* sinks = nullptr) = 0;
  /// z <- z exp(lse - m), lse <- exp(lse - m); a shard without keys has weight 0.
  virtual void weigh(std::int64_t z, std::int64_t lse, std::int64_t m, std::int64_t n_rows) = 0;
  /// n <- n / D, D <- m + ln D. @param sinks as finish()
  virtual void divide(std::int64_t n, std::int64_t D, std::int64_t m, std::int64_t n_rows, const float* sinks = nullptr) = 0;
};

/// State blocks in the memory of a device.
class DeviceBlocks : public BlockMemory {
 public:
  /// Waits for all kernels before it copies.
  virtual void upload(std::int64_t at, std::span<const float> elements) = 0;
  /// Waits for all kernels before it copies.
  virtual void download(std::int64_t at, std::span<float> elements) const = 0;
  /// n elements of host memory for give(), until the end or the next call.
  virtual std::span<float> on_host(std::int64_t n) = 0;
  /// Queues a copy to memory of on_host().
  virtual void give(std::int64_t at, std::span<float> to) const = 0;
  /// Copies learned sinks of the rows of a step to the device, unless they are there: then it waits for all kernels before.
  /// @returns where they are until the next call; null: none. A step that was recorded with another address is to be
  /// forgotten
  virtual const float* put_sinks(std::span<const float> of_rows) = 0;
  /// Index of the device that the calling thread uses.
  virtual int device() const = 0;
  /// The stream on which kernels and copies are queued. What is queued there in between is ordered with them.
  virtual DeviceStream& stream() = 0;
  void follow_default() override { stream().follow_default(); }
  void wait() override { stream().wait(); }
};

/// Allocates blocks on a device: emulated::make_blocks() or cuda::make_blocks().
/// @param stream of that device, which outlives the blocks; null: one of their own
/// @param memory of a library, for the elements, which outlives the blocks; null: their own
using MakeBlocks = std::unique_ptr<DeviceBlocks> (*)(std::int64_t n_elements, std::int64_t d_v, DeviceStream* stream,
                                                     void* memory);

/// The device of a backend: where its states lie.
struct DevicePlatform {
  MakeBlocks make_blocks = nullptr;  ///< null if states lie in host memory
  bool is_emulated = false;          ///< whether streams are those of the emulator, which no library but a stand-in takes
  bool operator==(const DevicePlatform&) const = default;
};

namespace emulated {
/// @throws DeviceError
std::unique_ptr<DeviceBlocks> make_blocks(std::int64_t n_elements, std::int64_t d_v, DeviceStream* stream = nullptr,
                                          void* memory = nullptr);
}  // namespace emulated
namespace cuda {
std::unique_ptr<DeviceBlocks> make_blocks(std::int64_t n_elements, std::int64_t d_v, DeviceStream* stream = nullptr,
                                          void* memory = nullptr);
}

}  // namespace tree_attn
