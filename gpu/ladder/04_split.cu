// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Step 4 of the ladder: the keys of a query are split over blocks, and the last block to finish merges (section 5,
/// Alg. 3).
///
/// What changed: a grid of splits times queries. Each block leaves the forest of its split in the workspace and counts
/// itself; the last one joins the forests of all. This is the tree over devices, inside one. Without the counter a second
/// launch would merge. Bytes: the same, and a few states per split. Expected: as many blocks as the device can hold,
/// whatever the number of queries. Measured: not yet in this form.
#include "gpu/ladder/ladder.hpp"
#include "gpu/parts/split_kernel.cuh"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Sub-warps that read rows straight from global memory: eight keys, then eight values, then on.
template <IsSubWarp SubWarp>
class PlainPipeline {
 public:
  using Worker = SubWarp;
  using Params = DecodeParams;
  struct Arguments {};
  static constexpr bool kIsCompiled = true;
  static constexpr int kThreads = 256, kScratchFloats = static_cast<int>(kScratchBytes / sizeof(float));

  static BlockSize fit(std::size_t) { return {kThreads, 0, kScratchBytes, kScratchFloats}; }
  static Arguments arguments(const DecodeParams&, int) { return {}; }
  __device__ __forceinline__ PlainPipeline(Arena& arena, const Arguments&) : memory_(arena.take<float>(kScratchFloats)) {}
  __device__ __forceinline__ Scratch scratch() const { return {memory_, kScratchFloats}; }
  __device__ __forceinline__ static void publish_scratch() {}
  __device__ __forceinline__ void operator()(const DecodeParams& params, std::int64_t kv_head, std::int64_t first_row,
                                             KeyRange range, float* forests, std::int64_t n_forest) {
    const int worker = worker_of<SubWarp>(threadIdx.x);
    const KeySteps<> steps(split_range(range, worker, n_workers_of<SubWarp>(kThreads)), params.in_use(kv_head));
    GlobalSource<SubWarp> rows(params, kv_head, steps.leaves());
    accumulate_keys<SubWarp>(params, kv_head, first_row, steps, forests + worker * n_forest, rows);
  }

 private:
  Shared<float> memory_;
};

constexpr auto kWithPipeline = [](const DecodeParams& params, DType dtype, const auto& f) {
  with_sub_warp(params, dtype, [&](auto sub_warp) { f(std::type_identity<PlainPipeline<decltype(sub_warp)>>{}); });
};

}  // namespace

constinit const LadderStep kSplit = split_step(LadderStep{.name = "split",
                                                          .brief = "keys split over blocks, the last block merges",
                                                          .n_additions = leaf_additions,
                                                          .refusal = accepts_aligned_rows},
                                               kWithPipeline);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
