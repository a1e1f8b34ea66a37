// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Growth: a cache that grows over any number of ranks has the bits of one that was there from the start,
/// in both orders of leaves (section 5.3).
#include "distributed/transport/thread_transport.hpp"
#include "gpu/backend/backends.hpp"
#include "gpu/emulator/settings.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

#include <memory>

namespace tree_attn::test::growth_test {
namespace {

constexpr double kTimeout = 120, kScale = 0.4;
constexpr std::int64_t kKeys = 3000;

WorkloadShape shape_in(LeafOrder order) {
  return {{.dtype = DType::F32, .batch = 3, .heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 3}, kKeys, {}, order};
}

/// The ranges of p ranks: dealt, or even chunks of the first `n_cut` keys, whole leaves, with all later keys on the last
/// rank.
std::vector<KeyRange> ranges_in(LeafOrder order, int p, std::int64_t n_cut) {
  if (order == LeafOrder::kDealt) return dealt_ranges(p);
  std::vector<KeyRange> ranges = even_ranges(n_cut / kLeafKeys * kLeafKeys, p, kLeafKeys);
  ranges.back().end = kOpenEnd;
  return ranges;
}

/// A batch that grows step by step.
struct Growing {
  const Backend& backend;
  WorkloadShape shape;
  std::int64_t first, keys_per_step, n_steps;

  /// Different leaves are open, and one entry begins late.
  std::vector<std::int64_t> lengths(std::int64_t step) const {
    const std::int64_t n = first + step * keys_per_step;
    return {n, n / 3, std::max<std::int64_t>(0, step - 9)};
  }
  std::unique_ptr<Workload> workload() const { return make_workload(shape, 31, 1); }
};

/// Every step of one rank that holds everything, from a cache that was filled at once.
std::vector<DecodeOutput> fresh(const Growing& growing) {
  const WorkloadShape& shape = growing.shape;
  const OwnedLeaves leaves(shape.order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, kKeys}, shape.order);
  const auto workload = growing.workload();
  std::vector<DecodeOutput> outputs;
  for (std::int64_t step = 0; step < growing.n_steps; ++step) {
    const std::vector<std::int64_t> lengths = growing.lengths(step);
    const auto cache = growing.backend.make_cache(shape, leaves, lengths[0]);
    fill(*cache, *workload, lengths);
    const auto session = cache->open(kScale);
    outputs.push_back(
        finish_rows(session->decode({workload->query(0), lengths}).host().fold(), shape.n_rows(), shape.value_dim));
  }
  return outputs;
}

std::vector<int> numbers_of_ranks() {
  if (kIsSanitized) return {3};
  return takes_all_cases() ? std::vector{1, 2, 3, 4, 5, 6, 7, 8} : std::vector{1, 3, 4};
}

std::vector<const Algorithm*> canonical() {
  std::vector<const Algorithm*> all;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.keeps_bits) all.push_back(&algorithm);
  }
  return all;
}

/// The algorithms take turns on a cache that grows over any number of ranks.
void check_growth(const Growing& growing, std::int64_t n_cut) {
  const std::vector<DecodeOutput> want = fresh(growing);
  const LeafOrder order = growing.shape.order;
  for (const int p : numbers_of_ranks()) {
    const Topology topology = mixed_grouping(p);
    const std::vector<KeyRange> ranges = ranges_in(order, p, p % 2 == 0 ? n_cut : 0);
    std::atomic<int> n_wrong = 0;
    run_threads(topology, kTimeout, [&](ThreadTransport& transport) {
      const auto mine = growing.workload();
      OpenShard shard = open_shard(growing.backend, growing.shape,
                                   OwnedLeaves(topology.range_of(transport.rank(), ranges), order), 0, kScale);
      std::vector<std::unique_ptr<Decoder>> decoders;
      for (const Algorithm* algorithm : canonical()) decoders.push_back(algorithm->open(transport, shard, ranges));
      for (std::int64_t step = 0; step < growing.n_steps; ++step) {
        const std::vector<std::int64_t> lengths = growing.lengths(step);
        fill(*shard.cache, *mine, lengths);
        Decoder& decoder = *decoders[static_cast<std::size_t>((step / 3 + p) % std::ssize(decoders))];
        const DecodeOutput output = decoder.step({mine->query(0), lengths}).copy();
        n_wrong += !same_bits(output, want[static_cast<std::size_t>(step)]);
      }
    });
    INFO(name_of(order) << ", " << name_of(growing.shape.dtype) << ", " << growing.shape.heads << " heads, " << p
                        << " ranks");
    CHECK(n_wrong == 0);
  }
}

}  // namespace

/// @tested{thm_1, Thm. 1}
/// @tested{alg_3, Alg. 3}
TEST_CASE("growth: a decode after every append up to 3000 keys has the bits of a fresh one, on several ranks") {
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt})
    check_growth({cpu_backend(), shape_in(order), 0, 29, kKeys / 29}, 700);
}

/// Twenty appends around the ends of leaves, on the kernels: F32 and BF16, one query for each key/value head and four.
/// @tested{thm_1, Thm. 1}
/// @tested{alg_3, Alg. 3}
TEST_CASE("growth: on the emulated kernels every algorithm has the bits of one rank, in both orders, on several ranks") {
  const emulated::SettingsScope scope({.n_multiprocessors = 3});
  for (const LeafOrder order : {LeafOrder::kContiguous, LeafOrder::kDealt}) {
    for (const auto& [dtype, heads] : {std::pair{DType::F32, 1}, {DType::F32, 4}, {DType::BF16, 1}, {DType::BF16, 4}}) {
      if (!takes_all_cases() && (order == LeafOrder::kDealt) != (heads == 1 ? dtype == DType::F32 : dtype == DType::BF16))
        continue;
      WorkloadShape shape = shape_in(order);
      shape.dtype = shape.value_dtype = dtype, shape.heads = heads, shape.head_dim = shape.value_dim = 16;
      check_growth({emulated::backend(), shape, 245, 1, 20}, 200);
    }
  }
}

TEST_CASE("dealt: a step sends one subtree per rank for p = 2^a, whatever the number of keys, and plans never change") {
  for (const int p : {2, 4, 8, 16}) {
    const Topology topology = Topology::pretend(p, 4);
    for (const Algorithm* algorithm : canonical()) {
      if (algorithm->kv_shards_in_flight > 0) continue;
      std::vector<std::int64_t> bytes;
      for (const std::int64_t n : {64, 1000, 80000, 1000003}) {
        WorkloadShape shape = shape_in(LeafOrder::kDealt);
        shape.n_keys = n;
        bytes.push_back(predict(*algorithm, shape, topology, dealt_ranges(p)).bytes);
      }
      CHECK(std::all_of(bytes.begin(), bytes.end(), [&](std::int64_t each) { return each == bytes[0]; }));
      // As even chunks of a power of two of keys, the best that the contiguous order can do.
      WorkloadShape even = shape_in(LeafOrder::kContiguous);
      even.n_keys = 1 << 20;
      CHECK(bytes[0] == predict(*algorithm, even, topology, even_ranges(1 << 20, p, kLeafKeys)).bytes);
    }
  }
}

}  // namespace tree_attn::test::growth_test
