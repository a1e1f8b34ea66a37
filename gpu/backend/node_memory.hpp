// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory of all devices of a node that a library such as NCCL lets their kernels reach.
#pragma once

namespace tree_attn {

/// Memory of equal size on the device of every rank of a node, until the end of this object.
class NodeMemory {
 public:
  virtual ~NodeMemory() = default;
  /// The bytes of a rank, at the address that kernels of this rank use.
  virtual void* of(int rank) const = 0;
};

}  // namespace tree_attn
