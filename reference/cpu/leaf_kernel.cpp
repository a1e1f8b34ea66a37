// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The loops of the CPU decode. CMake compiles this file once per instruction set, with that set in
/// TREE_ATTN_INSTRUCTION_SET. No symbol but TREE_ATTN_LEAF_KERNEL may leave the object file, see lanes.hpp.
#define TREE_ATTN_HOST_DEVICE __attribute__((always_inline))
#include "reference/cpu/leaf_kernel.hpp"

#include "reference/cpu/leaf.hpp"
#include "reference/state/state.hpp"

namespace tree_attn {
namespace {

using namespace lanes;

/// As merge(), whose `out` is `left`. Both sides are multiplied, one of them by 1: a processor cannot predict which shift is
/// larger, and a branch on it takes longer. Nothing is fused in this file, so the bits are those of merge_element().
void merge_states(const float* left, const float* right, float* out, std::int64_t n, std::int64_t d_v) {
  const std::int64_t size = state_size(d_v);
  for (; n > 0; --n, left += size, right += size, out += size) {
    const Rescale<float> r = rescale(left[kShift], right[kShift]);
    const float of_left = r.right_is_high ? r.factor : 1, of_right = r.right_is_high ? 1 : r.factor;
    out[kShift] = r.shift;
#pragma GCC ivdep  // element i of `out` overlaps no other element of the two
    for (std::int64_t i = kSum; i < size; ++i) out[i] = of_left * left[i] + of_right * right[i];
  }
}

/// Copies n elements, at most a pair.
TREE_ATTN_INLINE void copy_pair(const float* from, std::int64_t n, float* to) {
  if (n >= kPairElements)
    __builtin_memcpy(to, from, kPairElements * sizeof(float));  // of a size that the compiler knows
  else
    __builtin_memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
}

void unpack(const float* packed, DType value_type, std::int64_t n, std::int64_t d_v, float* states) {
  with_dtype(value_type, [&]<class T>(T) {
    for (; n > 0; --n, packed += state_size(packed_size(d_v)), states += state_size(d_v)) {
      states[kShift] = packed[kShift], states[kSum] = packed[kSum];
      for (std::int64_t i = 0; i < d_v; i += kPairElements) {
        float pair[kPairElements];
        for (int j = 0; j < kPairElements; ++j) pair[j] = packed[kValues + i + lane_of<T>(j)];
        copy_pair(pair, d_v - i, states + kValues + i);
      }
    }
  });
}

/// The loops over one chunk.
///
/// All weights are computed before the first value is read, so that memory is read in two long streams. Those of two leaves
/// follow their scores: the processor computes them while the keys of the next leaf are on their way. With a pass of their
/// own, in which nothing is read, the decode of BF16 was 3 % slower.
class ChunkLoop {
 public:
  /// @param states as LeafKernel::states(): those that are kept apart are written there at once
  ChunkLoop(const Chunk& chunk, float* workspace, float* states)
      : chunk_(chunk),
        d_v_(packed_size(chunk.d_v)),
        q_stride_(packed_size(chunk.d_h)),
        n_leaves_(chunk.n_leaves),
        s_stride_(n_leaves_ * kLeafKeys),
        block_(workspace),
        scores_(workspace + block_floats(chunk.d_h)),
        weights_(scores_ + chunk.n_queries * s_stride_),
        counter_(chunk.apart ? states : weights_ + kLeafWeights * chunk.n_queries * n_leaves_) {}

  /// The scores of all leaves, turned into weights.
  template <class T>
  __attribute__((noinline)) void score() {
    for (std::int64_t leaf = 0; leaf < n_leaves_; ++leaf) {
      const LeafRows& at = chunk_.leaves[leaf];
      if (!at.is_hidden) scores_of_leaf<T>(rows(leaf, at.k, at.k_stride), scores_ + leaf * kLeafKeys);
      if ((leaf & 1) != 0 || leaf + 1 == n_leaves_) weigh_leaves(leaf & ~std::int64_t{1}, leaf + 1);
    }
  }

