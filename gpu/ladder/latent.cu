// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 8 of the ladder: many queries of latent rows, by warpgroups (section 6.3, MLA). Compute capability 9.0.
///
/// It has the bits of rung 6, for any number of queries. What changed: a block of four warpgroups serves 16 or 32 queries,
/// 16 in F16. A leaf of 64 keys is in shared memory once, as tensor maps leave it, and is both sides of the step: its keys
/// are the rows of S^T = K Q^T, and their first 512 elements, transposed, those of O^T = V^T P^T. The first warpgroup
/// multiplies keys, and makes weights; each of the four multiplies 128 components, with the parts of the weights from shared
/// memory, in the order of rung 6. Products go on by themselves: while those of a leaf's values are made, the first
/// warpgroup has the scores of the next leaf, and the leaf after it is on its way.
///
/// Floor: every key once for 32 queries; 128 heads, 64k keys in BF16: 75.5 MB four times, 302 MB, most of it from L2.
/// Prediction: a leaf is 132 products of 64 x 32 x 16, about 24 cycles each where both sides come from shared memory; 4,096
/// of them on 132 multiprocessors 55 us, and states of every leaf in memory as much again. Not measured.
#include "gpu/ladder/latent_block.cuh"

#include <algorithm>
#include <bit>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace latent {
namespace {

/// The states of the subtrees that cover a range of leaves, left to right, in global memory, as in rung 6.
template <class Block>
struct Subtrees {
  using States = typename Block::States;

  float* memory;       ///< [subtrees][Block::kState]: components [elements of a thread][threads], shifts and sums
  std::int64_t begin;  ///< of the range
  int size = 0;

  /// The first component of this thread; opaque, so that no address is kept in registers from leaf to leaf.
  __device__ float* at(int i) const { return memory + i * Block::kState + opaque(Block::thread()); }
  __device__ float* rows(int i, int of) const { return memory + i * Block::kState + Block::kOwn + of * Block::kRows; }
  /// Merges the last subtree, which is on the left of the states, into them: merge() of state.hpp, element by element.
  __device__ void pop_into(States& states) {
    --size;
    Rescale<float> r[Block::kSlots];
    TREE_ATTN_UNROLL
    for (int slot = 0; slot < Block::kSlots; ++slot) {
      r[slot] = rescale(load_fresh(rows(size, 0) + Block::row(slot)), states.shift[slot]);
      states.shift[slot] = r[slot].shift;
    }
    const float* const left = at(size);
    Block::for_each(states.n,
                    [&](float& n, int i) { n = merge_element(r[Block::slot(i)], load_fresh(left + i * kThreads), n); });
    if (int(threadIdx.x) >= Block::kRows) return;
    const Rescale<float> own = rescale(load_fresh(rows(size, 0) + threadIdx.x), states.own_shift);
    states.own_sum = merge_element(own, load_fresh(rows(size, 1) + threadIdx.x), states.own_sum);
    states.own_shift = own.shift;
  }
  /// Appends a subtree, and merges while the last one is a right sibling, as a binary counter carries. Shifts are read by
  /// other threads than wrote them.
  /// @paper{thm_1, Thm. 1}
  __device__ void push(Subtree subtree, States& states) {
    for (; (subtree.index & 1) != 0 && subtree.parent().begin() >= begin; subtree = subtree.parent()) pop_into(states);
    __syncthreads();
    float* const to = at(size);
    Block::for_each(states.n, [&](float& n, int i) { store_fresh(to + i * kThreads, n); });
    if (int(threadIdx.x) < Block::kRows)
      store_fresh(rows(size, 0) + threadIdx.x, states.own_shift), store_fresh(rows(size, 1) + threadIdx.x, states.own_sum);
    __syncthreads();
    ++size;
  }
};

/// A split of a query tile. @param forests n_forest floats each @param counters one per tile, zero before and after
/// @tparam B a Block, of a stored type and 16 or 32 queries
/// - Grid: [n_splits][query tiles].
/// - Block: four warpgroups; shared memory for two leaves and the operands beside them.
/// - Reads: q, the keys of the split; the last block of a tile also the forests of all of its splits.
/// - Writes: its forest; the last block of a tile z [n_rows][d_v] and lse [n_rows].
/// @paper{alg_3, Alg. 3}
template <class B>
__global__ void __launch_bounds__(kThreads, 1)
    decode_latent(DecodeParams params, const __grid_constant__ TensorMap map, DeviceOutput output, float* forests,
                  std::int64_t n_forest, unsigned* counters) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const int n_splits = int(gridDim.x);
  const Count n_tiles = Count(params.group + B::kRows - 1) / B::kRows, kv_head = blockIdx.y / n_tiles,
              first_row = blockIdx.y % n_tiles * B::kRows;
  const KeyRange whole = params.leaves(kv_head), own = split_range(whole, int(blockIdx.x), n_splits);
  const int n_leaves = static_cast<int>(leaf_at(own.end - own.begin + kKeys - 1));
  Arena arena;
  const Shared<Bytes16> keys = arena.take<Bytes16>(B::kKeyVectors, kBoxAlignment),
                        queries = arena.take<Bytes16>(B::kQueryVectors, kBoxAlignment),
                        parts = arena.take<Bytes16>(B::kPartVectors, kBoxAlignment);
  const Shared<float> weights = arena.take<float>(B::kWeightFloats), rows = arena.take<float>(B::kStateFloats);
  const B block{params,
                map,
                kv_head,
                first_row,
                params.in_use(kv_head),
                own,
                keys,
                queries,
                parts,
                weights,
                rows,
                rows + 8 * B::kRows,
                arena.take<Barrier>(kStages),
                arena.take<int>(2 * kThreads / kWarp)};
  const Shared<int> is_last = arena.take<int>(1);
  if (B::thread() == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(block.full + i, 1);
    barrier_fence_init();
    for (int leaf = 0; leaf < kStages && leaf < n_leaves; ++leaf) block.start(leaf);
  }
  block.load_queries();
  async_proxy_fence();
  __syncthreads();

