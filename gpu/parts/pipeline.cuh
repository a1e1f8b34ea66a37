// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the kernels from step 4 on are made of, as a concept (section 5).
#pragma once

#include "gpu/parts/join.cuh"

#include <concepts>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// What a kernel is made of: a kind of worker and its way to keys and values. All threads of a block construct one at the
/// start and call it for every range of the block. Its arguments are made on the host, and are a parameter of the kernel
/// that outlives the pipeline.
template <class Pipeline>
concept IsPipeline = IsWorker<typename Pipeline::Worker> &&
    requires(Pipeline pipeline, Arena& arena, const typename Pipeline::Arguments& arguments,
             const typename Pipeline::Params& params, std::int64_t i, KeyRange range, float* forests) {
  { Pipeline::arguments(params) } -> std::same_as<typename Pipeline::Arguments>;  // on the host
  Pipeline(arena, arguments);
  { Pipeline::kIsCompiled } -> std::convertible_to<bool>;    // for this architecture
  { Pipeline::kThreads } -> std::convertible_to<int>;        // of a block
  { Pipeline::kWorkers } -> std::convertible_to<int>;        // of a block, that accumulate
  { Pipeline::kStages } -> std::convertible_to<int>;         // copies in flight
  { Pipeline::kBytes } -> std::convertible_to<std::size_t>;  // of shared memory
  { Pipeline::kScratchFloats } -> std::convertible_to<int>;  // of scratch()
  { pipeline.scratch() } -> std::same_as<Scratch>;           // shared memory that is free between two ranges
  Pipeline::publish_scratch();                               // by all threads that wrote it, before the next range
  pipeline(params, /*kv_head*/ i, /*first_row*/ i, range, forests, /*n_forest*/ i);
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
