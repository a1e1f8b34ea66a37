// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Our ring attention beside a plain ring over MPI_Sendrecv (section 6): a baseline must not be slower than it has to
/// be.
///
/// Run: mpirun -n 2 build-bench/bench_ring 4096 4 64 F32
///
/// The arguments are keys, heads, head dimension and type, F32 or BF16. Both rings take turns, with the same local kernel
/// and on the same shards, and must end with the same bits. Prints JSON: medians over rounds of (time of ours) / (time of
/// the plain ring), where the time runs until the last rank is done, or is processor time of all ranks together; and both
/// times.
#include "distributed/exchange/decoder.hpp"
#include "distributed/program/measure.hpp"
#include "distributed/transport/mpi_session.hpp"
#include "distributed/transport/mpi_transport.hpp"
#include "reference/data/workload.hpp"

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace tree_attn;

/// Rounds: as many as fit into the seconds, but never fewer than the minimum.
constexpr int kMinRounds = 7;
constexpr double kSeconds = 4;
constexpr double kScale = 0.1;

/// Ring attention written down as it is explained: compute on what is here, then pass it on with MPI_Sendrecv.
///
/// Its buffers are allocated once, in the first step. Every shard has the same length, and its bytes fit into an int.
class PlainRing {
 public:
  DecodeOutput decode(const TensorView& q, const KvCache& cache, const WorkloadShape& shape,
                      std::span<const KeyRange> ranges, int p, int me) {
    const std::int64_t n_rows = shape.n_rows(), d_v = shape.value_dim;
    std::vector<Forest<float>> forests(static_cast<std::size_t>(p), Forest<float>(n_rows, d_v));
    Shard here =
        cache.shard(cache.longest(), [](std::size_t) -> std::byte* { throw std::logic_error("a full cache is dense"); });
    for (int hop = 0; hop < p; ++hop) {
      const std::size_t source = static_cast<std::size_t>((me - hop + p) % p);
      here.begin = ranges[source].begin;
      forests[source] = decode_shard(q, here, shape.lengths, kScale);
      if (hop + 1 < p) {
        pass_on(here.k, 0, hop, p, me);
        pass_on(here.v, 1, hop, p, me);
      }
    }
    Forest<float> joined(n_rows, d_v);
    for (const Forest<float>& forest : forests) joined.append(forest.subtrees(), forest.states().data());
    return finish_rows(joined.fold(), n_rows, d_v);
  }

 private:
  static std::size_t bytes_in(const TensorView& view) {
    return static_cast<std::size_t>(view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3]) * bytes_of(view.dtype);
  }

  /// Sends keys (i = 0) or values (i = 1) to the right and puts those from the left in their place.
  void pass_on(TensorView& view, std::size_t i, int hop, int p, int me) {
    std::vector<std::byte>& arrived = buffers_[i][hop % 2];
    arrived.resize(bytes_in(view));  // allocates in the warm-up
    const int n = static_cast<int>(arrived.size());
    MPI_Sendrecv(view.data, n, MPI_BYTE, (me + 1) % p, 0, arrived.data(), n, MPI_BYTE, (me - 1 + p) % p, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    view.data = arrived.data();
  }

  std::vector<std::byte> buffers_[2][2];  // of keys and of values: one is received into while the other is sent
};

/// Seconds of one decode, from the first rank's start to the last rank's end; and processor seconds of all ranks together.
struct Seconds {
  double wall, processor;
};

Seconds time_of(const Ranks& ranks, const std::function<DecodeOutput()>& decode, DecodeOutput& output) {
  ranks.barrier();
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t processor_start = std::clock();
  output = decode();
  const std::clock_t ticks = std::clock() - processor_start;
  ranks.barrier();  // ranks that share a core start one after the other: their own times leave out what they waited before
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {ranks.all_max(wall), static_cast<double>(ranks.all_sum(ticks)) / CLOCKS_PER_SEC};
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double kTimeout = 60;
  MpiSession session(&argc, &argv, kTimeout);
  const MpiRanks& ranks = session.ranks();
  const int p = ranks.size();
  WorkloadShape shape;
  if (argc == 5) {
    shape.n_keys = std::atoll(argv[1]);
    shape.heads = shape.kv_heads = std::atoll(argv[2]);
    shape.head_dim = shape.value_dim = std::atoll(argv[3]);
    shape.dtype = shape.value_dtype = std::string(argv[4]) == "BF16" ? DType::BF16 : DType::F32;
  }
  if (shape.n_keys < 1 || shape.n_keys % (p * kLeafKeys) != 0 || shape.heads < 1 || shape.head_dim < 1) {
    if (ranks.rank() == 0)
      std::fprintf(stderr, "bench_ring: KEYS (a multiple of 64 for each of %d ranks) HEADS HEAD_DIM F32|BF16\n", p);
    return 2;
  }
  shape.lengths = {shape.n_keys};

  // The same step for both.
  MpiTransport transport(ranks, Topology::pretend(p, p));
  const std::unique_ptr<Workload> workload = make_workload(shape, 1, 1);
  const std::vector<KeyRange> ranges = even_ranges(shape.n_keys, p, shape.n_keys / p);
  OpenShard shard = open_shard(cpu_backend(), shape, ranges[static_cast<std::size_t>(ranks.rank())], kScale);
  fill(*shard.cache, *workload, shape.lengths);
  const TensorView q = workload->query(0);
  const std::unique_ptr<Decoder> ring = find_algorithm("ring").open(transport, shard, ranges);
  PlainRing plain_ring;

  // Take turns; the first round is a warm-up.
  DecodeOutput ours, plain;
  std::vector<double> wall_ratios, processor_ratios, wall_ours, wall_plain;
  double elapsed = 0;
  for (int round = 0; round <= kMinRounds || elapsed < kSeconds; ++round) {
    const Seconds of_plain = time_of(
        ranks, [&] { return plain_ring.decode(q, *shard.cache, shape, ranges, p, ranks.rank()); }, plain);
    const Seconds of_ours = time_of(
        ranks,
        [&] {
          return ring->step({q, shape.lengths}).copy();
        },
        ours);
    elapsed += of_plain.wall + of_ours.wall;
    if (round == 0) continue;
    wall_ratios.push_back(of_ours.wall / of_plain.wall);
    processor_ratios.push_back(of_ours.processor / of_plain.processor);
    wall_ours.push_back(of_ours.wall);
    wall_plain.push_back(of_plain.wall);
  }

  const bool same_bits = ours.out == plain.out && ours.lse == plain.lse;
  if (ranks.rank() == 0) {
    std::printf(
        "{\"ranks\": %d, \"rounds\": %zu, \"ours_over_plain\": %.3f, \"processor_ours_over_plain\": %.3f, \"ours_ms\": "
        "%.3f, "
        "\"plain_ms\": %.3f, \"same_bits\": %s}\n",
        p, wall_ratios.size(), latency_of(wall_ratios).median, latency_of(processor_ratios).median,
        1e3 * latency_of(wall_ours).median, 1e3 * latency_of(wall_plain).median, same_bits ? "true" : "false");
  }
  return same_bits ? 0 : 1;
}