  // The leaves of this split, and the tree above them.
  typename B::States states;
  float* const of_tile = forests + blockIdx.y * n_splits * n_forest;
  Subtrees<B> subtrees{of_tile + blockIdx.x * n_forest, own.begin};
  const auto push = [&](int leaf) { subtrees.push({kLeafLevel, leaf_at(block.position(leaf))}, states); };
  if (B::group() == 0 && n_leaves > 0) {
    float s[B::kEights][4] = {};
    barrier_wait(block.full, 0);
    block.multiply_keys(0, s);
    wgmma_wait<0>(s);
    block.weigh(0, s);
  }
  __syncthreads();
  for (int leaf = 0; leaf < n_leaves; ++leaf) {
    if (B::group() == 0 && leaf + 1 < n_leaves)
      block.template step<true>(leaf, n_leaves, states);
    else
      block.template step<false>(leaf, n_leaves, states);
    push(leaf);
  }

  // The last block of the tile goes on, and sees what all have written.
  if (B::thread() == 0) *is_last = atomic_inc_acq_rel(counters + blockIdx.y, gridDim.x - 1) == gridDim.x - 1 ? 1 : 0;
  __syncthreads();
  if (*is_last == 0) return;

  // It joins the subtrees of all splits, left to right, in place: it never has more of them than it has read.
  const auto clear = [&] {
    B::for_each(states.n, [](float& n, int) { n = -0.0f; });
    for (float& shift : states.shift) shift = -INFINITY;
    states.own_shift = -INFINITY, states.own_sum = 0;
  };
  Subtrees<B> all{of_tile, whole.begin};
  for (int i = 0; i < n_splits; ++i) {
    KeyRange rest = split_range(whole, i, n_splits);
    for (int j = 0; !rest.empty(); ++j) {
      const Subtree next = first_subtree(rest.begin, rest.end);
      clear(), Subtrees<B>{of_tile + i * n_forest, 0, j + 1}.pop_into(states);
      all.push(next, states);
      rest.begin = next.end();
    }
  }

