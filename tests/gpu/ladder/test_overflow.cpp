// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Results that are finite by the formula are finite in every step, though a sum on the way is beyond F32, and an
/// average of the values, however large the scores are (section 5).
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"

namespace tree_attn::test::overflow_test {
namespace {

/// One key/value head, and scores in base two of the size 2^power, and at most twice that: all equal, or normally
/// distributed. In the first half of the components all values are the same, with so few bits that their sum is exact.
std::unique_ptr<TensorWorkload> draw(std::mt19937& random, const Axes& axes, int power, bool equal) {
  // Elements as large as the type has them, in half of the draws so large that products q.k are beyond F32; the scale does
  // the rest.
  const bool is_beyond = random() % 2 == 0 && axes.dtype != DType::F16;
  const int half = is_beyond ? 63 : std::min(power / 2, axes.dtype == DType::F16 ? 12 : 50);
  const float size = std::ldexp(1.0f, half);
  const double sign = random() % 2 == 0 ? 1 : -1, of_product = equal ? 8 : 8 * std::sqrt(8);
  const auto tensor = [&](const Shape& shape, float x) {
    return equal ? Tensor(std::vector<float>(static_cast<std::size_t>(n_elements(shape)), x * size), shape, axes.dtype)
                 : normal_tensor(random, shape, axes.dtype, size);
  };
  Tensor q = tensor(axes.q(), 1.25f), k = tensor(axes.k(), random() % 2 == 0 ? 1.375f : -1.375f),
         v = normal_tensor(random, axes.v(), axes.dtype);
  for (std::int64_t c = 0; c < 4; ++c) {
    const float x = widen(narrow<BFloat16>(normal_elements(random, 1)[0]));
    for (std::int64_t a = 0; a < axes.n_keys; ++a) v.set(0, 0, a, c, x);
  }
  return workload_of(std::move(q), std::move(k), std::move(v), {},
                     sign * std::ldexp(1 / (kLog2E * of_product), power - 2 * half));
}

/// Tests whether every weight of a row is 1 or too small to change a sum: its scores are whole numbers in F32, and either
/// equal or at least 50 below the largest one, whatever their rounding errors.
bool has_whole_weights(TensorWorkload& workload, bool equal, std::int64_t row) {
  const TensorView q = workload.query(0);
  const std::vector<double> query = row_of(q, 0, row / q.shape[2], row % q.shape[2]);
  std::vector<double> scores;
  double error = 0;
  for (std::int64_t a = 0; a < workload.n_keys(); ++a) {
    const std::vector<double> key = row_of(workload.k(), 0, 0, a);
    double score = 0, magnitude = 0;
    for (std::size_t c = 0; c < key.size(); ++c) score += query[c] * key[c], magnitude += std::abs(query[c] * key[c]);
    scores.push_back(kLog2E * workload.scale * score);
    error = std::max(error, 10 * 0x1p-24 * kLog2E * std::abs(workload.scale) * magnitude);
  }
  std::sort(scores.rbegin(), scores.rend());
  return std::abs(scores[0]) > 0x1.01p23 && (equal || scores.size() == 1 || scores[0] - scores[1] > 50 + 2 * error);
}

/// The first fault of an output, or "": it must be within the bound; every component in the hull of its values, widened by
/// the rounding errors of sums; and of values that are all the same that value, if the weights allow it.
std::string fault_of(TensorWorkload& workload, const DecodeOutput& output, double n_additions, bool equal) {
  if (const std::string fault = against_oracle(workload, output, n_additions); fault != "") return fault;
  for (std::int64_t row = 0; row < std::ssize(output.lse); ++row) {
    const bool is_exact = has_whole_weights(workload, equal, row);
    for (std::int64_t c = 0; c < 8; ++c) {
      double low = std::numeric_limits<double>::infinity(), high = -low, size = 0;
      for (std::int64_t a = 0; a < workload.n_keys(); ++a) {
        const double x = row_of(workload.v(), 0, 0, a)[static_cast<std::size_t>(c)];
        low = std::min(low, x), high = std::max(high, x), size = std::max(size, std::abs(x));
      }
      const double z = static_cast<double>(output.out[static_cast<std::size_t>(8 * row + c)]);
      const double rounding = is_exact && low == high ? 0 : (2 * n_additions + 15) * 0x1p-24 * size;
      if (low - rounding <= z && z <= high + rounding) continue;
      return "row " + std::to_string(row) + ", component " + std::to_string(c) + ": " + std::to_string(z) +
             " for values of " + std::to_string(low) + " to " + std::to_string(high);
    }
  }
  return "";
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("overflow on the device: at scores of 2^0 to 2^126 z is an average of the values, in every step") {
  unsigned seed = 6600;
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32}) {
    for (const std::int64_t group : {1, 2, 8}) {
      for (const std::int64_t n_queries : {1, 2}) {
        for (const bool equal : {true, false}) {
          // Other powers of two in every shape.
          for (int power = static_cast<int>(seed % 17); power <= 126; power += kIsSanitized ? 51 : 17, ++seed) {
            std::mt19937 random(seed);
            const Axes axes{.heads = group,
                            .kv_heads = 1,
                            .head_dim = 8,
                            .value_dim = 8,
                            .n_queries = n_queries,
                            .n_keys = random() % 3 == 0 ? 2 : 70,
                            .dtype = dtype};
            const auto workload = draw(random, axes, power, equal);
            const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
            for (const device::LadderStep* step : device::all_kernels()) {
              if (step->refusal(shard.params, shard.dtype) != "") continue;
              INFO(std::string(step->name) << ", " << name_of(dtype) << ", group " << group << ", l " << n_queries
                                           << ", equal " << equal << ", 2^" << power << ", seed " << seed);
              CHECK(fault_of(*workload, run_step(*step, *workload, {.n_splits = 2}), longest_chain(*step, shard), equal) ==
                    "");
            }
          }
        }
      }
    }
  }
}

/// Scores of 3/2 (2^22 - a) and -3/2 (2^22 + a), which F32 has exactly: the weights are 2^(-3/2 a).
TEST_CASE("overflow on the device: at scores from 2^22 on weights are those of the differences, in every step") {
  for (const DType dtype : {DType::F16, DType::BF16, DType::F32}) {
    for (const std::int64_t group : {1, 8}) {
      for (const float sign : {1.0f, -1.0f}) {
        const Axes axes{.heads = group, .kv_heads = 1, .head_dim = 8, .value_dim = 8, .n_keys = 70, .dtype = dtype};
        std::mt19937 random(6700);
        const auto zeros = [dtype](const Shape& shape) {
          return Tensor(std::vector<float>(static_cast<std::size_t>(n_elements(shape)), 0), shape, dtype);
        };
        Tensor q = zeros(axes.q()), k = zeros(axes.k());
        for (std::int64_t h = 0; h < group; ++h) q.set(0, h, 0, 0, sign * 0x1p11f), q.set(0, h, 0, 1, 1);
        for (std::int64_t a = 0; a < axes.n_keys; ++a)
          k.set(0, 0, a, 0, 0x1p11f), k.set(0, 0, a, 1, static_cast<float>(-(a % 5)));
        const auto workload =
            workload_of(std::move(q), std::move(k), normal_tensor(random, axes.v(), dtype), {}, 1.5 / kLog2E);
        std::vector<double> want(8);
        double sum = 0;
        for (std::int64_t a = 0; a < axes.n_keys; ++a) {
          const double weight = std::exp2(-1.5 * static_cast<double>(a % 5));
          const std::vector<double> value = row_of(workload->v(), 0, 0, a);
          for (std::size_t c = 0; c < 8; ++c) want[c] += weight * value[c];
          sum += weight;
        }
        const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
        for (const device::LadderStep* step : device::all_kernels()) {
          if (step->refusal(shard.params, shard.dtype) != "") continue;
          INFO(std::string(step->name) << ", " << name_of(dtype) << ", group " << group << ", sign " << sign);
          const std::vector<float> out = run_step(*step, shard, {.n_splits = 2}).out;
          for (std::size_t i = 0; i < out.size(); ++i)
            CHECK(static_cast<double>(out[i]) == doctest::Approx(want[i % 8] / sum).epsilon(0x1p-18));
        }
      }
    }
  }
}

}  // namespace tree_attn::test::overflow_test
