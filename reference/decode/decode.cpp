// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Streaming decode of a shard: the CPU backend.
#include "reference/decode/decode.hpp"

#include "reference/decode/backend.hpp"
#include "reference/state/merge_eight.hpp"
#include "reference/state/score_scale.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <bit>
#include <limits>

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
  for (std::int64_t i = 0; i < d_padded; i += kLanes)
    sums += Eigen::Map<const Lanes>(a + i) * Eigen::Map<const Lanes>(b + i);
  return sum_by_halves<kLanes>(sums);
}

/// The state of eight neighbouring keys, the first at a multiple of eight: the same merges in the same order as key by key,
/// but the numbers on the way stay in registers. This file is compiled without contraction to fused multiply-add, which
/// would skip the rounding of weight * v.
/// @pre no score is -inf: such a key's value must not be looked at
void set_eight_keys(float* __restrict state, const float* s, const float* __restrict v, std::int64_t d_v, float lift) {
  float shift[kKeysPerStep], weight[kKeysPerStep];
  for (int i = 0; i < kKeysPerStep; ++i) shift[i] = key_shift(s[i]) + lift, weight[i] = key_weight(s[i]) * pow2(-lift);
  const MergeEight<float> merges(shift);
  state[kShift] = shift[0];
  state[kSum] = merges.value([&](int i) { return weight[i]; });

  // Components of n side by side, then those that are left over.
  using Elements = Floats<16>;
  std::int64_t j = 0;
  for (; j + Elements::SizeAtCompileTime <= d_v; j += Elements::SizeAtCompileTime) {
    Eigen::Map<Elements>(state + kValues + j) =
        merges.value([&](int i) { return Elements(weight[i] * Eigen::Map<const Elements>(v + i * d_v + j)); });
  }
  for (; j < d_v; ++j) state[kValues + j] = merges.value([&](int i) { return weight[i] * v[i * d_v + j]; });
}

/// A cache in host memory. The first positions of a batch entry may be borrowed; the others are in memory of its own, [b,
/// n_kv, N, d] for the longest capacity N, of which the operating system gives out what is written.
class CpuCache final : public KvCache {
 public:
  CpuCache(const AttentionShape& shape, KeyRange capacity)
      : KvCache(shape, shape, capacity), most_(capacity.size()), borrowed_(static_cast<std::size_t>(shape.batch), 0) {}

  /// The key, and the value, of one head at a global position. Only these two functions know where it is.
  const std::byte* key(std::int64_t i, std::int64_t h, std::int64_t position) const {
    const std::int64_t a = position - capacity().begin;
    return a < borrowed_[static_cast<std::size_t>(i)] ? shard_.k.row(i, h, a)
                                                      : own_k_.get() + own_row(i, h, a) * key_bytes();
  }
  const std::byte* value(std::int64_t i, std::int64_t h, std::int64_t position) const {
    const std::int64_t a = position - capacity().begin;
    return a < borrowed_[static_cast<std::size_t>(i)] ? shard_.v.row(i, h, a)
                                                      : own_v_.get() + own_row(i, h, a) * value_bytes();
  }

