// SPDX-License-Identifier: Apache-2.0
// Run: mpirun -n 4 build/notebooks/11_decode_in_your_own_mpi_program

// %% [markdown]
// # Decoding in your own MPI program {#notebook_mpi}
//
// A program that has its own communicators, and keys and values spread over the ranks of one of
// them, needs one function: communicator in, output out. The library never calls `MPI_Init` and
// never names `MPI_COMM_WORLD`; it duplicates the communicator, so its messages meet no others.

// %%
#include "distributed/decoders/decoder.hpp"
#include "distributed/transport/mpi_transport.hpp"
#include "notebooks_cpp/notebook.hpp"
#include "reference/oracle/attention.hpp"

#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace tree_attn;
using notebook::expect;

/// Attention of q over the keys and values of all ranks of a communicator, one sequence.
/// q: [1, n_h, 1, d_h], the same on every rank. k, v: [1, n_kv, n, d], n keys of this rank.
DecodeOutput attend(MPI_Comm comm, const TensorView& q, const TensorView& k, const TensorView& v) {
  constexpr double kTimeout = 60;  // seconds that one wait may take
  const MpiRanks ranks(comm, kTimeout);
  MpiTransport transport(ranks, ranks.topology(0));

  // Shards follow each other in the order of the topology: node by node, then by rank.
  const std::int64_t mine = k.shape[2];
  const std::vector<std::int64_t> by_rank = ranks.all_gather(std::span(&mine, 1), "the lengths");
  std::vector<std::int64_t> in_order;
  for (const int rank : transport.topology().order()) in_order.push_back(by_rank[std::size_t(rank)]);
  const std::vector<KeyRange> ranges = ranges_of_lengths(in_order);
  const KeyRange own = ranges[std::size_t(transport.topology().index_of(ranks.rank()))];

  const std::vector<std::int64_t> lengths = {ranges.back().end};
  const double scale = 1 / std::sqrt(double(q.shape[3]));
  ShardDecoder shard = open_shard(cpu_backend(), q, {k, v, own.begin}, lengths, scale);
  return find_algorithm("two-level").open(transport, shard, ranges)->step(q, lengths).copy();
}

/// n standard normal numbers.
std::vector<float> normal(unsigned seed, std::int64_t n) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> elements(std::size_t(n), 0.0f);
  for (float& x : elements) x = draw(random);
  return elements;
}

TensorView view(const std::vector<float>& elements, const std::array<std::int64_t, 4>& shape) {
  return TensorView::dense(reinterpret_cast<const std::byte*>(elements.data()), DType::F32, shape);
}

int main(int argc, char** argv) {
  // %% [markdown]
  // The program around it: it starts MPI, and splits its ranks into two groups that work on
  // sequences of their own. Every rank makes up 64 keys for each rank below it in its group, and
  // 64 more.

  // %%
  MPI_Init(&argc, &argv);
  int world_rank = 0, rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm group = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &group);
  MPI_Comm_rank(group, &rank);
  MPI_Comm_size(group, &size);

  const std::int64_t n_h = 4, n_kv = 1, d = 32, n = 64 * (rank + 1);
  const std::vector<float> q_data = normal(1, n_h * d), k_data = normal(unsigned(2 + rank), n * d),
                           v_data = normal(unsigned(1000 + rank), n * d);
  const TensorView q = view(q_data, {1, n_h, 1, d});
  const DecodeOutput output = attend(group, q, view(k_data, {1, n_kv, n, d}), view(v_data, {1, n_kv, n, d}));

  // %% [markdown]
  // To check it, each rank makes up the keys and values of its whole group.

  // %%
  std::vector<float> k_all, v_all;
  for (int i = 0; i < size; ++i) {
    const auto k_i = normal(unsigned(2 + i), 64 * (i + 1) * d);
    const auto v_i = normal(unsigned(1000 + i), 64 * (i + 1) * d);
    k_all.insert(k_all.end(), k_i.begin(), k_i.end());
    v_all.insert(v_all.end(), v_i.begin(), v_i.end());
  }
  const std::int64_t N = std::int64_t(k_all.size()) / d;
  const std::array<std::int64_t, 4> shape = {1, n_kv, N, d};
  const AttentionResult exact = attention(q, view(k_all, shape), view(v_all, shape), {});
  double error = 0;
  for (std::size_t i = 0; i < exact.out.size(); ++i) {
    error = std::max(error, std::abs(double(output.out[i]) - exact.out[i]));
  }
  if (world_rank == 0) {
    std::printf("%d ranks of a group, %td keys: largest error %.1e\n", size, N, error);
  }
  expect(error < 1e-6, "it is attention over the keys of the group");
  MPI_Comm_free(&group);
  MPI_Finalize();
}

// %% [markdown]
// ## Questions
//
// 1. The output has the same bits for any number of ranks if they hold the same keys. Why is that
//    true although the shards here are unequal?
// 2. What would have to change to decode on GPUs, one per rank?
