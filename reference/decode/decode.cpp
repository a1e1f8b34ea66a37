// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streaming decode of a shard.
#include "reference/decode/decode.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <limits>

#include "reference/state/merges_together.hpp"
#include "reference/state/score_scale.hpp"

namespace tree_attn {
namespace {

/// Partial sums of a dot product. They are added in a fixed order, so a score is a function of q and k alone: not of the
/// place of the key in a block, nor of the vector length of the processor that the compiler has in mind.
constexpr int kLanes = 32;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t padded(std::int64_t d) { return (d + kLanes - 1) / kLanes * kLanes; }

/// Some elements side by side.
template <int kWidth>
using Floats = Eigen::Array<float, kWidth, 1>;

/// The sum of 2^n elements: the upper half is added to the lower half, until one element is left. Eigen's sum() would add in
/// an order that follows the vector length.
template <int kWidth>
float sum_by_halves(const Floats<kWidth>& x) {
  if constexpr (kWidth == 1) {
    return x[0];
  } else {
    return sum_by_halves<kWidth / 2>(x.template head<kWidth / 2>() + x.template tail<kWidth / 2>());
  }
}

/// a.b over a multiple of kLanes numbers; rows are padded with zeros on both sides.
float dot(const float* a, const float* b, std::int64_t d_padded) {
  using Lanes = Floats<kLanes>;
  Lanes sums = Lanes::Zero();
  for (std::int64_t i = 0; i < d_padded; i += kLanes) sums += Eigen::Map<const Lanes>(a + i) * Eigen::Map<const Lanes>(b + i);
  return sum_by_halves<kLanes>(sums);
}

/// The state of eight neighbouring keys, the first at a multiple of eight: the same merges in the same order as key by key, but
/// the numbers on the way stay in registers. This file is compiled without contraction to fused multiply-add, which would
/// skip the rounding of weight * v.
/// @pre no score is -inf: such a key's value must not be looked at
void set_keys_together(float* __restrict state, const float* s, const float* __restrict v, std::int64_t d_v, float lift) {
  float shift[kTogether], weight[kTogether];
  for (int i = 0; i < kTogether; ++i) shift[i] = key_shift(s[i]) + lift, weight[i] = key_weight(s[i]) * pow2(-lift);
  const MergesTogether<float> merges(shift);
  state[kShift] = shift[0];
  state[kSum] = merges.value([&](int i) { return weight[i]; });

  // Components of n side by side, then those that are left over.
  using Numbers = Floats<16>;
  std::int64_t j = 0;
  for (; j + Numbers::SizeAtCompileTime <= d_v; j += Numbers::SizeAtCompileTime) {
    Eigen::Map<Numbers>(state + kValues + j) = merges.value([&](int i) { return Numbers(weight[i] * Eigen::Map<const Numbers>(v + i * d_v + j)); });
  }
  for (; j < d_v; ++j) state[kValues + j] = merges.value([&](int i) { return weight[i] * v[i * d_v + j]; });
}

/// The stream over one key/value head: its queries, the leaf at hand, and one binary counter a query.
class HeadStream {
 public:
  HeadStream(std::int64_t n_queries, std::int64_t d_h, std::int64_t d_v, double scale, int lift)
      : d_h_(padded(d_h)),
        d_v_(d_v),
        scale_(split_scale(scale)),
        lift_(static_cast<float>(lift)),
        q_(static_cast<std::size_t>(n_queries * d_h_)),
        k_(static_cast<std::size_t>(kLeafKeys * d_h_)),
        v_(static_cast<std::size_t>(kLeafKeys * d_v)),
        counters_(static_cast<std::size_t>(n_queries), Forest<float>(1, d_v)) {}

  /// Reads the query of row r of the group: row (i, h, j) of q.
  void read_query(std::int64_t r, const TensorView& q, std::int64_t i, std::int64_t h, std::int64_t j) {
    float* const row = q_.data() + r * d_h_;
    load_row(q, i, h, j, row);
    for (std::int64_t c = 0; c < q.shape[3]; ++c) row[c] *= scale_.query;
  }

  /// Reads the rows [first, first + n) of k and v once, for all queries of the group.
  void read_leaf(const Shard& shard, std::int64_t i, std::int64_t h, std::int64_t first, std::int64_t n) {
    for (std::int64_t a = 0; a < n; ++a) {
      load_row(shard.k, i, h, first + a, k_.data() + a * d_h_);
      load_row(shard.v, i, h, first + a, v_.data() + a * d_v_);
    }
  }

