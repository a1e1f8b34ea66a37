// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 10

// %% [markdown]
// # Notebook 10: Decoding over threads {#notebook_threads}
//
// This is the smallest complete program that decodes over several ranks. The ranks are threads of
// one process, so the program needs neither MPI nor `mpirun`. Each rank holds some of the keys and
// values of one sequence. Together they compute eq. (7), the attention of the newest token over all
// keys.
//
// **What you need:** the chapter on @ref tree. **What you get:** the four calls that a program of
// your own needs: `open_shard()`, `find_algorithm()`, `Algorithm::open()` and `Decoder::step()`.

// %%
#include "distributed/exchange/decoder.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/oracle/attention.hpp"

using namespace tree_attn;
using namespace notebook;

int main() {
  // %% [markdown]
  // ## The problem
  //
  // Four query heads share two key/value heads of 1000 keys. All ranks read their parts from the
  // same arrays. The oracle `attention()` computes the exact result.

  // %%
  const std::int64_t n_h = 4, n_kv = 2, N = 1000, d = 32;
  const Tensor q = normal(1, {1, n_h, 1, d}), k = normal(2, {1, n_kv, N, d}), v = normal(3, {1, n_kv, N, d});
  const std::vector<std::int64_t> lengths = {N};
  const double scale = 1 / std::sqrt(double(d));
  const AttentionResult exact = attention(q.view(), k.view(), v.view(), {.scale = scale});

  // %% [markdown]
  // ## One decode step on p ranks
  //
  // Every rank opens a cache over its shard and a decoder over that cache. After the step every
  // rank has the output of all heads. The ranks form nodes of four. A wait of more than 60 seconds
  // is an error.

  // %%
  const auto decode = [&](int p) {
    const std::vector<KeyRange> ranges = coarse_ranges(N, p, kLeafKeys);
    std::vector<DecodeOutput> outputs(p);
    run_threads(Topology::pretend(p, 4), 60, [&](ThreadTransport& transport) {
      const auto [begin, end] = transport.topology().range_of(transport.rank(), ranges);
      OpenShard shard = open_shard(cpu_backend(), q.view(),
                                   {k.view().positions(begin, end), v.view().positions(begin, end), begin}, lengths, scale);
      const auto decoder = find_algorithm("two-level").open(transport, shard, ranges);
      outputs[transport.rank()] = decoder->step({q.view(), lengths}).copy();
    });
    for (const DecodeOutput& each : outputs) expect(each.out == outputs[0].out, "ranks agree");
    return outputs[0];
  };

  // %% [markdown]
  // **Predict:** the sums over keys are divided differently on 1, 2, 3, 8 and 16 ranks. Do the outputs
  // differ in their last bits?

  // %%
  const DecodeOutput alone = decode(1);
  for (const int p : {1, 2, 3, 8, 16}) {
    const DecodeOutput output = decode(p);
    const double error = largest_error(output.out, exact.out);
    std::printf("%2d ranks: z = (%.4f, %.4f, ...), largest error %.1e\n", p, output.out[0], output.out[1], error);
    expect(error < 1e-6, "it is attention");
    expect(output.out == alone.out && output.lse == alone.lse, "the bits are those of one rank");
  }
}

// %% [markdown]
// The bits are those of one rank because every rank sends the states of subtrees of one tree over
// the positions (@ref tree), and that tree does not depend on the number of ranks.
//
// ## What to take home
//
// 1. A rank needs its keys and values, their range of positions, and a transport.
// 2. After a step every rank holds the same output, to the bit.
// 3. With `two-level` these bits do not depend on the number of ranks.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one):
//
// * `./run exercise 10.1`: who holds a leaf in the dealt order.
//
// ## Questions
//
// 1. (Easy.) The last of 16 ranks holds fewer keys than the others. How many, and which line of the
//    program decides it?
//
//    <details><summary>Answer</summary>
//
//    It holds 40. `coarse_ranges()` cuts at multiples of a leaf of 64 keys: 15 ranks hold 64 keys
//    each, and 40 are left. The rest of the program takes whatever range `Topology::range_of()`
//    returns, which may also be empty.
//
//    </details>
//
// 2. (Easy.) Which lines change if the ranks are processes?
//
//    <details><summary>Answer</summary>
//
//    Only `run_threads()`: each process makes an `MpiTransport` from its communicator and runs the
//    body of the lambda once. @ref notebook_mpi does this.
//
//    </details>
