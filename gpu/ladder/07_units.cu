// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rung 7 of the ladder: rings of boxes, units of work, and a launch that combines them (sections 5 and 6.3).
/// Compute capability 9.0.
///
/// It has the bits of rung 6, for BF16 in rows of up to 128 elements, and decides none. What changed:
/// - A warp has a ring of boxes. One lane starts the copy of all keys of a leaf, or of all values, by an instruction for
///   each box, and none looks at the values: a leaf whose sums are not finite is multiplied once more.
/// - The leaves are cut into *units*, aligned subtrees of 2^c, and all units of all queries into equal runs, one for each
///   warp of the device. A unit leaves one state for each query; no warp is the last, and no counter says so.
/// - A second launch combines the units of a query: eight warps, which load and merge eight states at once each.
///
/// Floor: that of rung 6; 16 heads on 16 of 128, 8k keys: 67.1 MB, 14.4 us on an H200. Prediction: a kernel that only reads
/// takes 17 us; the first copies and the products of the last leaf are 2 us more, and what combines them, a launch and two
/// trips through L2, 3 us: 22 us. Not measured.
#include "gpu/ladder/ladder.hpp"
#include "gpu/platform/device.hpp"
#include "reference/state/state.hpp"

#include <algorithm>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

using T = BFloat16;
constexpr int kWarp = 32, kKeys = static_cast<int>(kLeafKeys), kRows = 8;  // lanes; keys of a leaf; queries of a tile
// Elements of a padded row; components of a lane for one query; and its part of a state.
constexpr int kDim = 128, kElements = kDim / 8, kState = kValues + kElements;
// 16-byte vectors of a row of a box, and of a box; boxes of the keys of a leaf, or of its values; a ring of so many.
constexpr int kRowVectors = kBoxRowBytes / 16, kBoxVectors = kKeys * kRowVectors, kBoxes = kDim / kBoxColumns, kStages = 3;
constexpr int kStageVectors = kBoxes * kBoxVectors, kRingVectors = kStages * kStageVectors;
// Warps of a block that walks, and of one that combines; units of a query at most; floats of a state before components.
constexpr int kMostWarps = 4, kCombining = 8, kMostUnits = 512, kFirst = 4;

/// Keys and values as the copy engine knows them.
struct Maps {
  TensorMap k, v;
};

/// The work of a step. A work item is a unit and a query tile; they are numbered sequence by sequence, tile by tile and from
/// left to right, and each has memory for its states, n_rows of n_state floats: shift, sum, two of padding, components.
struct Division {
  int log = 0;                                 ///< c
  Count n_tiles = 1, n_rows = 1, n_state = 0;  ///< tiles of a kv head; rows and floats of a work item
  Count n_units = 0;                           ///< of a query, at most

  /// States that the passes of combine_units() leave, at most: of the last ones two each.
  TREE_ATTN_HOST_DEVICE int n_parked() const { return static_cast<int>(n_units / 8 + n_units / 64 + n_units / 512 + 24); }

