// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Error that a device, real or emulated, reports.
#pragma once

#include <stdexcept>

namespace tree_attn {

/// A call of the CUDA runtime that failed, or a rule that the emulator saw broken: what, where, by which block and thread.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tree_attn