  void reserve() override {
    if (own_k_ != nullptr) return;
    const std::int64_t n_rows = own_row(shape().batch, 0, 0);
    own_k_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_rows * key_bytes()));
    own_v_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_rows * value_bytes()));
  }

  Shard shard(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const override {
    const AttentionShape& s = shape();
    Shard dense{TensorView::dense(nullptr, s.dtype, {s.batch, s.kv_heads, n, s.head_dim}),
                TensorView::dense(nullptr, s.value_dtype, {s.batch, s.kv_heads, n, s.value_dim}), capacity().begin};
    const auto in_place = [&](const std::byte* k, const std::byte* v) {
      dense.k.data = k, dense.v.data = v;
      return dense;
    };
    // As it is, if it is dense there.
    const bool used_is_borrowed = std::equal(borrowed_.begin(), borrowed_.end(), lengths().begin());
    if (used_is_borrowed && shard_.k.stride == dense.k.stride && shard_.v.stride == dense.v.stride)
      return in_place(shard_.k.data, shard_.v.data);
    const bool none_is_borrowed = std::all_of(borrowed_.begin(), borrowed_.end(), [](std::int64_t b) { return b == 0; });
    if (none_is_borrowed && n == most_ && own_k_ != nullptr) return in_place(own_k_.get(), own_v_.get());

    // Else row by row; what an entry does not use need not exist.
    const std::int64_t n_rows = s.batch * s.kv_heads * n;
    std::byte *k = memory(static_cast<std::size_t>(n_rows * (key_bytes() + value_bytes()))), *v = k + n_rows * key_bytes();
    in_place(k, v);
    for (std::int64_t i = 0; i < s.batch; ++i) {
      const std::int64_t used = std::min(n, lengths()[static_cast<std::size_t>(i)]);
      for (std::int64_t h = 0; h < s.kv_heads; ++h, k += n * key_bytes(), v += n * value_bytes()) {
        for (std::int64_t a = 0; a < used; ++a) {
          std::copy_n(key(i, h, capacity().begin + a), key_bytes(), k + a * key_bytes());
          std::copy_n(value(i, h, capacity().begin + a), value_bytes(), v + a * value_bytes());
        }
      }
    }
    return dense;
  }

  std::unique_ptr<DecodeSession> open(double scale) const override;

 protected:
  void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) override {
    std::int64_t& borrowed = borrowed_[static_cast<std::size_t>(entry)];
    borrowed = std::min(borrowed, first);  // a truncated entry goes on in memory of its own
    for (std::int64_t h = 0; h < shape().kv_heads; ++h) {
      for (std::int64_t a = 0; a < k.shape[2]; ++a) {
        const std::int64_t row = own_row(entry, h, first + a);
        std::copy_n(k.row(0, h, a), key_bytes(), own_k_.get() + row * key_bytes());
        std::copy_n(v.row(0, h, a), value_bytes(), own_v_.get() + row * value_bytes());
      }
    }
  }
  void write_all(const Shard& shard, std::span<const std::int64_t> lengths) override {
    shard_ = shard;
    std::copy(lengths.begin(), lengths.end(), borrowed_.begin());
  }

 private:
  std::int64_t key_bytes() const { return shape().head_dim * static_cast<std::int64_t>(bytes_of(shape().dtype)); }
  std::int64_t value_bytes() const { return shape().value_dim * static_cast<std::int64_t>(bytes_of(shape().value_dtype)); }
  std::int64_t own_row(std::int64_t i, std::int64_t h, std::int64_t a) const {
    return (i * shape().kv_heads + h) * most_ + a;
  }

  std::int64_t most_;                   ///< positions of an entry that there is memory for
  std::vector<std::int64_t> borrowed_;  ///< positions of each entry that are in shard_
  Shard shard_;
  std::unique_ptr<std::byte[]> own_k_, own_v_;
};

/// The stream over one key/value head: its queries, the leaf at hand, and one forest a query.
class HeadStream {
 public:
  /// @param n_keys most keys that are streamed into one tree
  HeadStream(std::int64_t n_queries, std::int64_t d_h, std::int64_t d_v, std::int64_t n_keys, double scale)
      : d_h_(padded(d_h)),
        d_v_(d_v),
        scale_(split_scale(scale)),
        q_(static_cast<std::size_t>(n_queries * d_h_)),
        k_(static_cast<std::size_t>(kLeafKeys * d_h_)),
        v_(static_cast<std::size_t>(kLeafKeys * d_v)),
        forests_(static_cast<std::size_t>(n_queries), Forest<float>(1, d_v)) {
    for (Forest<float>& counter : forests_) counter.reserve(n_levels(n_keys));
  }

