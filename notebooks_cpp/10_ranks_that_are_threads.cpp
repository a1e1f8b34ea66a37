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

using namespace tree_attn;
using namespace notebook;

int main() {
  // %% [markdown]
  // Four query heads share two key/value heads of 1000 keys. All ranks read parts of the same arrays.

  // %%
  const std::int64_t n_h = 4, n_kv = 2, N = 1000, d = 32;
  const Tensor q = normal(1, {1, n_h, 1, d}), k = normal(2, {1, n_kv, N, d}), v = normal(3, {1, n_kv, N, d});
  const std::vector<std::int64_t> lengths = {N};
  const double scale = 1 / std::sqrt(double(d));
  const AttentionResult exact = attention(q.view(), k.view(), v.view(), {.scale = scale});

  // %% [markdown]
  // One step on p ranks, in nodes of four. A rank opens a cache over its shard, and a decoder over
  // that; every rank ends with the output of all heads. A wait of more than a minute is an error.

  // %%
  const auto decode = [&](int p) {
    const std::vector<KeyRange> ranges = coarse_ranges(N, p, kLeafKeys);
    std::vector<DecodeOutput> outputs(p);
    run_threads(Topology::pretend(p, 4), 60, [&](ThreadTransport& transport) {
      const auto [begin, end] = transport.topology().range_of(transport.rank(), ranges);
      ShardDecoder shard = open_shard(
          cpu_backend(), q.view(), {k.view().positions(begin, end), v.view().positions(begin, end), begin}, lengths, scale);
      const auto decoder = find_algorithm("two-level").open(transport, shard, ranges);
      outputs[transport.rank()] = decoder->step(q.view(), lengths).copy();
    });
    for (const DecodeOutput& each : outputs) expect(each.out == outputs[0].out, "ranks agree");
    return outputs[0];
  };

  // %%
  const DecodeOutput alone = decode(1);
  for (const int p : {1, 2, 3, 8, 16}) {
    const DecodeOutput output = decode(p);
    const double error = largest_error(output.out, exact.out);
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
