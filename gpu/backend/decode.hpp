// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels as the rest of the tree sees them: reference/decode/decode.hpp on a device, real or emulated (section 5).
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "reference/decode/decode.hpp"

namespace tree_attn {

/// The kernels of one platform.
struct KernelBackend {
  /// What runs them: the name of the GPU, or "emulator". @throws DeviceError if there is no device
  std::string (*device_name)();
  /// Why no kernel takes such shapes, in a few words; empty if one does.
  std::string (*refusal)(const TensorView& q, const TensorView& k, const TensorView& v);
  /// As decode_shard() of reference/decode/decode.hpp, by the library kernel. Copies q, k and v to the device and the forest back.
  /// F16 takes no lift, whatever is asked for: values of at most 65504 do not overflow, and lifted weights would underflow.
  /// @throws DeviceError if the shape is one that no kernel takes, or the device fails
  Forest<float> (*decode_shard)(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                                const std::function<void()>& progress, int lift);
  /// Positions at whose multiples shards may be cut without changing a bit: 1 where teams are at work, for their tree goes
  /// down to single keys; 64 on tensor cores, which add up a leaf in an order of their own. A function of types and shapes.
  std::int64_t (*leaf_length)(const TensorView& q, const TensorView& k, const TensorView& v);
  /// What the launch layer picks for a shard, in one line.
  std::string (*describe)(const TensorView& q, const Shard& shard);
};

namespace emulated {
/// The emulator's.
extern const KernelBackend kBackend;
}
namespace cuda {
/// Those that nvcc has compiled.
extern const KernelBackend kBackend;
}

}  // namespace tree_attn
