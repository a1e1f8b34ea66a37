// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rules of what a query sees, over ranks: every algorithm, both orders, any shards; and ranks that disagree (section
/// 5).
#include "distributed/exchange/keys_read.hpp"
#include "distributed/program/predict.hpp"
#include "reference/data/input_error.hpp"
#include "reference/decode/plain.hpp"
#include "reference/oracle/error_bound.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/message.hpp"
#include "tests/support/plain_of.hpp"
#include "tests/support/seen_cases.hpp"

namespace tree_attn::test {
namespace {

/// One step of one rank.
DecodeOutput step_of(Transport& transport, const Algorithm& algorithm, TensorWorkload& workload, const SeenCase& c,
                     const Step& step) {
  const KeyRange mine = transport.topology().range_of(transport.rank(), c.ranges);
  OpenShard shard = open_shard(cpu_backend(), workload.shape(), OwnedLeaves(mine, c.order), 64, workload.scale);
  fill(*shard.cache, workload, step.lengths);
  return algorithm.open(transport, shard, c.ranges)->step(step).copy();
}

/// Output of the plain decode over all keys.
DecodeOutput plainly(TensorWorkload& workload, const SeenCase& c, const Step& step) {
  const OwnedLeaves whole(c.order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, c.axes.n_keys}, c.order);
  const auto cache = cpu_backend().make_cache(workload.shape(), whole, 64);
  fill(*cache, workload, step.lengths);
  Forest<float> forest = plain_of(*cache, step, workload.scale);
  const std::span<float> states = forest.fold();
  for (std::int64_t r = 0; !step.sink.empty() && r < forest.n_rows(); ++r)
    add_sink(states.data() + r * state_size(forest.d_v()), step.sink_of(r), forest.d_v());
  return finish_rows(states, forest.n_rows(), forest.d_v());
}

}  // namespace

/// @tested{alg_3, Alg. 3}
/// @tested{thm_1, Thm. 1}
TEST_CASE("decoders: what a query sees: the bits of the plain decode over all keys, or within the bound of the oracle") {
  constexpr std::array kTypes{DType::F32, DType::BF16};
  std::mt19937 random(4701);
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    std::int64_t most_holders = 0;
    for (int i = 0; i < (takes_all_cases() ? 60 : 6); ++i) {
      SeenCase c = random_seen_case(random, 500, kTypes);
      c.ranges = c.order == LeafOrder::kDealt ? dealt_ranges(p) : uneven_ranges(random, c.axes.n_keys, p);
      if (c.order == LeafOrder::kContiguous && i % 2 == 0) c.ranges.back().end = kOpenEnd;
      most_holders = std::max(most_holders, c.n_holders());
      const auto workload = normal_workload(4702, c.axes, c.lengths);
      std::vector<float> sink(static_cast<std::size_t>(c.axes.heads));
      for (float& s : sink) s = std::normal_distribution<float>(0, 4)(random);
      if (i % 3 == 0) sink.clear();
      const MaskOfCase of_case(random, c);
      const Step step{workload->query(0), workload->lengths(), c.rule, sink, of_case.mask, of_case.softcap};
      const DecodeOutput want = plainly(*workload, c, step);
      const Shard all = workload->whole();
      const AttentionOptions options{.scale = workload->scale,
                                     .rule = c.rule,
                                     .sink = {sink.begin(), sink.end()},
                                     .lengths = c.lengths,
                                     .mask = of_case.mask,
                                     .softcap = of_case.softcap};
      const AttentionResult exact = attention(step.q, all.k, all.v, options);
      ErrorModel model = tree_decode_model(c.axes.n_keys + 1);
      model.weight_error = 200, model.n_additions += 4 * p, model.n_rescalings = 2;  // of algorithms without a tree
      const ErrorBound bound = error_bound(step.q, all.k, all.v, options, model);
      WorkloadShape shape = workload->shape();
      shape.rule = c.rule, shape.order = c.order;
      for (const Algorithm& algorithm : algorithms()) {
        INFO(algorithm.name << ", " << c.text() << of_case.text() << (sink.empty() ? "" : ", a learned sink"));
        const std::vector<RankResult> results = rank_group->run(
            mixed_grouping(p), [&](Transport& transport) { return step_of(transport, algorithm, *workload, c, step); });
        Traffic counted;
        for (const RankResult& rank : results) add(counted, rank.traffic);
        check_predicted(counted, predict(algorithm, shape, mixed_grouping(p), c.ranges));
        for (const RankResult& rank : results) {
          if (algorithm.keeps_bits) REQUIRE(same_bits(rank.output, want));
          const Comparison out = compare(rank.output.out, exact.out, bound.out),
                           lse = compare(rank.output.lse, exact.lse, bound.lse, NonFinite::Match);
          CHECK_MESSAGE(out.ok, out.message);
          CHECK_MESSAGE(lse.ok, lse.message);
        }
      }
    }
    CHECK(most_holders > std::max(p / 3, std::min(p - 1, 1)));
  }
}