  /// Units of a sequence that have leaves, counted from position 0; and its work items.
  __device__ KeyRange units(const DecodeParams& params, Count entry) const {
    const KeyRange leaves = params.leaves_by_entry(entry);
    if (leaves.empty()) return {0, 0};
    return {leaf_at(leaves.begin) >> log, (leaf_at(leaves.end - 1) >> log) + 1};
  }
  __device__ Count n_items(const DecodeParams& params, Count entry) const {
    return Count(params.kv_heads) * n_tiles * Count(units(params, entry).size());
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/// Neighbouring work items of one query tile, for one warp.
struct Run {
  Count kv_head, first_row, last_item, first, last;  ///< last_item and last are past the end; leaves [first, last)
  int n_rows;                                        ///< queries of the tile

  __device__ Run(const DecodeParams& params, const Division& division, Count item, Count end) {
    Count entry = 0, before = 0;
    for (Count n; item >= before + (n = division.n_items(params, entry)); ++entry) before += n;
    const KeyRange units = division.units(params, entry), leaves = params.leaves_by_entry(entry);
    const Count size = Count(units.size()), tile = (item - before) / size, unit = (item - before) % size;
    kv_head = entry * Count(params.kv_heads) + tile / division.n_tiles, first_row = tile % division.n_tiles * kRows;
    last_item = item + size - unit < end ? item + size - unit : end;
    n_rows = params.group - first_row < kRows ? static_cast<int>(params.group - first_row) : kRows;
    const auto leaf_of = [&](std::int64_t i) { return (units.begin + i) << division.log; };
    const std::int64_t begin = leaf_of(unit), past = leaf_of(unit + (last_item - item));
    first = Count(begin > leaf_at(leaves.begin) ? begin : leaf_at(leaves.begin));
    last = Count(past < leaf_at(leaves.end) ? past : leaf_at(leaves.end));
  }
};

/// A weight as its lower, middle and upper eight bits, as in rung 6; and the weight 2^(scale x - e).
__device__ void split_weight(float w, T (&parts)[3]) {
  for (int i = 2; i >= 0; --i) parts[i] = {static_cast<std::uint16_t>(bits_of(w) >> 16)}, w -= widen(parts[i]);
}
__device__ float weight(float x, float scale, float e) {
  const float origin = 0x1.8p23f - e, whole = fused_multiply_add(x, scale, origin);
  const float p = exp2_polynomial(fused_multiply_add(x, scale, origin - whole), true);
  return whole < 0x1.8p23f - 126 ? 0.0f : multiply(p, float_of((bits_of(whole) << 23) + bits_of(1.0f)));
}

/// A warp, its ring, and a run. A lane has kElements components of the state of each of two queries.
struct Walk {
  using Scores = float[kKeys / 16][4];              ///< or weights, as in rung 6
  using Weights = std::uint32_t[kKeys / 16][3][2];  ///< their parts as right operands, small ones first
  using Sums = float[kDim / 16][4];
  using States = float[2][kState];

  const DecodeParams& params;
  const Maps& maps;
  const Run& run;
  Shared<Bytes16> ring;  ///< [kStages][kBoxes] boxes
  Shared<Barrier> full;  ///< [kStages]
  float* stack;          ///< states that wait in a unit, [levels][2][kState][lanes]
  int &stage, &parity;   ///< of the next to be read
  std::uint32_t q[kDim / 16][2];

  __device__ static int lane() { return static_cast<int>(threadIdx.x % kWarp); }
  __device__ static int row(int query) { return lane() % 4 * 2 + query; }
  __device__ static int component(int c) { return c / 2 * 16 + c % 2 * 8 + lane() / 4; }

  /// Starts to fill a stage with the i-th of the run: the keys of a leaf, its values, the keys of the next.
  __device__ void start(int i, int to) const {
    const Count leaf = run.first + Count(i / 2);
    if (leaf >= run.last || !elect_one()) return;
    barrier_arrive_expect(full + to, kStageVectors * static_cast<int>(sizeof(Bytes16)));
    TREE_ATTN_UNROLL
    for (int box = 0; box < kBoxes; ++box)
      bulk_copy_tensor<T>(ring + (to * kStageVectors + box * kBoxVectors), i % 2 == 0 ? maps.k : maps.v, box * kBoxColumns,
                          static_cast<int>(leaf * kLeafKeys - params.begin), static_cast<int>(params.head_of(run.kv_head)),
                          static_cast<int>(params.entry_of(run.kv_head)), full + to, CacheHint::EvictFirst);
  }
  /// The next stage, once it is there; and says that it has been read, so that it is filled with what comes a ring later.
  __device__ Shared<Bytes16> next() const {
    barrier_wait(full + stage, parity);
    return ring + stage * kStageVectors;
  }
  __device__ void release(int i) {
    __syncwarp();
    start(i + kStages, stage);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }

  /// Loads the queries as right operands of K Q^T, as rung 6.
  __device__ void load_queries() {
    const float scale = params.score_scale == 0 ? 0.0f : std::copysign(params.query_scale, params.score_scale);
    const std::int64_t r = std::int64_t{run.first_row} + lane() / 4;
    TREE_ATTN_UNROLL
    for (int i = 0; i < kDim / 8; ++i) {
      T pair[2] = {};
      for (int c = 0, j = 8 * i + lane() % 4 * 2; c < 2 && r < params.group && j + c < params.d_h; ++c)
        pair[c] = narrow<T>(scale * widen(load_once(params.query<T>(run.kv_head, r) + j + c)));
      q[i / 2][i % 2] = pack(pair[0], pair[1]);
    }
  }
  /// S^T = K Q^T.
  __device__ void multiply_keys(Shared<Bytes16> keys, Scores& s) const {
    TREE_ATTN_UNROLL
    for (int step = 0; step < kDim / 16; ++step) {
      const int unit = step % 4 * 2 + lane() / 16, key = lane() % 16;
      const Shared<Bytes16> matrix = keys + (step / 4 * kBoxVectors + key * kRowVectors + swizzled_unit(key, unit));
      std::uint32_t k[kKeys / 16][4];
      load_matrices_x4(k, [&](int i) { return matrix + 16 * kRowVectors * i; });
      mma_16x8x16<T>(s, k, q + step);
    }
  }
  /// Turns products into weights, and sets the shift and the sum of a state, as rung 6.
  /// @paper{eq_7, eq. (7)}
  __device__ void weigh(Count leaf, int query, Scores& s, float* state) const {
    const float scale = params.score_scale == 0 ? 1.0f : std::fabs(params.score_scale);
    const std::int64_t n_left = params.in_use(run.kv_head).end - leaf * kLeafKeys;
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < kKeys / 8; ++i) {
      float& x = s[i / 2][i % 2 * 2 + query];
      if (8 * i + lane() / 4 >= n_left) x = -INFINITY;
      largest = std::fmax(largest, x);
    }
    for (int flip = 4; flip < kWarp; flip *= 2) largest = std::fmax(largest, __shfl_xor_sync(0xFFFFFFFF, largest, flip));
    const float e = std::ceil(multiply(scale, largest)) + 0.0f;
    for (int i = 0; i < kKeys / 8; ++i) {
      float& x = s[i / 2][i % 2 * 2 + query];
      const float rounded = multiply(scale, x);
      const float w = std::fabs(e) < 0x1p22f ? weight(x, scale, e) : weight(rounded - e, 1, 0);
      x = rounded == -INFINITY ? -0.0f : w;
      sum += x;
    }
    for (int flip = 4; flip < kWarp; flip *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, flip);
    state[kShift] = e, state[kSum] = sum;
  }
  /// The parts of the weights, as in rung 6.
  __device__ static void split(const Scores& s, Weights& weights) {
    for (int i = 0; i < kKeys / 8; ++i) {
      T left[3], right[3];
      split_weight(s[i / 2][i % 2 * 2], left), split_weight(s[i / 2][i % 2 * 2 + 1], right);
      for (int j = 0; j < 3; ++j) weights[i / 2][j][i % 2] = pack(left[j], right[j]);
    }
    transpose_matrices<kKeys / 8 * 3>(weights[0][0]);
  }
  /// O^T = V^T P^T. @returns whether all sums are finite: 0 times any other is NaN
  __device__ bool multiply_values(Shared<Bytes16> values, const Weights& weights, Sums& o) const {
    float zero = 0;
    TREE_ATTN_UNROLL
    for (int step = 0; step < kDim / 16; step += 4) {
      for (int i = 0; i < 16; ++i) o[step + i / 4][i % 4] = 0;
      for (int i = 0; i < kKeys / 16; ++i) {
        const int key = 16 * i + lane() / 16 * 8 + lane() % 8;
        const Shared<Bytes16> keys = values + (step / 4 * kBoxVectors + key * kRowVectors);
        std::uint32_t v[4][4];
        load_matrices_x4_transposed(v, [&](int j) { return keys + swizzled_unit(key, 2 * j + lane() / 8 % 2); });
        mma_16x8x16<T, 3>(o + step, v, weights[i]);
      }
      for (int i = 0; i < 16; ++i) zero = fused_multiply_add(0.0f, o[step + i / 4][i % 4], zero);
    }
    return __all_sync(0xFFFFFFFF, zero == 0) != 0;
  }
  /// Puts zeros in place of values that are not finite; they are added one by one, in their components alone.
  __device__ void take_out_not_finite(Shared<Bytes16> values) const {
    __syncwarp();
    for (int i = lane(); i < kStageVectors; i += kWarp) {
      Bytes16 bytes = load16(values + i);
      for (int c = 0; c < 8; ++c)
        if ((~bytes.word[c / 2] >> c % 2 * 16 & 0x7F80) == 0) bytes.word[c / 2] &= 0xFFFF0000u >> c % 2 * 16;
      store16(values + i, bytes);
    }
    async_proxy_fence();
    __syncwarp();
  }
  __device__ void add_not_finite(Count leaf, const Scores& s, Sums& o) const {
    for (int key = 0; key < kKeys; ++key) {
      const T* const value = params.value<T>(run.kv_head, leaf * kLeafKeys + key);
      for (int query = 0; query < 2; ++query) {
        float w = 0;  // the weight is with one of the eight lanes of the query
        for (int i = 0; i < kKeys / 8; ++i) w = i == key / 8 ? s[i / 2][i % 2 * 2 + query] : w;
        w = __shfl_sync(0xFFFFFFFF, w, key % 8 * 4 + lane() % 4);
        TREE_ATTN_UNROLL
        for (int c = 0; c < kElements; ++c) {
          if (row(query) >= run.n_rows || bits_of(w) == bits_of(-0.0f) || component(c) >= params.d_v) continue;
          const float x = widen(load_once(value + component(c)));
          if (!(std::fabs(x) < INFINITY)) o[c / 2][c % 2 * 2 + query] += multiply(w, x);
        }
      }
    }
  }

  /// Appends the state of a leaf for one query to the tree of its unit, a binary counter: it merges with what waits at the
  /// levels below that at which it parts from the next leaf, and waits there; or it ends the unit, whose memory is `to`.
  /// @paper{thm_1, Thm. 1}
  __device__ void push(Count leaf, bool ends, Count waits, int query, float* state, float* to, Count n_state) const {
    const auto waiting = [&](int level, int c) { return stack + ((level * 2 + query) * kState + c) * kWarp + lane(); };
    int level = 0;
    for (; ends ? waits >> level != 0 : (leaf >> level & 1) != 0; ++level) {
      if ((waits >> level & 1) == 0) continue;
      const Rescale<float> r = rescale(load_fresh(waiting(level, kShift)), state[kShift]);
      state[kShift] = r.shift;
      TREE_ATTN_UNROLL
      for (int c = kSum; c < kState; ++c) state[c] = merge_element(r, load_fresh(waiting(level, c)), state[c]);
    }
    TREE_ATTN_UNROLL
    for (int c = 0; c < kState && !ends; ++c) store_fresh(waiting(level, c), state[c]);
    if (!ends) return;
    to += row(query) * n_state;
    if (lane() / 4 == 0) store_fresh16(to, {{bits_of(state[kShift]), bits_of(state[kSum]), 0, 0}});
    TREE_ATTN_UNROLL
    for (int c = 0; c < kElements; ++c)
      if (kFirst + component(c) < static_cast<int>(n_state)) store_fresh(to + kFirst + component(c), state[kValues + c]);
  }

  /// Walks over the leaves of the run. @param to the states of its units
  __device__ void over_leaves(const Division& division, float* to) {
    for (int i = 0; i < kStages; ++i) start(i, stage + i < kStages ? stage + i : stage + i - kStages);
    load_queries();
    Count waits = 0;  // bit h: a subtree of level h, in leaves, waits for its right sibling
    for (Count leaf = run.first; leaf < run.last; ++leaf) {
      const int i = 2 * static_cast<int>(leaf - run.first);
      Scores s = {};
      multiply_keys(next(), s);
      release(i);
      States states;
      TREE_ATTN_UNROLL
      for (int query = 0; query < 2; ++query)
        if (query < run.n_rows) weigh(leaf, query, s, states[query]);
      Weights weights;
      Sums o;
      split(s, weights);
      const Shared<Bytes16> values = next();
      bool adds_more = false;
      while (!multiply_values(values, weights, o) && !adds_more) take_out_not_finite(values), adds_more = true;
      if (adds_more) add_not_finite(leaf, s, o);
      release(i + 1);

      const Count parts = ~leaf & (leaf + 1);  // the lowest bit that is not set
      const bool ends = leaf + 1 == run.last || parts >> division.log != 0;
      TREE_ATTN_UNROLL
      for (int query = 0; query < 2; ++query) {
        if (row(query) >= run.n_rows) continue;
        TREE_ATTN_UNROLL
        for (int c = 0; c < kElements; ++c) states[query][kValues + c] = o[c / 2][c % 2 * 2 + query];
        push(leaf, ends, waits, query, states[query], to, division.n_state);
      }
      waits = ends ? 0 : (waits & ~(parts - 1)) | parts;
      if (ends) to += division.n_rows * division.n_state;
      __syncwarp();
    }
  }
};
#endif

/// Walks over all work items. @param stacks n_stack floats for each warp @param units states of the work items
/// - Grid: a block for each multiprocessor.
/// - Block: warps, each with its ring; a warp of all takes a run of the work items that is as long as any, up to one.
/// - Reads: queries, keys, values, lengths.
/// - Writes: a state for each unit and query.
/// @paper{alg_3, Alg. 3}
__global__ void __launch_bounds__(kMostWarps* kWarp, 1)
    walk_units(DecodeParams params, const __grid_constant__ Maps maps, Division division, float* stacks,
               std::int64_t n_stack, float* units) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  launch_dependents();
  const int n_warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  Arena arena;
  const Shared<Bytes16> ring = arena.take<Bytes16>(n_warps * kRingVectors, kBoxAlignment);
  const Shared<Barrier> full = arena.take<Barrier>(n_warps * kStages) + warp * kStages;
  if (Walk::lane() == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(full + i, 1);
    barrier_fence_init();
  }
  __syncwarp();
  wait_for_previous_launch();

