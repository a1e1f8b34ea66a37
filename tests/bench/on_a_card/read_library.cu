// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernel that only reads, for a process of another library: tests/bench/time_ladder/peers.py loads it, so that
/// their times stand beside a read on the same device, in the same process (section 6).
#include "tests/bench/time_ladder/clocks.cuh"

/// Queues a read on a stream, which may be captured.
/// @param from n_bytes on the device @param sink a word on the device @param n_threads of a block @returns a cudaError_t
extern "C" __attribute__((visibility("default"))) int tree_attn_queue_read(const void* from, std::int64_t n_bytes,
                                                                           void* sink, int n_blocks, int n_threads,
                                                                           void* stream) {
  const auto* const bytes = static_cast<const tree_attn::Bytes16*>(from);
  const std::int64_t n = n_bytes / 16;
  auto* const word = static_cast<std::uint32_t*>(sink);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(n_blocks)), config.blockDim = dim3(static_cast<unsigned>(n_threads));
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, tree_attn::cuda::read_all, bytes, n, word);
}