  // What is left is merged from right to left, and finished.
  clear();
  while (all.size > 0) all.pop_into(states);
  if (B::thread() < B::kRows) rows[B::thread()] = states.own_shift, rows[B::kRows + B::thread()] = states.own_sum;
  __syncthreads();
  const auto row_of = [&](int r) { return kv_head * params.group + std::int64_t{first_row} + r; };
  B::for_each(states.n, [&](float& n, int i) {
    const int r = B::row(B::slot(i));
    const float state[2] = {rows[r], rows[B::kRows + r]};
    if (std::int64_t{first_row} + r < params.group && B::component(i) < params.d_v)
      store_fresh(output.out + row_of(r) * params.d_v + B::component(i), finish_value(state, n));
  });
  const float state[2] = {states.own_shift, states.own_sum};
  if (B::thread() < B::kRows && std::int64_t{first_row} + B::thread() < params.group)
    store_fresh(output.lse + row_of(B::thread()), finish_lse(state));
#endif
}

/// Keys as the copy engine knows them.
TensorArray array_of(const DecodeParams& params, DType dtype) {
  const auto& [entry, head, position] = params.k.stride;
  return {params.k.data,
          dtype,
          {params.batch, params.kv_heads, params.rows_end() - params.begin, params.d_h},
          {entry, head, position},
          kKeys};
}

std::string accepts(const DecodeParams& params, DType dtype) {
  if (const std::string refusal = accepts_tensor_rows(params, dtype); !refusal.empty()) return refusal;
  if (device().major != 9) return "no warpgroups on compute capability " + std::to_string(device().major);
  if (params.d_h <= 256 || params.d_v > params.d_h || params.k.data != params.v.data ||
      !std::equal(params.k.stride, params.k.stride + 3, params.v.stride))
    return "no latent rows: values are the first components of keys of more than 256";
  return refusal(array_of(params, dtype));
}

/// Calls f with the block for a type and so many rows. F16, whose parts are in two units, leaves registers for 16.
template <class F>
void with_block(const DecodeParams& params, DType dtype, const F& f) {
  with_step_type(dtype, [&]<class T>(T) {
    if constexpr (DTypeTraits<T>::kUnit == KernelUnit::TensorCores) {
      if constexpr (!kIsHalf<T>) {
        if (params.group > 16) return f(std::type_identity<Block<T, 32>>{});
      }
      f(std::type_identity<Block<T, 16>>{});
    }
  });
}

/// A block per multiprocessor, as far as there are leaves.
LaunchPlan plan(const DecodeParams& params, DType dtype, const LaunchOptions& options) {
  LaunchPlan plan{.n_threads = kThreads, .n_stages = kStages, .path = "tensor"};
  with_block(params, dtype, [&]<class B>(std::type_identity<B>) {
    const std::int64_t n_leaves = leaves_of({params.begin, params.end}),
                       n_tiles = params.batch_kv_heads() * ((params.group + B::kRows - 1) / B::kRows),
                       n_fill = device().n_multiprocessors / std::max<std::int64_t>(1, n_tiles);
    plan.n_splits =
        static_cast<int>(options.n_splits > 0 ? options.n_splits : std::clamp<std::int64_t>(n_fill, 1, n_leaves));
    plan.n_counters = n_tiles;
    plan.n_floats = n_tiles * plan.n_splits * 2 * std::bit_width(std::uint64_t(n_leaves)) * B::kState;
    plan.shared_bytes = B::kSharedBytes;
  });
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (output.out == nullptr) throw DeviceError("latent: keeps no states, only finished rows");
  with_block(params, dtype, [&]<class B>(std::type_identity<B>) {
    TensorMap map;
    encode_tensor_map(array_of(params, dtype), &map);
    const dim3 grid{unsigned(plan.n_splits), unsigned(plan.n_counters)};
    launch(decode_latent<B>, {.grid = grid, .block = {kThreads}, .shared_bytes = plan.shared_bytes}, stream, params, map,
           output, workspace.floats, plan.n_floats / (plan.n_counters * plan.n_splits), workspace.counters);
  });
}

}  // namespace
}  // namespace latent

const LadderStep kLatent{
    .name = "latent", .n_additions = tensor_additions, .refusal = latent::accepts, .plan = latent::plan, .run = latent::run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
