// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 6 of the ladder: elements of 16 bits on tensor cores, and queries that share keys together (section 6.3,
/// grouped heads).
///
/// What changed: a warp serves up to eight queries of one key/value head and multiplies on tensor cores, leaf by leaf.
/// Bytes: every key and value is read once for all queries of a tile, where step 5 read it for each of them; of 32 query and
/// 8 key/value heads a quarter of the bytes is left. Expected: a quarter of the time, where memory limits it. A query that
/// shares its keys with no other has a tile to itself: by the instructions of a leaf that is still faster than memory.
/// Measured: not yet in this form.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/split_kernel.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// The pipeline for a shape and a type that tensor cores multiply.
constexpr auto kWithPipeline = [](const DecodeParams& params, DType dtype, const auto& f) {
  with_type(dtype, [&]<class T>(T) {
    if constexpr (DTypeTraits<T>::kUnit == KernelUnit::TensorCores)
      with_tile<T>(params, [&](auto tile) { with_mma_pipeline<decltype(tile)>(f); });
  });
};

std::string accepts(const DecodeParams& params, DType dtype) {
  if (kernel_unit_of(dtype) == KernelUnit::Scalar)
    return std::string(name_of(dtype)) + " storage: no tensor core keeps its bits";
  if (params.d_h > 256 || params.d_v > 256)
    return "d_h " + std::to_string(params.d_h) + ", d_v " + std::to_string(params.d_v) + ": more than 256";
  return accepts_any_rows(params, dtype);
}

}  // namespace

constinit const LadderStep kTensor = split_step(LadderStep{.name = "tensor",
                                                           .brief = "16 bits on tensor cores",
                                                           .keeps_states = true,
                                                           .n_additions = tensor_additions,
                                                           .refusal = accepts},
                                                kWithPipeline);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
