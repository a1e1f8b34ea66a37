// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Multiplies and adds as fast as the processor does, with nothing to wait for: the other speed that the decode is
/// compared with.
#include "reference/cpu/instructions.hpp"
#include "tests/bench/baselines.hpp"

namespace tree_attn::bench {

Operations operations(const Step& step) {
  const double group = static_cast<double>(step.heads / step.kv_heads * step.n_queries),
               d = static_cast<double>(step.head_dim);
  return {group * (2 * d + 1), group * 2 * d, step.dtype == DType::F32 ? 0 : 2 * d, group};
}

namespace {

#if defined(__x86_64__)
#define IN_REGISTER "+v"
#else
#define IN_REGISTER "+w"
#endif

/// `n` instructions on registers: half of them multiply and half add, or, fused, half as many that do both.
template <class Part, bool kFused>
float run(double n) {
  constexpr int kChains = 12;              // more than a result takes cycles to come, times the instructions of a cycle
  const volatile float one = 1, none = 0;  // so that the compiler leaves nothing out
  const Part factor = Part{} + one, term = Part{} + none;
  Part x[kChains], y[kChains];
  lanes::each<kChains>([&]<int i>() TREE_ATTN_LAMBDA { x[i] = factor, y[i] = term; });
  for (std::int64_t left = static_cast<std::int64_t>(n / ((kFused ? 4 : 2) * kChains)); left > 0; --left) {
    lanes::each<kChains>([&]<int i>() TREE_ATTN_LAMBDA {
      Part a = kFused ? x[i] * factor + term : x[i] * factor, b = kFused ? y[i] * factor + term : y[i] + term;
      asm volatile("" : IN_REGISTER(a), IN_REGISTER(b));  // neither may be left out
      x[i] = a, y[i] = b;
    });
  }
  lanes::each<kChains>([&]<int i>() TREE_ATTN_LAMBDA { x[0] += x[i] + y[i]; });
  return x[0][0];
}

}  // namespace

float arithmetic(const Operations& all, int lanes, bool fused) {
  // An exponential is a polynomial of degree 6 and a power of two: 8 multiplies, and 9 adds or subtractions.
  const double n = (all.multiplies + all.adds + all.conversions + 17 * all.exponentials) / lanes;
  using Four [[gnu::vector_size(16)]] = float;
  using Eight [[gnu::vector_size(32)]] = float;
  using Sixteen [[gnu::vector_size(64)]] = float;
  if (lanes == 4) return fused ? run<Four, true>(n) : run<Four, false>(n);
  if (lanes == 8) return fused ? run<Eight, true>(n) : run<Eight, false>(n);
  return fused ? run<Sixteen, true>(n) : run<Sixteen, false>(n);
}

}  // namespace tree_attn::bench
