// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random steps whose queries do not see all keys, and the check that a row has the bits of itself alone.
#pragma once

#include "tree_attn/reference/decode/backend.hpp"
#include "tree_attn/tests/support/plain_of.hpp"
#include "tree_attn/tests/support/sweep.hpp"
#include "tree_attn/tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace tree_attn::test {

/// A step over the shards of some ranks.
struct SeenCase {
  Axes axes{};
  std::vector<std::int64_t> lengths{};
  SeenRule rule{};
  LeafOrder order{};
  std::vector<KeyRange> ranges{};  ///< of the ranks

  /// Ranks that hold keys of the longest sequence.
  std::int64_t n_holders() const {
    const std::int64_t longest = std::ranges::max(lengths);
    return std::ranges::count_if(ranges, [&](KeyRange range) { return OwnedLeaves(range, order).n_keys(longest) > 0; });
  }
  /// Whether a leaf of a sequence lies between its sinks and its window.
  bool hides_leaves() const {
    return std::ranges::any_of(lengths, [&](std::int64_t length) {
      const Seen any = rule.of_any(length, axes.n_queries);
      return any.begin / kLeafKeys > (any.sinks + kLeafKeys - 1) / kLeafKeys;
    });
  }
  std::string text() const {
    std::ostringstream line;
    line << name_of(axes.dtype) << ", " << axes.heads << " heads for " << axes.kv_heads << ", l " << axes.n_queries << ", d "
         << axes.head_dim << " and " << axes.value_dim << ", " << ranges.size() << " ranks, " << name_of(order)
         << (rule.causal ? ", causal" : "") << ", window " << rule.window << ", sinks " << rule.sinks << ", lengths";
    for (const std::int64_t length : lengths) line << " " << length;
    return line.str();
  }
};

/// @param most_keys of a sequence
inline SeenCase random_seen_case(std::mt19937& random, std::int64_t most_keys, std::span<const DType> types) {
  const auto upto = [&random](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  const auto any_of = [&](auto&&... values) {
    const std::array all{values...};
    return all[static_cast<std::size_t>(upto(std::ssize(all) - 1))];
  };
  SeenCase c;
  c.axes.dtype = types[static_cast<std::size_t>(upto(std::ssize(types) - 1))];
  c.axes.batch = 1 + upto(2);
  c.axes.kv_heads = 1 + upto(1);
  c.axes.heads = c.axes.kv_heads * any_of(1, 1, 2, 3, 8);
  c.axes.n_queries = any_of(1, 2, 3, 4, 5, 6, 7, 8, 8, 17, 64);
  c.axes.head_dim = any_of(8, 33, 64, 128);
  c.axes.value_dim = any_of(8, 24, 64);
  c.axes.n_keys = upto(most_keys);
  for (std::int64_t i = 0; i < c.axes.batch; ++i) c.lengths.push_back(any_of(c.axes.n_keys, upto(c.axes.n_keys)));
  c.rule.causal = upto(3) > 0;
  if (upto(2) > 0)
    c.rule.window = 1 + upto(any_of(std::int64_t{3}, std::int64_t{130}, std::max<std::int64_t>(1, c.axes.n_keys)));
  if (c.rule.window > 0 && upto(1) > 0) c.rule.sinks = upto(130);
  c.order = any_of(LeafOrder::kContiguous, LeafOrder::kDealt);
  const int p = static_cast<int>(1 + upto(12));
  if (c.order == LeafOrder::kDealt) {
    c.ranges = dealt_ranges(p);
    return c;
  }
  // Whole leaves, some ranks without any.
  std::vector<std::int64_t> cuts{0};
  for (int rank = 1; rank < p; ++rank) cuts.push_back(upto(c.axes.n_keys / kLeafKeys) * kLeafKeys);
  cuts.push_back(any_of(c.axes.n_keys, kOpenEnd));
  std::sort(cuts.begin(), cuts.end());
  for (std::size_t i = 1; i < cuts.size(); ++i) c.ranges.push_back({cuts[i - 1], cuts[i]});
  return c;
}

/// The forest of one range.
inline Forest<float> decode_range(const Backend& backend, TensorWorkload& workload, const OwnedLeaves& leaves,
                                  const Step& step) {
  const auto cache = backend.make_cache(workload.shape(), leaves, leaves.n_keys(workload.n_keys()));
  fill(*cache, workload, step.lengths);
  return std::move(cache->open(workload.scale)->decode(step).host());
}

/// The states of all keys of a case, joined over its ranges.
inline std::vector<float> decode_ranges(const Backend& backend, const SeenCase& c, TensorWorkload& workload,
                                        const Step& step) {
  Forest<float> joined(workload.shape().n_rows(), c.axes.value_dim);
  for (const KeyRange& range : closed(c.ranges, step.longest())) {
    const Forest<float> forest = decode_range(backend, workload, OwnedLeaves(range, c.order), step);
    REQUIRE(forest.subtrees() == cover(range.begin, range.end));
    joined.append(forest.subtrees(), forest.states().data());
  }
  const std::span<const float> all = joined.fold();
  return {all.begin(), all.end()};
}

/// The workload of a case. The first component of every query is positive, so that a key that begins with -inf has the score
/// -inf for all queries: it is not seen, by a rule that is older than all others.
inline std::unique_ptr<TensorWorkload> workload_of(const SeenCase& c, unsigned seed) {
  std::mt19937 random(seed);
  Tensor q = normal_tensor(random, c.axes.q(), c.axes.dtype), k = normal_tensor(random, c.axes.k(), c.axes.dtype),
         v = normal_tensor(random, c.axes.v(), c.axes.dtype);
  for_each_row(q.shape, [&](std::int64_t i, std::int64_t h, std::int64_t j) {
    q.set(i, h, j, 0, 0.25f + std::fabs(static_cast<float>(row_of(q, i, h, j)[0])));
  });
  return workload_of(std::move(q), std::move(k), std::move(v), c.lengths);
}

/// Checks that every row of a case has the bits that the same row has alone, over one rank, by a step that sees everything:
/// the keys that the rule hides have scores of -inf.
inline void check_rows_alone(const Backend& backend, const SeenCase& c, unsigned seed) {
  INFO(c.text() << ", seed " << seed);
  const auto workload = workload_of(c, seed);
  const std::int64_t d_v = c.axes.value_dim, l = c.axes.n_queries;
  const Step step{workload->query(0), workload->lengths(), c.rule};
  const std::vector<float> all = decode_ranges(backend, c, *workload, step);
  for (std::int64_t i = 0; i < c.axes.batch; ++i) {
    const auto entry = entry_of(*workload, i);
    for (std::int64_t j = 0; j < l; ++j) {
      const Seen seen = step.seen(i, j);
      Tensor k = copy_of(entry->k().positions(0, seen.end));
      for (std::int64_t a = 0; a < seen.end; ++a)
        for (std::int64_t g = 0; g < c.axes.kv_heads && !seen.contains(a); ++g)
          k.set(0, g, a, 0, -std::numeric_limits<float>::infinity());
      const auto row = workload_of(copy_of(entry->query(0).positions(j, j + 1)), std::move(k),
                                   copy_of(entry->v().positions(0, seen.end)), std::vector{seen.end}, workload->scale);
      const OwnedLeaves whole(c.order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, seen.end}, c.order);
      Forest<float> forest = decode_range(backend, *row, whole, {row->query(0), row->lengths()});
      const std::span<const float> states = forest.fold();
      for (std::int64_t h = 0; h < c.axes.heads; ++h) {
        const float* const ours = all.data() + ((i * c.axes.heads + h) * l + j) * state_size(d_v);
        const float* const want = states.data() + h * state_size(d_v);
        INFO("entry " << i << ", head " << h << ", query " << j);
        REQUIRE(std::memcmp(ours, want, static_cast<std::size_t>(state_size(d_v)) * sizeof(float)) == 0);
      }
    }
  }
}

