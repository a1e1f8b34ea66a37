// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random layouts on the CPU and on the emulated kernels: ranks, cuts and nodes at random change no bit
/// (section 5.3).
#include "tree_attn/gpu/backend/backends.hpp"
#include "tree_attn/gpu/platform/emulator/settings.hpp"
#include "tree_attn/tests/support/decoding.hpp"

#include <random>

namespace tree_attn::test {
namespace {

constexpr unsigned kSeed = 5300;
constexpr int kLayouts = 36;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// p ranks on random nodes with random cuts at multiples of 64: anywhere, among the first 128 keys, or twice at one
/// position.
Layout random_layout(std::mt19937& random, std::int64_t n_keys, int p) {
  const auto below = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random); };
  std::vector<std::int64_t> cuts{0, n_keys};
  while (cuts.size() < static_cast<std::size_t>(p) + 1) {
    const std::int64_t kind = below(4);
    const std::int64_t anywhere = below(kind == 0 ? std::min<std::int64_t>(129, n_keys) : n_keys) / kLeafKeys * kLeafKeys;
    cuts.push_back(kind == 1 ? cuts[static_cast<std::size_t>(below(static_cast<std::int64_t>(cuts.size())))] : anywhere);
  }
  std::sort(cuts.begin(), cuts.end());
  Layout layout{Topology::pretend(p, p), {}, below(2) == 0};
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) layout.ranges.push_back({cuts[i], cuts[i + 1]});
  std::vector<int> node_of_rank;
  const std::int64_t n_nodes = 1 + below(p);
  for (int rank = 0; rank < p; ++rank) node_of_rank.push_back(static_cast<int>(below(n_nodes)));
  layout.topology = Topology(node_of_rank);
  return layout;
}

/// Scores up to 100, a score of -inf, values of -0 and Inf, and a NaN for one of two heads alone.
std::unique_ptr<TensorWorkload> wild_workload() {
  const Axes axes{.heads = 2, .kv_heads = 2, .head_dim = 8, .value_dim = 6, .n_keys = 517};
  std::mt19937 random(kSeed);
  Tensor q = normal_tensor(random, axes.q()), k = normal_tensor(random, axes.k()), v = normal_tensor(random, axes.v());
  for (std::int64_t a = 0; a < axes.n_keys; ++a) {
    for (std::int64_t h = 0; h < 2; ++h) {
      k.set(0, h, a, 0, std::uniform_real_distribution<float>(-100, 100)(random));
      v.set(0, h, a, 1, -0.0f);
    }
  }
  for (std::int64_t h = 0; h < 2; ++h) q.set(0, h, 0, 0, 2.5f);
  k.set(0, 0, 300, 0, -kInf);
  v.set(0, 0, 200, 2, kInf);
  v.set(0, 1, 17, 3, kNaN);
  k.set(0, 1, 450, 0, -kInf);
  return workload_of(std::move(q), std::move(k), std::move(v));
}

std::vector<std::unique_ptr<TensorWorkload>> workloads() {
  std::vector<std::unique_ptr<TensorWorkload>> all;
  all.push_back(normal_workload(kSeed + 1,
                                {.batch = 3, .heads = 2, .kv_heads = 2, .head_dim = 16, .value_dim = 12, .n_keys = 300},
                                std::vector<std::int64_t>{300, 1, 129}));
  all.push_back(normal_workload(kSeed + 2, {.heads = 4, .kv_heads = 1, .n_queries = 2, .n_keys = 400, .dtype = DType::F16}));
  all.push_back(normal_workload(kSeed + 3,
                                {.batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 40, .n_keys = 90, .dtype = DType::BF16},
                                std::vector<std::int64_t>{0, 65}));
  all.push_back(wild_workload());
  return all;
}

/// One rank with everything, without any of distributed/.
DecodeOutput alone(const Backend& backend, TensorWorkload& workload) {
  ShardDecoder decoder = open_shard(backend, workload.query(0), workload.whole(), workload.lengths(), workload.scale);
  Forest<float>& forest = decoder.session().decode({workload.query(0), workload.lengths()}).host();
  return finish_rows(forest.fold(), workload.shape().n_rows(), workload.shape().value_dim);
}

void check_layouts(const Backend& backend) {
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  int n_split = 0, n_with_gaps = 0, n_odd = 0;
  for (const auto& workload : workloads()) {
    const std::int64_t N = workload->n_keys();
    const DecodeOutput expected = alone(backend, *workload);
    for (int i = 0; i < kLayouts; ++i) {
      const int p = 1 + i % 9;
      RankGroup& rank_group = *rank_groups({p})[0];
      const Layout layout = random_layout(random, N, p);
      n_split += n_holders(layout.ranges) > p / 2;
      n_with_gaps += n_holders(layout.ranges) < p;
      n_odd += layout.ranges[0].size() % 128 != 0;
      for (const Algorithm& algorithm : algorithms()) {
        if (!algorithm.keeps_bits) continue;
        INFO(backend.name() << ", " << algorithm.name << ", " << N << " keys, " << layout.text());
        for (const RankResult& result : decode(rank_group, algorithm, *workload, layout, backend))
          CHECK(same_bits(result.output, expected));
      }
    }
  }
  // They do what they are for: many split, some ranks hold nothing, some first shards end at an odd leaf.
  CHECK(n_split > kLayouts);
  CHECK(n_with_gaps > kLayouts / 2);
  CHECK(n_odd > kLayouts / 2);
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("layouts: random ones have the bits of one rank alone, on the CPU") { check_layouts(find_backend("cpu")); }

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("layouts: random ones have the bits of one rank alone, on the emulated kernels") {
  const emulated::SettingsScope one_worker_per_rank({.n_workers = 1});
  check_layouts(find_backend("emulated"));
}

}  // namespace tree_attn::test