  /// Trees that a counter of n keys holds at once: one a level, and one more before it merges.
  static std::size_t n_levels(std::int64_t n_keys) {
    return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(n_keys))) + 2;
  }

  /// See set_key().
  void set_lift(int lift) { lift_ = static_cast<float>(lift); }
  std::int64_t bytes() const {
    std::int64_t n = static_cast<std::int64_t>((q_.size() + k_.size() + v_.size()) * sizeof(float));
    for (const Forest<float>& counter : forests_) n += counter.bytes();
    return n;
  }

  /// Reads the query of row r of the group: row (i, h, j) of q.
  void read_query(std::int64_t r, const TensorView& q, std::int64_t i, std::int64_t h, std::int64_t j) {
    float* const row = q_.data() + r * d_h_;
    load_row(q, i, h, j, row);
    for (std::int64_t c = 0; c < q.shape[3]; ++c) row[c] *= scale_.query;
  }

  /// Reads the keys and values of n positions once, for all queries of the group.
  void read_leaf(const CpuCache& cache, std::int64_t i, std::int64_t h, std::int64_t position, std::int64_t n) {
    const AttentionShape& shape = cache.shape();
    for (std::int64_t a = 0; a < n; ++a) {
      load(cache.key(i, h, position + a), shape.dtype, shape.head_dim, k_.data() + a * d_h_);
      load(cache.value(i, h, position + a), shape.value_dtype, shape.value_dim, v_.data() + a * d_v_);
    }
  }

  /// Lets the n keys of the leaf, at positions from `position` on, climb the tree of every query.
  void accumulate(std::int64_t position, std::int64_t n) {
    for (std::size_t r = 0; r < forests_.size(); ++r) {
      float s[kLeafKeys];
      for (std::int64_t a = 0; a < n; ++a) s[a] = score(r, a);
      for (std::int64_t a = 0; a < n;) {
        const float* v = v_.data() + a * d_v_;
        const bool together = (position + a) % kKeysPerStep == 0 && a + kKeysPerStep <= n &&
                              std::none_of(s + a, s + a + kKeysPerStep, [](float score) { return score == -kInfinity; });
        if (together) {
          set_eight_keys(forests_[r].slot(), s + a, v, d_v_, lift_);
          forests_[r].push({kKeyStepLevel, (position + a) / kKeysPerStep});
          a += kKeysPerStep;
        } else {
          set_key(forests_[r].slot(), s[a], v, d_v_, lift_);
          forests_[r].push({0, position + a});
          a += 1;
        }
      }
    }
  }

  /// The state of query r over a sequence of one key.
  void take_single_key(std::size_t r, float* state) const { set_single_key(state, score(r, 0), v_.data(), d_v_); }

  /// Hands on the state of query r and starts afresh.
  void take(std::size_t r, float* state) {
    const std::span<const float> folded = forests_[r].fold();
    std::copy(folded.begin(), folded.end(), state);
    forests_[r].clear();
  }

 private:
  float score(std::size_t r, std::int64_t a) const {
    return scale_.score * dot(q_.data() + static_cast<std::int64_t>(r) * d_h_, k_.data() + a * d_h_, d_h_);
  }

  std::int64_t d_h_, d_v_;
  ScoreScale scale_;
  float lift_ = 0;
  std::vector<float> q_, k_, v_;
  std::vector<Forest<float>> forests_;
};

/// A session on the CPU: states are computed where they are asked for.
class CpuSession final : public DecodeSession, public States {
 public:
  CpuSession(const CpuCache& cache, double scale)
      : DecodeSession(cache),
        cache_(cache),
        forest_(cache.shape().n_rows(), cache.shape().value_dim),
        stream_(cache.shape().rows_per_kv_head(), cache.shape().head_dim, cache.shape().value_dim, cache.capacity().size(),
                scale) {
    forest_.reserve(cover(cache.capacity().begin, cache.capacity().end).size());
  }

  Forest<float>& host() override { return forest_; }
  const float* device() const override { return nullptr; }
  std::int64_t bytes() const override { return forest_.bytes() + stream_.bytes(); }
  std::string describe() const override { return ""; }

