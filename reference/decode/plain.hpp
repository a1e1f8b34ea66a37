// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The decode of a shard, key by key: it defines the bits of the CPU backend (eq. (7), section 5).
///
/// Everything is F32, nothing is fused (-ffp-contract=off), and every sum has the one order that is written here. The loops
/// of the CPU backend have these bits for every type, shape, cut, order of leaves, number of threads and instruction set.
#pragma once

#include "reference/decode/step.hpp"
#include "reference/state/forest.hpp"
#include "reference/state/owned_leaves.hpp"
#include "reference/state/score_scale.hpp"
#include "reference/tensor/convert.hpp"

#include <cmath>
#include <vector>

namespace tree_attn::plain {

/// q.k of rows that are padded with zeros to a multiple of 32.
inline float dot(const std::vector<float>& q, const std::vector<float>& k, bool in_pairs) {
  // Add the products in sixteen lanes: element i in lane i mod 16; of BF16 and F8_E4M3, two neighbours share one.
  std::vector<float> lane(16, -0.0f);
  for (std::size_t i = 0; i < q.size(); ++i) lane[(in_pairs ? i / 2 : i) % 16] += k[i] * q[i];
  // Add the lanes: 8 + 8, 4 + 4, then neighbours.
  for (std::size_t i = 0; i < 8; ++i) lane[i] += lane[i + 8];
  for (std::size_t i = 0; i < 4; ++i) lane[i] += lane[i + 4];
  return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

/// The states of the maximal subtrees of a range, for every query: row (i, h, j) is (i n_h + h) l + j.
///
/// Edges: a key that the step hides is not read, and the value of a key whose score is -inf is not; a leaf of which no key
/// is seen is empty. A score of +inf or NaN makes D and n NaN. Values of Inf and NaN follow the formula.
/// @param step what queries see; add_sink() and the scales of values come after the last merge @param scale factor of q.k
/// @param k, v [b, n_kv, n, d_h] and [b, n_kv, n, d_v], row a is the key at leaves.position(a) @param key_scale KvScales::k
/// @paper{eq_7, eq. (7)}
inline Forest<float> decode(const Step& step, const TensorView& k, const TensorView& v, const OwnedLeaves& leaves,
                            double scale, std::span<const float> key_scale = {}) {
  const auto [b, n_h, l, d_h] = step.q.shape;
  const std::int64_t n_kv = k.shape[1], d_v = v.shape[3], longest = step.longest();
  const KeyRange range = closed(leaves.range(), longest);
  std::vector<float> query(static_cast<std::size_t>((d_h + 31) / 32 * 32)), key(query), x[kLeafKeys];
  Forest<float> forest(b * n_h * l, d_v);
  for (std::int64_t at = range.begin; at < range.end; at = forest.subtrees().back().end()) {
    // Take the next leaf, or, if no sequence reaches its first key, the largest subtree that begins with it: that is empty.
    // A leaf in which the range ends is several subtrees: the first has the sums of all of its keys, the others are empty.
    const std::int64_t first = leaf_of(leaves.order(), at / kLeafKeys) * kLeafKeys + at % kLeafKeys;
    const Subtree subtree = first_subtree(at, first < longest ? std::min(at + kLeafKeys, range.end) : range.end);
    const std::int64_t row = leaves.n_keys(first), n_keys = at % kLeafKeys > 0 ? 0 : kLeafKeys;
    float* state = forest.next();
    for (std::int64_t r = 0; r < forest.n_rows(); ++r, state += state_size(d_v)) {
      const std::int64_t i = r / (n_h * l), h = r / l % n_h, g = h / (n_h / n_kv);
      const Seen seen = step.seen(i, r % l);
      const ScoreScale c = split_scale(scale * (key_scale.empty() ? 1.0 : double{key_scale[i * n_kv + g]}));
      const std::int64_t n = std::min(n_keys, leaves.n_keys(seen.end) - row);

      // s_a = log2(e) scale q.k_a, and the shift of the leaf: e = max_a ceil(s_a).
      load_row(step.q, i, h, r % l, query.data());
      for (float& q_j : query) q_j *= c.query;
      float s[kLeafKeys], e = -INFINITY;
      for (std::int64_t a = 0; a < n; ++a) {
        if (s[a] = -INFINITY; !seen.contains(first + a)) continue;
        load_row(k, i, g, row + a, key.data());
        s[a] = SoftCap(step.softcap)(c.score * dot(query, key, sums_in_pairs(k.dtype)));
        s[a] = step.mask.add(s[a], static_cast<float>(kLog2E), i, h, r % l, first + a);
        e = std::max(e, key_shift(s[a]));
      }

      // x_a = w_a (1, v_a) with w_a = 2^(s_a - e); where no key is seen it is zero, of the sign that changes no sum.
      for (std::vector<float>& x_a : x) x_a.assign(static_cast<std::size_t>(1 + d_v), -0.0f), x_a[0] = 0;
      for (std::int64_t a = 0; a < n; ++a) {
        if (s[a] == -INFINITY) continue;
        const float w = exp2_fraction(s[a] - key_shift(s[a])) * pow2(key_shift(s[a]) - e);
        load_row(v, i, g, row + a, x[a].data() + 1), x[a][0] = 1;
        for (float& x_j : x[a]) x_j *= w;
      }

      // (D, n) = sum_a x_a over the tree of the leaf.
      for (std::int64_t m = kLeafKeys / 2; m > 0; m /= 2)
        for (std::int64_t a = 0; a < m; ++a)
          for (std::size_t j = 0; j < x[a].size(); ++j) x[a][j] = x[2 * a][j] + x[2 * a + 1][j];
      state[kShift] = e, std::copy(x[0].begin(), x[0].end(), state + kSum);
    }
    forest.push(subtree);
  }
  return forest;
}

}  // namespace tree_attn::plain
