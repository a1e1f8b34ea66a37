// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief All backends by name: the CPU, the kernels on a GPU, and the kernels under the emulator.
///
/// No CUDA header is included here, so that any compiler may; what was not built in is not there to link.
#pragma once

#include "gpu/backend/blocks.hpp"
#include "reference/decode/backend.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace tree_attn {

namespace emulated {
/// The kernels under the emulator.
const Backend& backend();
}  // namespace emulated
namespace cuda {
/// The kernels that nvcc has compiled.
const Backend& backend();
}  // namespace cuda

/// All backends that were built in.
std::span<const Backend* const> backends();
/// Names that find_backend() knows, also of those that were not built in.
std::span<const std::string_view> backend_names();
/// The backend of that name, whether it can be used on this machine or not; null if it was not built in. Asks no device.
const Backend* built_backend(std::string_view name);
/// The backend of that name. One rank of several lets built_backend() use its GPU first, see Backend::missing().
/// @param n_threads of each session on the CPU
/// @throws InputError if it is unknown, not built in, or cannot be used on this machine: with what is missing
const Backend& find_backend(std::string_view name, int n_threads = 1);

/// Kernels and graphs that this host thread has launched so far, a graph once and not its kernels.
std::int64_t launches_of_thread();

/// The device of a backend.
DevicePlatform platform_of(const Backend& backend);

}  // namespace tree_attn