  /// The states of the leaves, merged as their subtrees fill, or written one by one.
  template <class T>
  __attribute__((noinline)) void sum() {
    for (std::int64_t leaf = 0; leaf < n_leaves_; ++leaf) {
      bool all_seen = true;
      for (std::int64_t j = 0; j < chunk_.n_queries; ++j) {
        const float* const of_leaf = weights_of(leaf, j);
        float* const state = held(n_held_) + j * state_floats();
        state[kShift] = of_leaf[kShift], state[kSum] = of_leaf[kSum];
        all_seen = all_seen && of_leaf[kAllSeen] > 0;
      }
      const float* const w = scores_ + leaf * kLeafKeys;
      const LeafRows& at = chunk_.leaves[leaf];
      const Rows values = rows(leaf, at.v, at.v_stride);
      if (at.is_hidden)
        for (std::int64_t j = 0; j < chunk_.n_queries; ++j) set_empty(held(n_held_) + j * state_floats(), d_v_);
      else if (all_seen)
        values_of_leaf<T, true>(values, w);
      else
        values_of_leaf<T, false>(values, w);
      ++n_held_;
      for (std::int64_t i = leaf; !chunk_.apart && (i & 1) != 0; i >>= 1) merge_last_two();
    }
  }

  /// The packed states of all leaves, merged.
  const float* merged() {
    while (n_held_ > 1) merge_last_two();
    return counter_;
  }

 private:
  static constexpr std::int64_t kAllSeen = kValues;  ///< after the shift and the sum, where a state has its values
  std::int64_t keys_of(std::int64_t leaf) const {
    const std::int64_t rest = chunk_.n_keys - leaf * kLeafKeys;
    return rest < kLeafKeys ? rest : kLeafKeys;
  }
  Rows rows(std::int64_t leaf, const std::byte* first, std::int64_t stride) const {
    return {first, stride, keys_of(leaf) - 1};
  }
  /// Caps the scores of a query, and adds its mask.
  void cap_and_mask(std::int64_t leaf, std::int64_t j, float* s) const {
    const LeafRows& at = chunk_.leaves[leaf];
    if (at.is_hidden) return;
    if (chunk_.cap > 0) soft_cap(s, chunk_.cap, chunk_.cap_inverse);
    const std::int64_t n = chunk_.masks == nullptr ? 0 : keys_of(leaf);
    for (std::int64_t a = 0; a < n; ++a) {
      const std::byte* const mask = chunk_.masks[j];
      if (chunk_.is_boolean) {
        if (mask[at.position + a] == std::byte{0}) s[a] = -__builtin_inff();
      } else {
        float element;
        __builtin_memcpy(&element, mask + (at.position + a) * static_cast<std::int64_t>(sizeof element), sizeof element);
        s[a] = s[a] + static_cast<float>(kLog2E) * element;
      }
    }
  }
  /// Makes the scores of the keys that a query does not see -inf.
  static void hide(const Seen& seen, const LeafRows& at, float* s) {
    if (at.position >= seen.begin && at.position + kLeafKeys <= seen.end && !at.is_hidden) return;
    for (std::int64_t a = 0; a < kLeafKeys; ++a) {
      if (at.is_hidden || !seen.contains(at.position + a)) s[a] = -__builtin_inff();
    }
  }
  /// Turns the scores of some leaves into weights. The steps of one leaf are a chain of dependent operations; the leaves
  /// take each step in turn, so that one chain fills the waits of another.
  __attribute__((noinline)) void weigh_leaves(std::int64_t begin, std::int64_t end) {
    const auto each_leaf = [&](const auto& step) TREE_ATTN_LAMBDA {
      for (std::int64_t j = 0; j < chunk_.n_queries; ++j) {
        for (std::int64_t leaf = begin; leaf < end; ++leaf)
          step(leaf, j, scores_ + leaf * kLeafKeys + j * s_stride_, weights_of(leaf, j));
      }
    };
    each_leaf([&](std::int64_t leaf, std::int64_t j, float* s, float* of_leaf) TREE_ATTN_LAMBDA {
      cap_and_mask(leaf, j, s);
      for (std::int64_t a = keys_of(leaf); a < kLeafKeys; ++a) s[a] = -__builtin_inff();
      if (chunk_.seen != nullptr) hide(chunk_.seen[j % chunk_.n_rules], chunk_.leaves[leaf], s);
      const LeafShift leaf_shift = shift_of(s);
      of_leaf[kShift] = leaf_shift.shift, of_leaf[kAllSeen] = leaf_shift.all_seen ? 1 : 0;
    });
    each_leaf([&](std::int64_t, std::int64_t, float* s, float* of_leaf) TREE_ATTN_LAMBDA { weigh(s, of_leaf[kShift]); });
    each_leaf([&](std::int64_t, std::int64_t, float* s, float* of_leaf)
                  TREE_ATTN_LAMBDA { of_leaf[kSum] = sum_of_weights(s); });
  }

