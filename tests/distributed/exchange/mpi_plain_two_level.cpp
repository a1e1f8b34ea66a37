// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Alg. 3 in two levels with MPI alone: on every rank the bits of the plain decode, which `two-level` has too, for
/// any nodes, ranges and order of leaves.
#include "reference/decode/plain.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/mpi_test_session.hpp"
#include "tests/support/sweep.hpp"

#include <mpi.h>

#include <random>

namespace tree_attn {

/// Alg. 3 by MPI alone, in distributed/exchange/plain_two_level.cpp, which has no header.
void plain_two_level(MPI_Comm world, MPI_Comm node, const Step& step, const TensorView& k, const TensorView& v,
                     const OwnedLeaves& leaves, double scale, float* out, float* lse);

namespace test {
namespace {

/// The plain decode of the whole sequence.
DecodeOutput decode_plainly(TensorWorkload& workload, const OwnedLeaves& leaves) {
  Forest<float> forest =
      plain::decode({workload.query(0), workload.lengths()}, workload.k(), workload.v(), leaves, workload.scale);
  return finish_rows(forest.fold(), forest.n_rows(), forest.d_v());
}

/// Decodes a workload over MPI alone, and compares on this rank.
void check(TensorWorkload& workload, const Layout& layout, LeafOrder order, const DecodeOutput& want) {
  INFO(layout.text() << ", " << name_of(order));
  // The ranks in the order of their ranges, and those of a node. The rows of this rank are those of a cache that it fills.
  const int rank = session().ranks().rank();
  MPI_Comm world, node;
  MPI_Comm_split(session().ranks().comm(), 0, layout.topology.index_of(rank), &world);
  MPI_Comm_set_errhandler(world, MPI_ERRORS_ARE_FATAL);
  MPI_Comm_split(world, layout.topology.node_of(rank), 0, &node);
  const OwnedLeaves leaves(layout.topology.range_of(rank, layout.ranges), order);
  const auto cache = cpu_backend().make_cache(workload.shape(), leaves, 1);
  fill(*cache, workload, workload.lengths());
  std::vector<std::byte> memory;
  const Shard rows = cache->shard(cache->longest(), [&memory](std::size_t n) { return (memory.resize(n), memory.data()); });
  DecodeOutput mine{std::vector<float>(want.out.size()), std::vector<float>(want.lse.size())};
  plain_two_level(world, node, {workload.query(0), workload.lengths()}, rows.k, rows.v, leaves, workload.scale,
                  mine.out.data(), mine.lse.data());
  CHECK(same_bits(mine, want));
  MPI_Comm_free(&node), MPI_Comm_free(&world);
}

void check_nodes(TensorWorkload& workload) {
  std::mt19937 random(4200);
  const DecodeOutput closed = decode_plainly(workload, KeyRange{0, workload.n_keys()}),
                     open = decode_plainly(workload, KeyRange{0, kOpenEnd}),
                     dealt = decode_plainly(workload, {dealt_ranges(1)[0], LeafOrder::kDealt});
  for (const Topology& topology : groupings(session().ranks().size())) {
    std::vector<KeyRange> ranges = uneven_ranges(random, workload.n_keys(), topology.size());
    check(workload, {topology, ranges}, LeafOrder::kContiguous, closed);
    ranges.back().end = kOpenEnd;
    check(workload, {topology, ranges}, LeafOrder::kContiguous, open);
    check(workload, {topology, dealt_ranges(topology.size())}, LeafOrder::kDealt, dealt);
  }
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("plain two-level: the bits of the plain decode, for any nodes, ranges and order") {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
    if (!takes_all_cases() && (dtype == DType::F16 || dtype == DType::F64)) continue;
    INFO(name_of(dtype));
    check_nodes(*normal_workload(4201,
                                 {.batch = 3,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 12,
                                  .value_dim = 9,
                                  .n_queries = 2,
                                  .n_keys = 900,
                                  .dtype = dtype},
                                 std::vector<std::int64_t>{900, 0, 777}));
  }
  for (const std::int64_t n : {0, 65})
    check_nodes(*normal_workload(4202, {.heads = 2, .head_dim = 5, .value_dim = 3, .n_keys = n}));
}

TEST_CASE("plain two-level: NaN, Inf and keys that are not seen, on every rank") {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 random(4203);
  Tensor q = normal_tensor(random, {3, 2, 1, 7}), k = normal_tensor(random, {3, 1, 640, 7}),
         v = normal_tensor(random, {3, 1, 640, 6});
  for (std::int64_t i = 0; i < 3; ++i) q.set(i, 0, 0, 0, 1), q.set(i, 1, 0, 0, -0.5f);
  for (std::int64_t a = 0; a < 200; ++a) k.set(0, 0, a, 0, -kInf);
  for (std::int64_t a = 0; a < 640; ++a) k.set(2, 0, a, 0, -kInf), v.set(1, 0, a, 5, -0.0f);
  v.set(0, 0, 10, 0, kNaN), v.set(0, 0, 300, 1, kInf), v.set(0, 0, 301, 1, -kInf), v.set(0, 0, 639, 2, -kInf);
  k.set(1, 0, 500, 3, kNaN);
  check_nodes(*workload_of(std::move(q), std::move(k), std::move(v)));
}

}  // namespace test
}  // namespace tree_attn
