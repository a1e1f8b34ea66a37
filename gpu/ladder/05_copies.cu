// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 5 of the ladder: copies in the background, in a ring of stages (section 6.3: decoding waits for memory).
///
/// What changed: eight keys and eight values are copied to shared memory two steps before they are used. On compute
/// capability 9 each sub-warp has one lane start two bulk copies per step, which tell an mbarrier when they have arrived; no
/// lane computes the address of a row. Elsewhere, and for rows that are strided, short or not aligned, every lane copies
/// what it will read itself (cp.async): an address per copy, and for short rows and positions without a key a number of
/// bytes too.
/// Bytes: the same.
/// Expected: 128 KiB per multiprocessor in flight at all times, where 25 to 35 are needed, and for BF16 less than half of
/// the instructions. Measured: not yet in this form.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/split_kernel.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr auto kWithPipeline = [](const DecodeParams& params, DType dtype, const auto& f) {
  with_sub_warp(params, dtype, [&](auto sub_warp) { f(std::type_identity<SubWarpPipeline<decltype(sub_warp)>>{}); });
};

}  // namespace

constinit const LadderStep kCopies = split_step(LadderStep{.name = "copies",
                                                           .brief = "copies in the background, in a ring of stages",
                                                           .keeps_states = true,
                                                           .n_additions = leaf_additions,
                                                           .refusal = accepts_any_rows},
                                                kWithPipeline);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
