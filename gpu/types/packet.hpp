// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Three floats and the step that they belong to, in 16 bytes that arrive together.
#pragma once

namespace tree_attn {

/// Message of 16 bytes that devices send each other: a receiver that finds the step that it waits for has the floats of that
/// step, without a fence or a flag.
struct alignas(16) Packet {
  float element[3];
  unsigned step;
};

}  // namespace tree_attn
