// SPDX-License-Identifier: Apache-2.0
// Run: mpirun -n 4 build/notebooks/11_decode_in_your_own_mpi_program

// %% [markdown]
// # Notebook 11: Decoding in your own MPI program {#notebook_mpi}
//
// Suppose that your program has its own communicators, and that keys and values are spread over the
// ranks of one of them. Then one function is enough: it takes the communicator and returns the
// output. The library never calls `MPI_Init` and never uses `MPI_COMM_WORLD`. It duplicates the
// communicator, so its messages cannot be confused with yours.
//
// **What you need:** @ref notebook_threads and a little MPI. **What you get:** `attend`, a
// function of 20 lines that you can copy.

// %% [markdown]
// ## The function
//
// `open()` is collective, and so is `step()`. All ranks of the communicator open the same
// algorithm with the same shape, scale, ranges and options; if two of them differ, every rank
// throws the same line, with the two ranks and their values.

// %%
#include "tree_attn/distributed/decoders/decoder.hpp"
#include "tree_attn/distributed/transport/mpi_transport.hpp"
#include "tree_attn/notebooks_cpp/notebook.hpp"
#include "tree_attn/reference/oracle/attention.hpp"

#include <mpi.h>

using namespace tree_attn;
using namespace notebook;

/// Attention of q over the keys and values of all ranks of a communicator, one sequence.
/// q: [1, n_h, 1, d_h], the same on every rank. k, v: [1, n_kv, n, d], n keys of this rank.
DecodeOutput attend(MPI_Comm comm, const TensorView& q, const TensorView& k, const TensorView& v) {
  const MpiRanks ranks(comm, 60);  // seconds that one wait may take
  MpiTransport transport(ranks, ranks.topology(0));

  // Shards follow each other in the order of the topology: node by node, then by rank.
  const std::vector<std::int64_t> by_rank = ranks.all_gather(std::span(&k.shape[2], 1), "the lengths");
  std::vector<std::int64_t> in_order;
  for (const int rank : transport.topology().order()) in_order.push_back(by_rank[rank]);
  const std::vector<KeyRange> ranges = ranges_of_lengths(in_order);

  const std::vector<std::int64_t> lengths = {ranges.back().end};
  const Shard own{k, v, transport.topology().range_of(ranks.rank(), ranges).begin};
  OpenShard shard = open_shard(cpu_backend(), q, own, lengths, 1 / std::sqrt(double(q.shape[3])));
  const auto decoder = find_algorithm("two-level").open(transport, shard, ranges);
  return decoder->step({q, lengths}).copy();
}

int main(int argc, char** argv) {
  // %% [markdown]
  // ## A program that uses it
  //
  // The program splits the ranks of MPI into two groups and decodes one sequence per group. To
  // check the output, every rank draws the keys and values of its whole group, but it passes only
  // its own part to `attend`: 64 keys on rank 0, 128 on rank 1, and so on.
  //
  // With four ranks each group has $64 + 128 = 192$ keys. The output on this page is that of one
  // rank. **Predict:** how large is the error of the decode in F32 against the oracle?

  // %%
  MPI_Init(&argc, &argv);
  int world_rank = 0, rank = 0, size = 1;
  MPI_Comm group = MPI_COMM_NULL;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &group);
  MPI_Comm_rank(group, &rank);
  MPI_Comm_size(group, &size);

  const std::int64_t n_h = 4, n_kv = 1, d = 32, begin = 32 * rank * (rank + 1), end = begin + 64 * (rank + 1);
  const std::int64_t N = 32 * size * (size + 1);
  const Tensor q = normal(1, {1, n_h, 1, d}), k = normal(2, {1, n_kv, N, d}), v = normal(3, {1, n_kv, N, d});
  const DecodeOutput output = attend(group, q.view(), k.view().positions(begin, end), v.view().positions(begin, end));

  // %%
  const double error = largest_error(output.out, attention(q.view(), k.view(), v.view(), {}).out);
  if (world_rank == 0) std::printf("%d ranks of a group, %td keys: largest error %.1e\n", size, N, error);
  expect(error < 1e-6, "it is attention over the keys of the group");
  MPI_Comm_free(&group);
  MPI_Finalize();
}

// %% [markdown]
// ## What to take home
//
// 1. Pass a communicator, the query, and the keys and values of this rank; every rank gets the
//    output.
// 2. The library works on a duplicate of your communicator, and on nothing else.
// 3. Shards may have different lengths. If they start at multiples of 64, cutting them differently
//    changes no bit.
//
// ## Questions
//
// 1. (Medium.) The output has the same bits for any number of ranks that hold the same keys. Why
//    does this hold although the shards here have different lengths?
//
//    <details><summary>Answer</summary>
//
//    The tree is defined over the positions of the sequence, not over ranks. A leaf covers 64
//    positions, and here every shard starts at a multiple of 64, so each leaf is computed by one
//    rank. Each inner node merges the same two children in the same way, whichever rank does it
//    (@ref tree).
//
//    </details>
//
// 2. (Medium.) What has to change to decode on GPUs, one per rank?
//
//    <details><summary>Answer</summary>
//
//    `cpu_backend()` becomes `find_backend("cuda")`. Each process selects its GPU before that, by
//    `built_backend("cuda")->use_gpu(i)`: whether the kernels run is asked of the GPU that is
//    selected, and makes a context there. `open_shard()` then copies the keys and values of the
//    rank to the device. Exchange and result stay the same: states are sent by the host.
//
//    </details>
