// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the kernels of the library are made of, as a concept (section 5).
#pragma once

#include "gpu/parts/join.cuh"
#include "gpu/platform/launch.hpp"

#include <concepts>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// What a device leaves to the plan: how large a block of a pipeline is there.
struct BlockSize {
  int n_threads = 0, n_stages = 0;
  std::size_t n_bytes = 0;   ///< of shared memory, for the pipeline
  int n_scratch_floats = 0;  ///< of scratch()
};

/// LaunchPlan::path of a worker.
template <IsWorker Worker>
inline constexpr const char* kPath = IsMmaTile<Worker> ? "tensor" : "scalar";

/// Shared memory of a kernel beside that of its pipeline: at most four small things, each at a multiple of 128 bytes.
inline constexpr std::size_t kKernelBytes = 4 * 128;

/// The largest block of a pipeline that fits into the shared memory of the device at hand. Its size changes no bit, for
/// leaves have the same sums whichever worker takes them.
template <class Pipeline>
BlockSize fit_block() {
  return Pipeline::fit(device().shared_bytes - kKernelBytes);
}

/// What a kernel is made of: a kind of worker and its way to keys and values. All threads of a block construct one at the
/// start and call it for every range of the block. Its arguments are made on the host, and are a parameter of the kernel
/// that outlives the pipeline.
template <class Pipeline>
concept IsPipeline = IsWorker<typename Pipeline::Worker> &&
    requires(Pipeline pipeline, Arena& arena, const typename Pipeline::Arguments& arguments,
             const typename Pipeline::Params& params, std::int64_t i, KeyRange range, float* forests, std::size_t n_bytes) {
  { Pipeline::fit(n_bytes) } -> std::same_as<BlockSize>;  // on the host: the largest block in so much shared memory
  { Pipeline::arguments(params, /*n_stages*/ 1) } -> std::same_as<typename Pipeline::Arguments>;  // on the host
  Pipeline(arena, arguments);
  { Pipeline::kIsCompiled } -> std::convertible_to<bool>;  // for this architecture
  { Pipeline::kThreads } -> std::convertible_to<int>;      // of a block, at most
  { pipeline.scratch() } -> std::same_as<Scratch>;         // shared memory that is free between two ranges
  Pipeline::publish_scratch();                             // by all threads that wrote it, before the next range
  pipeline(params, /*kv_head*/ i, /*first_row*/ i, range, forests, /*n_forest*/ i);
};

/// Starts the first copies of a range, and waits for the launch before this one, which may still run (LaunchPlan::overlaps):
/// the copies need not wait for what it does not write.
///
/// The contract: until it ends, a launch before this one that may still run writes of the input only queries, and of keys
/// and values those at the last position of a sequence or behind it. Lengths and lists are written by none of them.
/// @param leaves of the range
/// @param n_leaves that the first copies reach at most
/// @param begin starts them
template <class Leaves, class Begin>
__device__ __forceinline__ void begin_early(const Leaves& leaves, int n_leaves, const Begin& begin) {
  if (!leaves.are_older(n_leaves)) wait_for_previous_launch();
  begin();
  wait_for_previous_launch();
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
