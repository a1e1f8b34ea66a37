// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bits: the same on every rank, and for canonical algorithms the same for every layout, batch and number of steps.
#include <limits>
#include <random>

#include "tests/support/decoding.hpp"

namespace tree_attn::test {
namespace {

/// A random cut of n_keys positions into p runs, some of them empty; cuts fall inside leaves.
std::vector<Run> random_runs(std::mt19937& random, std::int64_t n_keys, int p) {
  std::vector<std::int64_t> cuts{0, n_keys};
  for (int i = 1; i < p; ++i) cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, n_keys)(random));
  if (p > 3) cuts[2] = cuts[3];
  std::sort(cuts.begin(), cuts.end());
  std::vector<Run> runs;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) runs.push_back({cuts[i], cuts[i + 1]});
  return runs;
}

}  // namespace

/// check_all() compares with the bits of one rank that holds everything, so with those of every other number of ranks too.
/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("decoders: canonical bits for every layout and every grouping into nodes") {
  std::mt19937 random(2408);
  const auto problem = normal_problem(600, {.head_dim = 12, .value_dim = 9, .n_keys = 333});
  for (World* world : worlds()) {
    const int p = world->size();
    std::vector<Layout> layouts;
    for (const Topology& topology : groupings(p)) {
      layouts.push_back({topology, even_runs(333, p, kLeafKeys)});
      layouts.push_back({topology, random_runs(random, 333, p)});
      layouts.push_back({topology, random_runs(random, 333, p), false});
    }
    REQUIRE(n_holders(layouts[0].runs) == std::min(p, 6));
    check_all(*world, *problem, layouts);
  }
}

TEST_CASE("decoders: an entry of a batch has the bits that it has alone") {
  const auto problem = normal_problem(700, {.batch = 3, .head_dim = 12, .value_dim = 9, .n_queries = 2, .n_keys = 140},
                                      std::vector<std::int64_t>{140, 33, 71});
  for (World* world : worlds({2, 3, 4, 8})) {
    const int p = world->size();
    for (const Algorithm& algorithm : algorithms()) {
      if (!algorithm.keeps_bits) continue;
      CAPTURE(algorithm.name);
      const DecodeOutput together = decode(*world, algorithm, *problem, {mixed_grouping(p), even_runs(140, p, 1)})[0].output;
      for (std::int64_t i = 0; i < 3; ++i) {
        const auto entry = entry_of(*problem, i);
        const DecodeOutput alone =
            decode(*world, algorithm, *entry, {Topology::pretend(p, 2), even_runs(140, p, kLeafKeys)})[0].output;
        const std::size_t n_rows = alone.lse.size(), i_begin = static_cast<std::size_t>(i) * n_rows;
        CHECK(same_bits(std::span(together.lse).subspan(i_begin, n_rows), alone.lse));
        CHECK(same_bits(std::span(together.out).subspan(i_begin * 9, n_rows * 9), alone.out));
      }
    }
  }
}

TEST_CASE("decoders: keys appended step by step give the bits of a cache that was there from the start") {
  constexpr int kSteps = 5;
  const WorkloadShape shape{{.dtype = Storage::BF16, .value_dtype = Storage::BF16, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 12, .value_dim = 9},
                            70,
                            {70, 68}};
  for (World* world : worlds({1, 2, 3, 5})) {
    const int p = world->size();
    const Topology topology = mixed_grouping(p);
    const std::vector<Run> runs = even_runs(70, p, 1);
    for (const Algorithm& algorithm : algorithms()) {
      CAPTURE(algorithm.name);
      for (int step = 0; step < kSteps; ++step) {
        // One cache grows up to this step; the other is filled at once.
        const auto run_steps = [&](int first) {
          return world->run(topology, [&, first](Transport& transport) {
            const auto problem = make_problem(shape, 77, kSteps);
            ShardDecoder shard(cpu_backend(), shape, runs[static_cast<std::size_t>(topology.place_of(transport.rank()))], 0.3);
            DecodeOutput output;
            for (int t = first; t <= step; ++t) {
              const std::vector<std::int64_t> lengths = problem->lengths(t);
              fill(shard.cache(), *problem, lengths);
              output = algorithm.run(transport, {problem->query(t), shard, lengths, runs});
            }
            return output;
          });
        };
        const std::vector<Seen> grown = run_steps(0), at_once = run_steps(step);
        for (const Seen& seen : grown) CHECK(same_bits(seen.output, at_once[0].output));
        if (!algorithm.keeps_bits) continue;
        const auto problem = make_problem(shape, 77, kSteps);
        const Shard all = problem->whole();
        const std::int64_t n = 70 - (kSteps - 1 - step);
        Forest<float> forest =
            decode_shard(problem->query(step), {all.k.positions(0, n), all.v.positions(0, n), 0}, problem->lengths(step), 0.3);
        CHECK(same_bits(grown[0].output, finish_rows(forest.fold(), shape.n_rows(), shape.value_dim)));
      }
    }
  }
}

TEST_CASE("decoders: NaN of any sign and payload leaves every rank with the same bits, those of the one quiet NaN") {
  const Axes axes{.heads = 3, .kv_heads = 3, .head_dim = 8, .value_dim = 6, .n_keys = 48};
  std::mt19937 random(800);
  Tensor q = normal_tensor(random, axes.q()), k = normal_tensor(random, axes.k()), v = normal_tensor(random, axes.v());
  for (std::int64_t a = 0; a < 48; a += 5) {
    // Another payload for every one, every other one negative. Head 0 has them in its keys, head 1 in its values.
    const auto nan = std::bit_cast<float>(0x7FC00000u + static_cast<std::uint32_t>(a) + (a % 2 == 0 ? 0x80000000u : 0u));
    k.set(0, 0, a, 3, nan);
    v.set(0, 1, a, a % 6, nan);
  }
  // Head 2 makes its own: +Inf on the first ranks and -Inf on the last.
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (std::int64_t a = 0; a < 48; ++a) v.set(0, 2, a, a % 6, a < 24 ? kInf : -kInf);
  const auto problem = problem_of(std::move(q), std::move(k), std::move(v));
  for (World* world : worlds()) {
    const int p = world->size();
    check_all(*world, *problem, {{mixed_grouping(p), even_runs(48, p, 1)}},
              [](const Algorithm&, const DecodeOutput& output) {
                for (std::size_t i = 0; i < 18; ++i) CHECK(std::bit_cast<std::uint32_t>(output.out[i]) == 0x7FC00000u);
                CHECK(std::bit_cast<std::uint32_t>(output.lse[0]) == 0x7FC00000u);
                CHECK((std::isfinite(output.lse[1]) && std::isfinite(output.lse[2])));
              });
  }
}

}  // namespace tree_attn::test
