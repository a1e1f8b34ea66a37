// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the runtime and the driver share.
#pragma once

#include "tree_attn/tests/gpu/soft_gpu/machine.hpp"
#include "tree_attn/tests/gpu/soft_gpu/streams.hpp"

#include <optional>

namespace tree_attn::soft_gpu {

/// What a device has, by the tables of compute capability 8.0 and 9.0.
struct DeviceFacts {
  std::uint32_t shared_of_multiprocessor, shared_of_block;
};
inline DeviceFacts facts() {
  return settings().major >= 9 ? DeviceFacts{228 << 10, 227 << 10} : DeviceFacts{164 << 10, 163 << 10};
}
constexpr std::uint32_t kSharedWithoutAsking = 48 << 10, kReserved = 1 << 10;

Context& primary_context(int device);
/// That of this host thread.
Context& current_context();
void set_context(Context& context);
const char* device_name();
/// A call of the driver by its name; nullptr if it is none of those here.
void* driver_function(const char* name);

}  // namespace tree_attn::soft_gpu