 protected:
  States& run(const TensorView& q, std::span<const std::int64_t> lengths, int lift,
              const std::function<void()>& progress) override {
    const AttentionShape& shape = cache_.shape();
    const KeyRange capacity = cache_.capacity();
    const std::int64_t b = shape.batch, n_h = shape.heads, n_kv = shape.kv_heads, l = shape.n_queries, d_v = shape.value_dim;
    const std::int64_t group = shape.rows_per_kv_head();
    stream_.set_lift(lift);
    forest_.clear();
    for (std::int64_t begin = capacity.begin; begin < capacity.end;) {
      const Subtree subtree = first_subtree(begin, capacity.end);
      float* states = forest_.slot();
      for (std::int64_t i = 0; i < b; ++i) {
        const std::int64_t end = std::min(subtree.end(), lengths[static_cast<std::size_t>(i)]);
        for (std::int64_t h = 0; h < n_kv; ++h) {
          // Bring the queries of the group: its heads are neighbours, so their rows are too.
          for (std::int64_t r = 0; r < group; ++r) stream_.read_query(r, q, i, h * (n_h / n_kv) + r / l, r % l);

          // Stream the keys that are in use, leaf by leaf.
          for (std::int64_t position = subtree.begin(); position < end;) {
            const std::int64_t n = std::min(end, (position / kLeafKeys + 1) * kLeafKeys) - position;
            stream_.read_leaf(cache_, i, h, position, n);
            stream_.accumulate(position, n);
            position += n;
            if (progress) progress();
          }

          // Keep one state a query; what was not in use is the empty set.
          for (std::int64_t r = 0; r < group; ++r) {
            float* state = states + (i * n_h * l + h * group + r) * state_size(d_v);
            stream_.take(static_cast<std::size_t>(r), state);
            const bool single_key = lengths[static_cast<std::size_t>(i)] == 1 && subtree.begin() == 0;
            if (single_key) stream_.take_single_key(static_cast<std::size_t>(r), state);
          }
        }
      }
      forest_.push(subtree);
      begin = subtree.end();
    }
    return *this;
  }

 private:
  const CpuCache& cache_;
  Forest<float> forest_;
  HeadStream stream_;
};

std::unique_ptr<DecodeSession> CpuCache::open(double scale) const { return std::make_unique<CpuSession>(*this, scale); }

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string missing() const override { return ""; }
  std::vector<std::string> gpus() const override { return {}; }
  std::string refusal(const AttentionShape&) const override { return ""; }
  std::int64_t leaf_keys(const AttentionShape&) const override { return 1; }
  ErrorTerms error_terms(const AttentionShape&) const override { return {}; }
  AttentionShape stored(const AttentionShape& shape) const override { return shape; }

  MemoryNeed memory(const AttentionShape& shape, KeyRange capacity) const override {
    // The session, as its constructor takes it; axes are multiplied in double.
    constexpr double kFloat = sizeof(float), kSubtree = sizeof(Subtree);
    const double d_h = static_cast<double>(padded(shape.head_dim)), d_v = static_cast<double>(shape.value_dim),
                 state = (d_v + 2) * kFloat;
    const double group = shape.kv_heads == 0 || shape.batch == 0
                             ? 0
                             : static_cast<double>(shape.heads / shape.kv_heads) * static_cast<double>(shape.n_queries);
    const double n_rows =
        static_cast<double>(shape.batch) * static_cast<double>(shape.heads) * static_cast<double>(shape.n_queries);
    const double n_subtrees = static_cast<double>(cover(capacity.begin, capacity.end).size());
    const double n_levels = static_cast<double>(HeadStream::n_levels(capacity.size()));
    MemoryNeed need;
    need.session = n_subtrees * (n_rows * state + kSubtree) + group * (n_levels * (state + kSubtree) + d_h * kFloat) +
                   static_cast<double>(kLeafKeys) * (d_h + d_v) * kFloat;
    need.cache = static_cast<double>(capacity.size()) * static_cast<double>(shape.bytes_per_position());
    return need;
  }
  std::unique_ptr<KvCache> make_cache(const AttentionShape& shape, KeyRange capacity) const override {
    return std::make_unique<CpuCache>(shape, capacity);
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

Forest<float> decode_shard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                           const std::function<void()>& progress, int lift) {
  CpuCache cache(shape_of(q, shard.k, shard.v), {shard.begin, shard.end()});
  cache.borrow(shard, positions_in_use(lengths, cache.capacity()));
  CpuSession session(cache, scale);
  return std::move(session.decode(q, lengths, lift, progress).host());
}

DecodeOutput finish_rows(std::span<const float> states, std::int64_t n_rows, std::int64_t d_v) {
  DecodeOutput output{std::vector<float>(static_cast<std::size_t>(n_rows * d_v)),
                      std::vector<float>(static_cast<std::size_t>(n_rows))};
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