  // The work items of this warp.
  std::uint64_t n_items = 0;
  for (Count entry = 0; entry < params.batch; ++entry) n_items += division.n_items(params, entry);
  const Count n_all = gridDim.x * Count(n_warps), own = blockIdx.x * Count(n_warps) + Count(warp),
              end = Count(n_items * (own + 1) / n_all);
  int stage = 0, parity = 0;
  for (Count item = Count(n_items * own / n_all); item < end;) {
    const Run run(params, division, item, end);
    Walk walk{params, maps, run, ring + warp * kRingVectors, full, stacks + own * n_stack, stage, parity, {}};
    walk.over_leaves(division, units + std::int64_t{item} * division.n_rows * division.n_state);
    item = run.last_item;
  }
#endif
}

/// Combines the units of a query: in each pass eight neighbours become one. Slots without a unit are empty, which is neutral
/// bit for bit. A lane has the shift, the sum and every 32nd component.
/// - Grid: [n_rows].
/// - Block: kCombining warps; shared memory for the states that a pass leaves to the next.
/// - Reads: states of units, lengths.
/// - Writes: z [n_rows][d_v] and lse [n_rows].
/// @paper{alg_3, Alg. 3}
__global__ void __launch_bounds__(kCombining* kWarp)
    combine_units(DecodeParams params, Division division, const float* units, DeviceOutput output) {
  constexpr int kOwn = kDim / kWarp;
  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const Count kv_head = blockIdx.x / Count(params.group), r = blockIdx.x % Count(params.group),
              entry = params.entry_of(kv_head);
  KeyRange nodes = division.units(params, entry);
  Count item = (params.head_of(kv_head) * division.n_tiles + r / kRows) * Count(nodes.size());
  for (Count i = 0; i < entry; ++i) item += division.n_items(params, i);
  const float* const of_row = units + (std::int64_t{item} * division.n_rows + r % kRows) * division.n_state;
  Shared<float> to = Arena().take<float>(division.n_parked() * division.n_state), from = to;
  const auto at = [&](int c) { return c < kValues ? c : kFirst + (c - kValues) * kWarp + lane; };
  wait_for_previous_launch();

  float s[8][kValues + kOwn];
  for (bool of_units = true; of_units || nodes.size() > 1; of_units = false) {
    const KeyRange next{nodes.begin >> 3, (nodes.end + 7) >> 3};
    for (std::int64_t node = next.begin + warp; node < next.end; node += kCombining) {
      TREE_ATTN_UNROLL
      for (int i = 0; i < 8; ++i) {
        set_empty(s[i], kOwn);
        const std::int64_t own = 8 * node + i - nodes.begin;
        TREE_ATTN_UNROLL
        for (int c = 0; c < kValues + kOwn; ++c) {
          if (own < 0 || own >= nodes.size() || at(c) >= static_cast<int>(division.n_state)) continue;
          s[i][c] = of_units ? load_fresh(of_row + own * division.n_rows * division.n_state + at(c))
                             : from[static_cast<int>(own * division.n_state) + at(c)];
        }
      }
      TREE_ATTN_UNROLL
      for (int distance = 1; distance < 8; distance *= 2) TREE_ATTN_UNROLL
      for (int i = 0; i < 8; i += 2 * distance) merge(s[i], s[i + distance], kOwn);
      TREE_ATTN_UNROLL
      for (int c = 0; c < kValues + kOwn; ++c) {
        if ((c >= kValues || lane == 0) && at(c) < static_cast<int>(division.n_state))
          to[static_cast<int>((node - next.begin) * division.n_state) + at(c)] = s[0][c];
      }
    }
    __syncthreads();
    from = to, to = to + static_cast<int>(next.size() * division.n_state), nodes = next;
  }

  // The state of all units is that of the last eight, of the first warp.
  if (warp > 0) return;
  if (nodes.empty()) set_empty(s[0], kOwn);
  if (lane == 0) store_fresh(output.lse + blockIdx.x, finish_lse(s[0]));
  TREE_ATTN_UNROLL
  for (int c = kValues; c < kValues + kOwn; ++c) {
    const int component = at(c) - kFirst;
    if (component < params.d_v)
      store_fresh(output.out + std::int64_t{blockIdx.x} * params.d_v + component, finish_value(s[0], s[0][c]));
  }
}