  /// Lets the n keys of the leaf, at positions from `position` on, climb the tree of every query.
  void climb(std::int64_t position, std::int64_t n) {
    for (std::size_t r = 0; r < counters_.size(); ++r) {
      float s[kLeafKeys];
      for (std::int64_t a = 0; a < n; ++a) s[a] = score(r, a);
      for (std::int64_t a = 0; a < n;) {
        const float* v = v_.data() + a * d_v_;
        const bool together = (position + a) % kTogether == 0 && a + kTogether <= n &&
                              std::none_of(s + a, s + a + kTogether, [](float score) { return score == -kInfinity; });
        if (together) {
          set_keys_together(counters_[r].slot(), s + a, v, d_v_, lift_);
          counters_[r].push({kTogetherLevel, (position + a) / kTogether});
          a += kTogether;
        } else {
          set_key(counters_[r].slot(), s[a], v, d_v_, lift_);
          counters_[r].push({0, position + a});
          a += 1;
        }
      }
    }
  }

  /// The state of query r over a sequence of one key.
  void take_single_key(std::size_t r, float* state) const { set_single_key(state, score(r, 0), v_.data(), d_v_); }

  /// Hands on the state of query r and starts afresh.
  void take(std::size_t r, float* state) {
    const std::span<const float> folded = counters_[r].fold();
    std::copy(folded.begin(), folded.end(), state);
    counters_[r].clear();
  }

 private:
  float score(std::size_t r, std::int64_t a) const {
    return scale_.score * dot(q_.data() + static_cast<std::int64_t>(r) * d_h_, k_.data() + a * d_h_, d_h_);
  }

  std::int64_t d_h_, d_v_;
  ScoreScale scale_;
  float lift_;
  std::vector<float> q_, k_, v_;
  std::vector<Forest<float>> counters_;
};

}  // namespace

Forest<float> decode_shard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                           const std::function<void()>& progress, int lift) {
  const auto [b, n_h, l, d_h] = q.shape;
  const std::int64_t n_kv = shard.k.shape[1], d_v = shard.v.shape[3];
  const std::int64_t group = b == 0 || n_kv == 0 ? 0 : n_h / n_kv * l;
  Forest<float> forest(b * n_h * l, d_v);
  HeadStream stream(group, d_h, d_v, scale, lift);

  for (const Subtree& subtree : cover(shard.begin, shard.end())) {
    float* states = forest.slot();
    for (std::int64_t i = 0; i < b; ++i) {
      const std::int64_t end = std::min(subtree.end(), lengths[static_cast<std::size_t>(i)]);
      for (std::int64_t h = 0; h < n_kv; ++h) {
        // Bring the queries of the group: its heads are neighbours, so their rows are too.
        for (std::int64_t r = 0; r < group; ++r) stream.read_query(r, q, i, h * (n_h / n_kv) + r / l, r % l);

        // Stream the keys that are in use, leaf by leaf.
        for (std::int64_t position = subtree.begin(); position < end;) {
          const std::int64_t n = std::min(end, (position / kLeafKeys + 1) * kLeafKeys) - position;
          stream.read_leaf(shard, i, h, position - shard.begin, n);
          stream.climb(position, n);
          position += n;
          if (progress) progress();
        }

        // Keep one state a query; what was not in use is the empty set.
        for (std::int64_t r = 0; r < group; ++r) {
          float* state = states + (i * n_h * l + h * group + r) * state_size(d_v);
          stream.take(static_cast<std::size_t>(r), state);
          const bool single_key = lengths[static_cast<std::size_t>(i)] == 1 && subtree.begin() == 0;
          if (single_key) stream.take_single_key(static_cast<std::size_t>(r), state);
        }
      }
    }
    forest.push(subtree);
  }
  return forest;
}

DecodeOutput finish_rows(std::span<const float> states, std::int64_t n_rows, std::int64_t d_v) {
  DecodeOutput output{std::vector<float>(static_cast<std::size_t>(n_rows * d_v)), std::vector<float>(static_cast<std::size_t>(n_rows))};
  for (std::int64_t r = 0; r < n_rows; ++r) {
    output.lse[static_cast<std::size_t>(r)] = finish(states.data() + r * state_size(d_v), output.out.data() + r * d_v, d_v);
  }
  return output;
}

bool needs_lift(const DecodeOutput& output) {
  const std::size_t n_rows = output.lse.size(), d_v = n_rows == 0 ? 0 : output.out.size() / n_rows;
  for (std::size_t r = 0; r < n_rows; ++r) {
    const auto row = output.out.begin() + static_cast<std::ptrdiff_t>(r * d_v);
    const bool finite = std::all_of(row, row + static_cast<std::ptrdiff_t>(d_v), [](float z) { return std::isfinite(z); });
    if (std::isfinite(output.lse[r]) && !finite) return true;
  }
  return false;
}

void take_lifted(DecodeOutput& output, const DecodeOutput& lifted) {
  for (std::size_t i = 0; i < output.out.size(); ++i) {
    if (!std::isfinite(output.out[i]) && std::isfinite(lifted.out[i])) output.out[i] = lifted.out[i];
  }
}

}  // namespace tree_attn