TEST_CASE("decoders: keys that are read: those in the leaves that a query sees, counted one by one and by the CPU") {
  std::mt19937 random(4720);
  for (int i = 0; i < 400; ++i) {
    constexpr std::array kTypes{DType::F16};
    const SeenCase c = random_seen_case(random, 3000, kTypes);
    INFO(c.text());
    const auto workload = workload_of(c, 1);
    const Step step{workload->query(0), workload->lengths(), c.rule};
    WorkloadShape shape = workload->shape();
    shape.rule = c.rule, shape.order = c.order;
    std::int64_t predicted = 0, counted = 0, read = 0;
    for (const KeyRange& range : closed(c.ranges, shape.longest())) {
      const OwnedLeaves leaves(range, c.order);
      predicted += bytes_read(leaves, shape);
      for (const std::int64_t length : c.lengths) {
        const Seen any = c.rule.of_any(length, c.axes.n_queries);
        for (std::int64_t a = 0; a < leaves.n_keys(length); ++a) {
          const std::int64_t first = leaves.position(a) / kLeafKeys * kLeafKeys;
          counted += any.touches(first, std::min(length, first + kLeafKeys));
        }
      }
      if (i % 4 > 0) continue;
      const auto cache = cpu_backend().make_cache(shape, leaves, 1);
      fill(*cache, *workload, step.lengths);
      const auto session = cache->open(workload->scale);
      session->decode(step);
      read += session->bytes_read();
    }
    CHECK(predicted == counted * shape.bytes_per_position() / shape.batch);
    if (i % 4 == 0) CHECK(predicted == read);
  }
}

TEST_CASE("decoders: ranks that disagree on what queries see are refused on all ranks") {
  const std::vector<float> sink{1, 2, 3, 4}, other{1, 2, 3, 5};
  const SeenRule common{.causal = true, .window = 31, .sinks = 4};
  struct Odd {
    SeenRule rule;
    std::vector<float> sink;
    std::string line;
    std::int64_t mask_heads = 0, other_mask_heads = 0;  ///< of the odd rank and of the others; 0: no mask
    double softcap = 0;
    DType dtype = DType::F32;  ///< of its queries
  };
  const std::vector<std::uint8_t> mask(4 * 2 * 200, 1);
  const Odd all[] = {
      {{.causal = false, .window = 31, .sinks = 4}, sink, "the causal edge (1 and 0)"},
      {{.causal = true, .window = 30, .sinks = 4}, sink, "the window (31 and 30)"},
      {{.causal = true, .window = 31, .sinks = 0}, sink, "the number of sinks (4 and 0)"},
      {{.causal = true, .window = 3, .sinks = 14}, sink, "the window (31 and 3), the number of sinks (4 and 14)"},
      {common, other, "the hash of learned sinks ("},
      {common, sink, "the mask (none and boolean)", 1},
      {common, sink, "the mask (boolean and boolean, of every head)", 4, 1},
      {common, sink, "the soft cap (0 and 30)", 0, 0, 30},
      {common, sink, "the type of queries (F32 and BF16)", 0, 0, 0, DType::BF16}};
  const auto workload = normal_workload(4710, {.n_queries = 2, .n_keys = 200});
  for (RankGroup* rank_group : rank_groups()) {
    const int p = rank_group->size();
    if (p == 1) continue;
    SeenCase c{.ranges = even_ranges(200, p, kLeafKeys)};
    for (const Odd& odd : all) {
      const std::string error = message<InputError>([&] {
        rank_group->run(Topology::pretend(p, p), [&](Transport& transport) {
          const bool is_odd = transport.rank() == p - 1;
          Step step{workload->query(0), workload->lengths(), is_odd ? odd.rule : common, is_odd ? odd.sink : sink};
          if (const std::int64_t n = is_odd ? odd.mask_heads : odd.other_mask_heads; n > 0)
            step.mask = Mask::dense(mask.data(), true, {1, n, 2, 200});
          if (is_odd) step.softcap = odd.softcap, step.q.dtype = odd.dtype;
          OpenShard shard = open_shard(cpu_backend(), workload->shape(),
                                       OwnedLeaves(transport.topology().range_of(transport.rank(), c.ranges)), 64, 1);
          fill(*shard.cache, *workload, step.lengths);
          const auto decoder = find_algorithm("two-level").open(transport, shard, c.ranges, {});
          CHECK_THROWS_AS(decoder->step(step), InputError);
          return decoder->step(step).copy();  // refused again: it is not the rule of the step before
        });
      });
      const std::string start = "Decoder::step: ranks 0 and " + std::to_string(p - 1) + " differ in " + odd.line;
      CHECK_MESSAGE(error.starts_with(start), error);
    }
  }
}

}  // namespace tree_attn::test