/// Floats in which states wait in the units of a warp.
std::int64_t n_stack(const Division& division) { return std::int64_t{division.log} * 2 * kState * kWarp; }

/// The division for full capacity: the smallest units of which there are at most four for each warp, and kMostUnits for
/// each query.
Division divide(const DecodeParams& params, const LaunchPlan& plan) {
  Division division{.log = std::max(0, plan.unit_log)};
  division.n_tiles = Count((params.group + kRows - 1) / kRows);
  division.n_rows = Count(std::min<std::int64_t>(params.group, kRows));
  division.n_state = Count(kFirst + (params.d_v + 3) / 4 * 4);
  const std::int64_t n_leaves = leaves_of({params.begin, params.end}), n_tiles = params.batch_kv_heads() * division.n_tiles,
                     most = plan.unit_log < 0 ? 4 * plan.n_blocks * plan.n_threads / kWarp : n_tiles * n_leaves;
  while (n_tiles * (n_leaves >> division.log) > most || n_leaves >> division.log > kMostUnits) ++division.log;
  division.n_units = Count((n_leaves >> division.log) + 2);
  return division;
}

/// A block for each multiprocessor, of as many warps as have room for their rings.
LaunchPlan plan(const DecodeParams& params, DType, const LaunchOptions& options) {
  const auto bytes_of = [](int n) { return n * kRingVectors * sizeof(Bytes16) + kBoxAlignment + 128; };
  LaunchPlan plan{.n_splits = std::max(1, options.n_splits),
                  .n_stages = kStages,
                  .unit_log = options.unit_log,
                  .overlaps = true,
                  .path = "tensor"};
  int n_warps = kMostWarps;
  while (n_warps > 1 && bytes_of(n_warps) > device().shared_bytes) n_warps /= 2;
  plan.n_threads = n_warps * kWarp, plan.shared_bytes = bytes_of(n_warps);
  const std::int64_t n_tiles = params.batch_kv_heads() * ((params.group + kRows - 1) / kRows);
  plan.n_blocks = options.n_splits > 0 ? static_cast<int>(options.n_splits * n_tiles) : device().n_multiprocessors;
  const Division division = divide(params, plan);
  plan.n_floats =
      plan.n_blocks * n_warps * n_stack(division) + n_tiles * division.n_units * division.n_rows * division.n_state;
  return plan;
}