  std::int64_t state_floats() const { return state_size(d_v_); }
  /// The shift of a leaf's weights for a query, their sum, and whether all its keys are seen.
  float* weights_of(std::int64_t leaf, std::int64_t j) const {
    return weights_ + kLeafWeights * (leaf * chunk_.n_queries + j);
  }
  float* held(std::int64_t i) const { return counter_ + i * chunk_.n_queries * state_floats(); }

  /// The scores of one leaf for all queries. Rows of 64 and 128 elements have a length that the compiler knows, where there
  /// is one query, except those of F64, whose speed does not matter.
  template <class T>
  TREE_ATTN_INLINE void scores_of_leaf(Rows keys, float* s) {
    const auto single = [&]<int kPairs>()
                            TREE_ATTN_LAMBDA { scores<T, kPairs>(keys, chunk_.d_h, chunk_.queries, chunk_.score_scale, s); };
    if (chunk_.n_queries == 1) {
      if constexpr (sizeof(T) <= sizeof(float)) {
        if (chunk_.d_h == 2 * kPairElements) return single.template operator()<2>();
        if (chunk_.d_h == 4 * kPairElements) return single.template operator()<4>();
      }
      return single.template operator()<0>();
    }
    const auto group = [&]<int kQueries>() TREE_ATTN_LAMBDA {
      for (int a = 0; a < kKeys; a += kBlock) {
        scores_of_queries<T, true, kQueries>(keys, a, chunk_.d_h, 0, s + a);
        if (chunk_.n_queries > kQueries) scores_of_others(keys, a, kQueries, s + a);
      }
    };
    chunk_.n_queries < 4 ? group.template operator()<2>() : group.template operator()<4>();
  }
  template <class T, bool kRequests, int kQueries>
  TREE_ATTN_INLINE void scores_of_queries(Rows keys, std::int64_t a, std::int64_t d_h, std::int64_t j, float* s) const {
    scores_of_block<T, kRequests, kQueries>(keys, a, d_h, chunk_.queries + j * q_stride_, q_stride_, chunk_.score_scale,
                                            s + j * s_stride_, s_stride_,
                                            j == 0 && chunk_.n_queries > kQueries ? block_ : nullptr);
  }
  /// The scores of the queries from j on, with keys of F32 or those that the first queries have left in block_.
  __attribute__((noinline)) void scores_of_others(Rows keys, std::int64_t a, std::int64_t j, float* s) const {
    const bool in_place = chunk_.key_type == DType::F32;
    const Rows rows = in_place ? keys
                               : Rows{reinterpret_cast<const std::byte*>(block_),
                                      q_stride_ * static_cast<std::int64_t>(sizeof(float)), kBlock - 1};
    const std::int64_t first = in_place ? a : 0, d_h = in_place ? chunk_.d_h : q_stride_;
    const auto queries = [&]<int kQueries>() TREE_ATTN_LAMBDA {
      for (; j + kQueries <= chunk_.n_queries; j += kQueries)
        scores_of_queries<float, false, kQueries>(rows, first, d_h, j, s);
    };
    queries.template operator()<4>(), queries.template operator()<2>(), queries.template operator()<1>();
  }

