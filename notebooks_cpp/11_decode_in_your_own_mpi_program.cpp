// SPDX-License-Identifier: Apache-2.0
// Run: ./run notebook 11

// %% [markdown]
// # Notebook 11: Decoding in your own MPI program {#notebook_mpi}
//
// Suppose that your program has its own communicators, and a layer of attention whose keys and
// values should be spread over the ranks of one of them. Then one class is enough: it takes the
// communicator, keeps the keys that its rank holds, and returns the output on every rank. The
// library never calls `MPI_Init` and never uses `MPI_COMM_WORLD`. It duplicates the communicator,
// so its messages cannot be confused with yours.
//
// **What you need:** @ref notebook_threads and a little MPI. **What you get:** a layer in six
// lines, and a step whose messages travel while your program computes.

// %% [markdown]
// ## The class
//
// `open_attention()` is collective, and so is `Attention::step()`. All ranks open it with the same shape and
// setup; if two of them differ, every rank throws the same line, with the two ranks and their
// values. All ranks append the same number of positions. Leaves of 64 positions are dealt to the
// ranks in turn; a rank keeps its own and reads no others.

// %%
#include "distributed/interface/mpi_attention.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/oracle/attention.hpp"

#include <mpi.h>

using namespace tree_attn;
using namespace notebook;

int main(int argc, char** argv) {
  // %% [markdown]
  // ## A program that uses it
  //
  // The program splits the ranks of MPI into two groups and decodes one sequence per group. To
  // check the output, every rank draws all keys and values. It passes null for positions that
  // another rank holds, as a program would that has not computed them.

  // %%
  MPI_Init(&argc, &argv);
  int world_rank = 0, size = 1;
  MPI_Comm group = MPI_COMM_NULL;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &group);
  MPI_Comm_size(group, &size);

  const std::int64_t n_h = 4, n_kv = 1, d = 32, N = 384;
  const Tensor q = normal(1, {1, n_h, 1, d}), k = normal(2, {1, n_kv, N, d}), v = normal(3, {1, n_kv, N, d});
  const AttentionShape shape{.heads = n_h, .kv_heads = n_kv, .head_dim = d, .value_dim = d};

  // %% [markdown]
  // With four ranks each group has two, and each of them keeps half of the 384 keys. The output on
  // this page is that of one rank. **Predict:** how large is the error of the decode in F32 against
  // the oracle? And do its bits differ from those of a decode on one rank alone?

  // %%
  DecodeOutput output;
  {
    Attention layer = open_attention(group, shape);
    std::int64_t n_held = 0;
    for (std::int64_t a = 0; a < N; ++a) {
      TensorView key = k.view().positions(a, a + 1), value = v.view().positions(a, a + 1);
      if (!layer.holds(a)) key.data = value.data = nullptr;
      n_held += layer.holds(a);
      layer.append(0, key, value);
    }
    output = layer.step(q.view()).copy();

    // %% [markdown]
    // ## While the messages travel
    //
    // `Attention::start()` returns when the states of this rank are there and the first messages are posted.
    // `Attention::progress()` merges what has arrived and posts the next round, without waiting. A program
    // calls it between the parts of what it computes meanwhile; `finish()` waits for the rest.

    // %%
    layer.start(q.view());
    double other_work = 0;
    for (int part = 0; part < 100; ++part) {
      other_work += std::sqrt(double(part));
      layer.progress();
    }
    const OutputView in_parts = layer.finish();
    expect(same_bits(in_parts.out, output.out), "a step in parts has the bits of a step");
    expect(other_work > 0 && n_held <= N, "the rank has computed, and holds a part");
    if (world_rank == 0) std::printf("rank 0 of %d holds %td of %td keys\n", size, n_held, N);
  }

  // %% [markdown]
  // The end of the scope destroys the layer before `MPI_Finalize`. A second layer, without a
  // communicator, is the same decode on one rank.

  // %%
  Attention alone(shape);
  alone.append(0, k.view(), v.view());
  const OutputView one = alone.step(q.view());
  const double error = largest_error(output.out, attention(q.view(), k.view(), v.view(), {}).out);
  if (world_rank == 0) std::printf("largest error %.1e\n", error);
  expect(error < 1e-6, "it is attention over the keys of the group");
  expect(same_bits(one.out, output.out) && same_bits(one.lse, output.lse), "the bits are those of one rank");
  MPI_Comm_free(&group);
  MPI_Finalize();
}

// %% [markdown]
// ## What to take home
//
// 1. Pass a communicator and a shape, append positions, and step; every rank gets the output.
// 2. The library works on a duplicate of your communicator, and on nothing else.
// 3. `Attention::start()`, `Attention::progress()` and `finish()` hide the exchange behind your own computing.
//
// ## To program
//
// Each line is a function to be written, with a test that fails until it is (`--solution` shows one).
// They run on four ranks of this machine:
//
// * `./run exercise 11.1`: gather the states of all ranks;
// * `./run exercise 11.2`: join ranks in rounds;
// * `./run exercise 11.3`: an order of your own.
//
// ## Questions
//
// 1. (Medium.) The output has the same bits for any number of ranks, although each of them holds
//    other keys. Why?
//
//    <details><summary>Answer</summary>
//
//    The tree is defined over the positions of the sequence, not over ranks. A leaf covers 64
//    positions and is computed by the one rank that holds it. Each inner node merges the same two
//    children in the same way, whichever rank does it (@ref tree).
//
//    </details>
//
// 2. (Medium.) What has to change to decode on GPUs, one per rank?
//
//    <details><summary>Answer</summary>
//
//    The setup names the backend: `open_attention(group, shape, {.backend = "cuda"})`. Each process
//    selects its GPU before that, by `built_backend("cuda")->use_gpu(i)`: the library asks the selected
//    GPU whether its kernels run there, which creates a context. `Attention::append()` then copies keys
//    and values of the rank to the device. Exchange and result stay the same: states are sent by the
//    host.
//
//    </details>