void run(const DecodeParams& params, DType dtype, const DeviceOutput& output, const LaunchPlan& plan,
         const Workspace& workspace, Stream stream) {
  if (output.out == nullptr) throw DeviceError("units: keeps no states, only finished rows");
  Maps maps;
  const auto encode = [&](const DeviceView& view, int d, TensorMap& map) {
    const auto& [entry, head, position] = view.stride;
    const std::int64_t n = params.rows_end() - params.begin;
    encode_tensor_map({view.data, dtype, {params.batch, params.kv_heads, n, d}, {entry, head, position}, kKeys}, &map);
  };
  if (params.rows_end() > params.begin) {
    encode(params.k, params.d_h, maps.k);
    params.d_v > 0 ? encode(params.v, params.d_v, maps.v) : encode(params.k, params.d_h, maps.v);
  }
  const Division division = divide(params, plan);
  float* const units = workspace.floats + plan.n_blocks * plan.n_threads / kWarp * n_stack(division);
  Launch walk{.grid = {unsigned(plan.n_blocks)}, .block = {unsigned(plan.n_threads)}};
  walk.shared_bytes = plan.shared_bytes, walk.overlaps = plan.overlaps;
  launch(walk_units, walk, stream, params, maps, division, workspace.floats, n_stack(division), units);
  Launch combine{.grid = {unsigned(params.n_rows())}, .block = {kCombining * kWarp}};
  combine.shared_bytes = division.n_parked() * division.n_state * sizeof(float), combine.overlaps = plan.overlaps;
  combine.continues = true;
  launch(combine_units, combine, stream, params, division, units, output);
}

std::string accepts(const DecodeParams& params, DType dtype) {
  if (const std::string refusal = accepts_tensor_rows(params, dtype); !refusal.empty()) return refusal;
  if (dtype != DType::BF16) return std::string(name_of(dtype)) + " storage";
  if (params.d_h > kDim || params.d_v > kDim) return "rows of more than " + std::to_string(kDim);
  return device().major >= 9 ? "" : "no tensor maps on compute capability " + std::to_string(device().major);
}

}  // namespace

const LadderStep kUnits{.name = "units", .n_additions = n_additions, .refusal = accepts, .plan = plan, .run = run};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
