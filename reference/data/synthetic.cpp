// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Synthetic workloads: every element is a function of the seed and of its indices.
#include "reference/data/input_error.hpp"
#include "reference/data/workload.hpp"

#include <array>
#include <cmath>
#include <stdexcept>

namespace tree_attn {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): hashes a counter to 64 bits.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Fills a row of one tensor with sums of four uniform 16-bit integers, scaled to variance 1. The distribution is close to
/// normal up to 3.4 sigma. An element costs a few multiplications and shifts, so gigabytes take seconds.
void fill_row(std::uint64_t seed, std::uint64_t tensor, std::int64_t head, std::int64_t position, std::vector<float>& row) {
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;
  const float to_unit_variance = std::sqrt(3.0f) / 65536.0f;
  std::uint64_t counter =
      mix(mix(mix(seed + kStep) + tensor) + static_cast<std::uint64_t>(head)) + static_cast<std::uint64_t>(position);
  counter = mix(counter);
  for (float& element : row) {
    const std::uint64_t bits = mix(counter += kStep);
    const std::int64_t sum =
        static_cast<std::int64_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    element = static_cast<float>(sum - 2 * 65535) * to_unit_variance;
  }
}

/// Scales of keys and values of 8 bits, of up to 3.5: up to 448 when they are stored, with the smallest scale.
std::vector<float> synthetic_scales(const WorkloadShape& shape) {
  const double n = static_cast<double>(shape.batch) * static_cast<double>(shape.kv_heads);
  if (n > 0x1p24) throw InputError("keys and values of F8_E4M3: " + std::to_string(n) + " scales; at most 2^24");
  std::vector<float> scales(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0x1p-7f * static_cast<float>(4 + i % 3) / 4;
  return scales;
}

class SyntheticWorkload : public Workload {
 public:
  SyntheticWorkload(const WorkloadShape& shape, std::uint64_t seed, int steps) : Workload(shape, steps), seed_(seed) {
    if (shape_.dtype == DType::F8_E4M3 && shape_.scales.k.empty()) shape_.scales.k = synthetic_scales(shape_);
    if (shape_.value_dtype == DType::F8_E4M3 && shape_.scales.v.empty()) shape_.scales.v = synthetic_scales(shape_);
  }

  TensorView query(int step) override {
    require_step(step);
    // Count steps back from the last, so that its query is independent of the number of steps.
    const std::array<std::int64_t, 4> axes{shape_.batch, shape_.heads, shape_.n_queries, shape_.head_dim};
    return fill(q_, kQuery, axes, 0, (steps_ - 1 - step) * shape_.n_queries);
  }

  Shard keys_and_values(std::int64_t entry, KeyRange positions) override { return make(part_, entry, 1, positions); }
  Shard whole() override { return make(all_, 0, shape_.batch, {0, shape_.n_keys}); }

 private:
  enum Tensor : std::uint64_t { kQuery = 1, kKey, kValue };
  struct Memory {
    std::vector<std::byte> k, v;
  };

  /// Keys and values of a range of positions of n_entries batch entries.
  Shard make(Memory& memory, std::int64_t entry, std::int64_t n_entries, KeyRange positions) {
    require<std::out_of_range>(entry >= 0 && n_entries <= shape_.batch - entry, "SyntheticWorkload: batch entry ", entry,
                               " of a batch of ", shape_.batch);
    require<std::out_of_range>(positions.begin >= 0 && positions.begin <= positions.end && positions.end <= shape_.n_keys,
                               "SyntheticWorkload: positions [", positions.begin, ", ", positions.end, ") of ",
                               shape_.n_keys);
    const std::array<std::int64_t, 4> k_axes{n_entries, shape_.kv_heads, positions.size(), shape_.head_dim};
    const std::array<std::int64_t, 4> v_axes{n_entries, shape_.kv_heads, positions.size(), shape_.value_dim};
    const TensorView k = fill(memory.k, kKey, k_axes, entry * shape_.kv_heads, positions.begin);
    if (shape_.values_in_keys) return {k, k.components(shape_.value_dim), positions.begin};
    return {k, fill(memory.v, kValue, v_axes, entry * shape_.kv_heads, positions.begin), positions.begin};
  }

  /// Writes all rows of an array whose head 0 is head `first_head`, counted over all batch entries, and whose row 0 is
  /// position `first`.
  TensorView fill(std::vector<std::byte>& buffer, Tensor tensor, std::array<std::int64_t, 4> axes, std::int64_t first_head,
                  std::int64_t first) {
    const bool is_query = tensor == kQuery;
    const DType of_keys = is_query && shape_.dtype == DType::F8_E4M3 ? DType::BF16 : shape_.dtype,
                dtype = tensor == kValue ? shape_.value_dtype : of_keys;
    const std::vector<float>& scales = tensor == kValue ? shape_.scales.v : shape_.scales.k;
    const std::int64_t row_bytes = axes[3] * static_cast<std::int64_t>(bytes_of(dtype));
    buffer.resize(static_cast<std::size_t>(axes[0] * axes[1] * axes[2] * row_bytes));
    row_.resize(static_cast<std::size_t>(axes[3]));
    for (std::int64_t head = 0; head < axes[0] * axes[1]; ++head) {
      for (std::int64_t a = 0; a < axes[2]; ++a) {
        fill_row(seed_, tensor, first_head + head, first + a, row_);
        const float scale = is_query || scales.empty() ? 1 : scales[static_cast<std::size_t>(first_head + head)];
        quantise(row_.data(), scale, dtype, axes[3], buffer.data() + (head * axes[2] + a) * row_bytes);
      }
    }
    return TensorView::dense(buffer.data(), dtype, axes);
  }

  std::uint64_t seed_;
  Memory part_, all_;
  std::vector<std::byte> q_;
  std::vector<float> row_;
};

}  // namespace

std::unique_ptr<Workload> make_workload(const WorkloadShape& shape, std::uint64_t seed, int steps) {
  return std::make_unique<SyntheticWorkload>(shape, seed, steps);
}

}  // namespace tree_attn
