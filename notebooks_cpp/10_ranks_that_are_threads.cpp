// SPDX-License-Identifier: Apache-2.0
// Run: build/notebooks/10_ranks_that_are_threads

// %% [markdown]
// # Decoding over threads {#notebook_threads}
//
// The smallest complete program that decodes over several ranks. The ranks are threads of one
// process, so it needs neither MPI nor `mpirun`. Each rank holds some of the keys and values of one
// sequence; together they compute eq. (7), the attention of the newest token over all of them.

// %%
#include "distributed/decoders/decoder.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/oracle/attention.hpp"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace tree_attn;
using notebook::expect;

/// n standard normal numbers.
std::vector<float> normal(unsigned seed, std::int64_t n) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> elements(std::size_t(n), 0.0f);
  for (float& x : elements) x = draw(random);
  return elements;
}

/// A dense tensor in memory of ours: the library only looks at it.
TensorView view(const std::vector<float>& elements, const std::array<std::int64_t, 4>& shape) {
  return TensorView::dense(reinterpret_cast<const std::byte*>(elements.data()), DType::F32, shape);
}

int main() {
  // %% [markdown]
  // Four query heads share two key/value heads, 1000 keys, in F32. All ranks live in one process,
  // so they can look at parts of the same arrays.

  // %%
  const std::int64_t n_h = 4, n_kv = 2, N = 1000, d = 32;
  const std::vector<float> q_data = normal(1, n_h * d), k_data = normal(2, n_kv * N * d), v_data = normal(3, n_kv * N * d);
  const TensorView q = view(q_data, {1, n_h, 1, d});
  const TensorView k = view(k_data, {1, n_kv, N, d}), v = view(v_data, {1, n_kv, N, d});
  const std::vector<std::int64_t> lengths = {N};
  const double scale = 1 / std::sqrt(double(d));
  const AttentionResult exact = attention(q, k, v, {.scale = scale});

  // %% [markdown]
  // One step on p ranks, in nodes of four. Every rank gives its shard and what all ranks hold, and
  // every rank ends with the output of all heads. Any wait of more than a minute is an error.

  // %%
  const auto decode = [&](int p, const Algorithm& algorithm) {
    const std::vector<KeyRange> ranges = even_ranges(N, p, kLeafKeys);
    std::vector<DecodeOutput> outputs(std::size_t(p), DecodeOutput{});
    constexpr double kTimeout = 60;
    run_threads(Topology::pretend(p, 4), kTimeout, [&](ThreadTransport& transport) {
      const std::size_t rank = std::size_t(transport.rank());
      const auto [begin, end] = ranges[rank];
      const Shard shard{k.positions(begin, end), v.positions(begin, end), begin};
      ShardDecoder decoder = open_shard(cpu_backend(), q, shard, lengths, scale);
      outputs[rank] = algorithm.open(transport, decoder, ranges)->step(q, lengths).copy();
    });
    for (const DecodeOutput& each : outputs) expect(each.out == outputs[0].out, "ranks agree");
    return outputs[0];
  };

  // %%
  const Algorithm& algorithm = find_algorithm("two-level");
  const DecodeOutput alone = decode(1, algorithm);
  for (const int p : {1, 2, 3, 8, 16}) {
    const DecodeOutput output = decode(p, algorithm);
    double error = 0;
    for (std::size_t i = 0; i < exact.out.size(); ++i) {
      error = std::max(error, std::abs(double(output.out[i]) - exact.out[i]));
    }
    std::printf("%2d ranks: z = (%.4f, %.4f, ...), largest error %.1e\n", p, output.out[0], output.out[1], error);
    expect(error < 1e-6, "it is attention");
    expect(output.out == alone.out && output.lse == alone.lse, "in the same bits");
  }
}

// %% [markdown]
// The bits are those of one rank because every rank hands on subtrees of one tree over the
// positions, see [the tree](@ref tree).
//
// ## Questions
//
// 1. The last of 16 ranks holds fewer keys than the others. Where does the program say so?
// 2. Which line changes if the ranks are processes? The next notebook answers.
