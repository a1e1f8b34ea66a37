// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Speed of the streaming decode against reading its bytes, and of the merge against the paper's (sections 3 and 5).
///
/// Run: ./run bench
///
/// Every figure is meant as a ratio inside one run: `read` walks the same number of bytes and adds them up, which is the
/// least that any decode can do.
#include "reference/decode/decode.hpp"
#include "reference/state/tree_reduce_threads.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace {

using namespace tree_attn;

constexpr std::int64_t kKeys = 32768, kKvHeads = 4, kHeadDim = 128;

/// A cache of about normal numbers in the given type, larger than the caches of the processor; the same for every benchmark.
struct Cache {
  explicit Cache(DType dtype) : bytes(static_cast<std::size_t>(2 * kKvHeads * kKeys * kHeadDim) * bytes_of(dtype)) {
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < bytes.size() / bytes_of(dtype); ++i) {
      state = state * 1664525u + 1013904223u;
      const float number = (static_cast<float>(state >> 8) / 0x1p23f - 1) * 1.7f;
      store(&number, dtype, 1, bytes.data() + i * bytes_of(dtype));
    }
    const std::array<std::int64_t, 4> shape{1, kKvHeads, kKeys, kHeadDim};
    shard = {TensorView::dense(bytes.data(), dtype, shape), TensorView::dense(bytes.data() + bytes.size() / 2, dtype, shape),
             0};
  }
  std::vector<std::byte> bytes;
  Shard shard;
};

/// Adds up the bytes of a cache, eight at a time.
void read(benchmark::State& state, DType dtype) {
  const Cache cache(dtype);
  const auto* words = reinterpret_cast<const std::uint64_t*>(cache.bytes.data());
  for (auto _ : state) benchmark::DoNotOptimize(std::accumulate(words, words + cache.bytes.size() / 8, std::uint64_t{0}));
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * cache.bytes.size()));
}

/// Decodes one query with `group` query heads a key/value head over the same cache.
void decode(benchmark::State& state, DType dtype, std::int64_t group) {
  const Cache cache(dtype);
  const std::vector<float> q(static_cast<std::size_t>(kKvHeads * group * kHeadDim), 0.3f);
  const TensorView queries = TensorView::dense(q.data(), DType::F32, {1, kKvHeads * group, 1, kHeadDim});
  const std::array<std::int64_t, 1> lengths{kKeys};
  for (auto _ : state) benchmark::DoNotOptimize(decode_shard(queries, cache.shard, lengths, 0.1).states().data());
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * cache.bytes.size()));
}

/// A merge of states in the paper's form, with a natural exponent: two calls of exp.
void merge_natural_exponent(float* left, const float* right, std::int64_t d_v) {
  const float m = std::max(left[kShift], right[kShift]);
  const float of_left = std::exp(left[kShift] - m), of_right = std::exp(right[kShift] - m);
  left[kShift] = m;
  for (std::int64_t i = kSum; i < state_size(d_v); ++i) left[i] = of_left * left[i] + of_right * right[i];
}

template <class Merge>
void merge_states(benchmark::State& state, Merge merge_two) {
  constexpr std::int64_t kStates = 64;
  const std::int64_t size = state_size(kHeadDim);
  std::vector<float> states(static_cast<std::size_t>(kStates * size), 0.5f), sum(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < kStates; ++i) states[static_cast<std::size_t>(i * size)] = static_cast<float>(i * 7 % 5);
  for (auto _ : state) {
    set_empty(sum.data(), kHeadDim);
    for (std::int64_t i = 0; i < kStates; ++i) merge_two(sum.data(), states.data() + i * size, kHeadDim);
    benchmark::DoNotOptimize(sum.data());
    benchmark::ClobberMemory();
  }
}

/// Thm. 1 on threads: an associative operator over 2^20 numbers on p workers.
void tree_on_threads(benchmark::State& state) {
  std::vector<double> x(std::size_t{1} << 20);
  std::iota(x.begin(), x.end(), 1.0);
  const auto log_add = [](double a, double b) { return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b))); };
  for (auto _ : state)
    benchmark::DoNotOptimize(tree_reduce_threads(std::span<const double>(x), state.range(0), log_add).value);
}

}  // namespace

BENCHMARK(tree_on_threads)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(read, F32, DType::F32);
BENCHMARK_CAPTURE(read, BF16, DType::BF16);
BENCHMARK_CAPTURE(decode, F32_group1, DType::F32, 1);
BENCHMARK_CAPTURE(decode, BF16_group1, DType::BF16, 1);
BENCHMARK_CAPTURE(decode, F16_group1, DType::F16, 1);
BENCHMARK_CAPTURE(decode, BF16_group4, DType::BF16, 4);
BENCHMARK_CAPTURE(merge_states, power_of_two, merge<float>);
BENCHMARK_CAPTURE(merge_states, natural_exponent, merge_natural_exponent);

BENCHMARK_MAIN();