/// Checks that every range of a case has the bits of the plain decode.
inline void check_plain_ranges(const Backend& backend, const SeenCase& c, TensorWorkload& workload, const Step& step) {
  INFO(c.text());
  for (const KeyRange& range : closed(c.ranges, step.longest())) {
    const auto cache = backend.make_cache(workload.shape(), OwnedLeaves(range, c.order), 1);
    fill(*cache, workload, workload.lengths());
    const auto session = cache->open(workload.scale);
    const Forest<float>& fast = session->decode(step).host();
    const Forest<float> slow = plain_of(*cache, step, workload.scale);
    REQUIRE(fast.subtrees() == slow.subtrees());
    REQUIRE(fast.states().size() == slow.states().size());
    REQUIRE(
        (slow.states().empty() || std::memcmp(fast.states().data(), slow.states().data(), slow.states().size_bytes()) == 0));
  }
}

/// Checks that a row is free of values that are not finite and that it does not see, although rows beside it see them.
inline void check_hidden_values(const Backend& backend, DType dtype) {
  for (const std::int64_t N : {3, 64, 70, 130}) {
    INFO(name_of(dtype) << ", " << N << " keys");
    std::mt19937 random(4520);
    const Axes axes{.heads = 2, .kv_heads = 1, .n_queries = 3, .n_keys = N, .dtype = dtype};
    Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
           v = normal_tensor(random, axes.v(), dtype);
    for (std::int64_t c = 0; c < 16; ++c) {
      v.set(0, 0, N - 1, c, std::numeric_limits<float>::quiet_NaN());
      v.set(0, 0, N - 2, c, std::numeric_limits<float>::infinity());
    }
    const auto workload = workload_of(std::move(q), std::move(k), std::move(v));
    const OwnedLeaves whole(KeyRange{0, N});
    const std::int64_t size = state_size(16);
    Forest<float> all = decode_range(backend, *workload, whole, {workload->query(0), workload->lengths(), {.causal = true}});
    const auto row = workload_of(copy_of(workload->query(0).positions(0, 1)), copy_of(workload->k().positions(0, N - 2)),
                                 copy_of(workload->v().positions(0, N - 2)), std::vector{N - 2}, workload->scale);
    Forest<float> alone = decode_range(backend, *row, OwnedLeaves(KeyRange{0, N - 2}), {row->query(0), row->lengths()});
    const std::span<const float> ours = all.fold(), want = alone.fold();
    for (std::int64_t h = 0; h < 2; ++h) {
      REQUIRE(std::memcmp(ours.data() + 3 * h * size, want.data() + h * size, static_cast<std::size_t>(size) * 4) == 0);
      CHECK(std::isinf(ours[static_cast<std::size_t>((3 * h + 1) * size + kValues)]));
      CHECK(std::isnan(ours[static_cast<std::size_t>((3 * h + 2) * size + kValues)]));
    }
  }
}

}  // namespace tree_attn::test
