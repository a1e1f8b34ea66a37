// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Made-up problems: every number is a function of the seed and of its place.
#include <algorithm>
#include <array>
#include <cmath>

#include "reference/data/problem.hpp"

namespace tree_attn {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 well-mixed bits of a counter.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Fills a row of one tensor: sums of four uniform 16-bit numbers, scaled to variance 1. Close to normal out to 3.4 sigma,
/// and a multiplication and a few shifts a number, so that gigabytes are made in seconds.
void fill_row(std::uint64_t seed, std::uint64_t tensor, std::int64_t head, std::int64_t position, std::vector<float>& row) {
  constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;
  const float to_unit_variance = std::sqrt(3.0f) / 65536.0f;
  std::uint64_t counter = mix(mix(mix(seed + kStep) + tensor) + static_cast<std::uint64_t>(head)) + static_cast<std::uint64_t>(position);
  counter = mix(counter);
  for (float& number : row) {
    const std::uint64_t bits = mix(counter += kStep);
    const std::int64_t sum = static_cast<std::int64_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    number = static_cast<float>(sum - 2 * 65535) * to_unit_variance;
  }
}

class SyntheticProblem : public Problem {
 public:
  SyntheticProblem(const ProblemShape& shape, std::uint64_t seed, int steps) : Problem(shape, steps), seed_(seed) {}

  TensorView query(int step) override {
    // Steps are counted back from the last, whose query is the same whatever their number.
    const std::array<std::int64_t, 4> axes{shape_.batch, shape_.heads, shape_.n_queries, shape_.head_dim};
    fill(q_, kQuery, axes, 0, axes[2], (steps_ - 1 - step) * shape_.n_queries);
    return TensorView::dense(q_.data(), shape_.storage, axes);
  }

  Shard shard(Run run, int step) override { return grow(mine_, run, std::clamp<std::int64_t>(n_keys(step) - run.begin, 0, run.size())); }

  Shard whole() override { return grow(all_, {0, shape_.n_keys}, shape_.n_keys); }

 private:
  enum Tensor : std::uint64_t { kQuery = 1, kKey, kValue };

  /// Keys and values of a run: room for all of it, of which the first `written` rows are there.
  struct Cache {
    Run run;
    std::int64_t written = 0;
    std::vector<std::byte> k, v;
  };

  /// Appends what has arrived since the last call (or takes back what has not arrived yet), and shows what is there.
  Shard grow(Cache& cache, Run run, std::int64_t arrived) {
    if (run.begin != cache.run.begin || run.end != cache.run.end) cache = {run, 0, {}, {}};
    const std::array<std::int64_t, 4> k_axes{shape_.batch, shape_.kv_heads, run.size(), shape_.head_dim};
    const std::array<std::int64_t, 4> v_axes{shape_.batch, shape_.kv_heads, run.size(), shape_.value_dim};
    cache.written = std::min(cache.written, arrived);
    fill(cache.k, kKey, k_axes, cache.written, arrived, run.begin);
    fill(cache.v, kValue, v_axes, cache.written, arrived, run.begin);
    cache.written = arrived;
    return {TensorView::dense(cache.k.data(), shape_.storage, k_axes).positions(0, arrived),
            TensorView::dense(cache.v.data(), shape_.storage, v_axes).positions(0, arrived), run.begin};
  }

  /// Writes rows [from, to) of every head; row 0 of the buffer is position `first`.
  void fill(std::vector<std::byte>& buffer, Tensor tensor, std::array<std::int64_t, 4> axes, std::int64_t from, std::int64_t to,
            std::int64_t first) {
    const std::int64_t row_bytes = axes[3] * static_cast<std::int64_t>(bytes_of(shape_.storage));
    buffer.resize(static_cast<std::size_t>(axes[0] * axes[1] * axes[2] * row_bytes));
    std::vector<float> row(static_cast<std::size_t>(axes[3]));
    for (std::int64_t head = 0; head < axes[0] * axes[1]; ++head) {
      for (std::int64_t a = from; a < to; ++a) {
        fill_row(seed_, tensor, head, first + a, row);
        store(row.data(), shape_.storage, axes[3], buffer.data() + (head * axes[2] + a) * row_bytes);
      }
    }
  }

  std::uint64_t seed_;
  Cache mine_, all_;
  std::vector<std::byte> q_;
};

}  // namespace

std::unique_ptr<Problem> make_problem(const ProblemShape& shape, std::uint64_t seed, int steps) {
  return std::make_unique<SyntheticProblem>(shape, seed, steps);
}

}  // namespace tree_attn