  /// n of one leaf for all queries, block by block of the elements.
  /// @tparam kAll whether all queries see all keys
  template <class T, bool kAll>
  TREE_ATTN_INLINE void values_of_leaf(Rows values, const float* w) {
    float* const n = held(n_held_) + kValues;
    std::int64_t done = 0;
    if constexpr (kAll && sizeof(T) <= sizeof(float)) {  // other leaves are few
      const auto single = [&]<int kPairs>() TREE_ATTN_LAMBDA {
        for (; chunk_.n_queries == 1 && done + (kPairs > 1 ? kPairs * kPairElements : 1) <= chunk_.d_v;
             done += kPairs * kPairElements)
          weighted_sum<T, kPairs>(values.template from<T>(done), chunk_.d_v - done, w, n + done);
      };
      single.template operator()<4>(), single.template operator()<2>(), single.template operator()<1>();
    }
    while (done < chunk_.d_v) {
      const std::int64_t rest = chunk_.d_v - done, whole = (rest < kPassElements ? rest : kPassElements) / kPairElements;
      Rows rows = values.template from<T>(done);
      alignas(64) std::byte last_pair[kKeys][kPairBytes<T>];
      if (whole == 0) {  // what there is of it, then zeros
        for (int a = 0; a < kKeys; ++a) copy_rest<T>(rows[a], rest, last_pair[a]);
        rows = {last_pair[0], kPairBytes<T>, rows.last};
      }
      const std::int64_t n_pairs = whole == 0 ? 1 : whole;
      for (std::int64_t j = 0; j < chunk_.n_queries; j += kGroup) {
        const std::int64_t n_queries = chunk_.n_queries - j < kGroup ? chunk_.n_queries - j : kGroup;
        alignas(64) GroupSums waiting;
        for (int a = 0; a < kKeys; a += kHeld) {
          std::int64_t i = 0;
          const auto queries = [&]<int kQueries>() TREE_ATTN_LAMBDA {
            for (; i + kQueries <= n_queries; i += kQueries)
              weighted_sums<T, kAll, kQueries>(rows, a, n_pairs, w + (j + i) * s_stride_ + a, s_stride_, waiting[0][i],
                                               n + (j + i) * state_floats() + done, state_floats());
          };
          if constexpr (kAll) queries.template operator()<4>(), queries.template operator()<2>();
          queries.template operator()<1>();
        }
      }
      done += n_pairs * kPairElements;
    }
  }
  void merge_last_two() {
    --n_held_;
    merge_states(held(n_held_ - 1), held(n_held_), held(n_held_ - 1), chunk_.n_queries, d_v_);
  }

  const Chunk& chunk_;
  std::int64_t d_v_, q_stride_, n_leaves_, s_stride_;
  float *block_, *scores_, *weights_, *counter_;
  std::int64_t n_held_ = 0;
};

void states(const Chunk& chunk, float* workspace, float* states) {
  ChunkLoop loop(chunk, workspace, states);
  with_dtype(chunk.key_type, [&]<class T>(T) { loop.score<T>(); });
  with_dtype(chunk.value_type, [&]<class T>(T) { loop.sum<T>(); });
  if (!chunk.apart) unpack(loop.merged(), chunk.value_type, chunk.n_queries, chunk.d_v, states);
}

void finish_states(const float* states, std::int64_t n, std::int64_t d_v, float* z, float* lse) {
  for (; n > 0; --n, states += state_size(d_v), z += d_v) *lse++ = finish(states, z, d_v);
}

/// n of merge(left, right), component by component.
struct MergedValues {
  Rescale<float> scale;
  const float *left, *right;  ///< states
  TREE_ATTN_INLINE float operator[](std::int64_t j) const {
    return merge_element(scale, left[kValues + j], right[kValues + j]);
  }
};

void finish_merged(const float* left, const float* right, std::int64_t n, std::int64_t d_v, float* z, float* lse) {
  const std::int64_t size = state_size(d_v);
  for (; n > 0; --n, left += size, right += size, z += d_v) {
    const Rescale<float> scale = rescale(left[kShift], right[kShift]);
    *lse++ = finish_values({scale.shift, merge_element(scale, left[kSum], right[kSum])}, MergedValues{scale, left, right}, z,
                           d_v);
  }
}

void pack_query(const float* q, std::int64_t d_h, DType key_type, float scale, float* packed) {
  with_dtype(key_type, [&]<class T>(T) {
    for (std::int64_t i = 0; i < d_h; i += kPairElements) {
      float pair[kPairElements] = {};
      copy_pair(q + i, d_h - i, pair);
      for (int j = 0; j < kPairElements; ++j) packed[i + lane_of<T>(j)] = i + j < d_h ? pair[j] * scale : 0;
    }
  });
}

}  // namespace

extern const LeafKernel TREE_ATTN_LEAF_KERNEL;
const LeafKernel TREE_ATTN_LEAF_KERNEL{
    TREE_ATTN_INSTRUCTION_SET, pack_query, states, merge_states, finish_states, finish_merged, unpack};

}  // namespace tree_attn
