// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random steps whose queries do not see all keys, and the check that a row has the bits of itself alone.
#pragma once

#include "reference/decode/backend.hpp"
#include "tests/support/plain_of.hpp"
#include "tests/support/sweep.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
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
  std::vector<KeyRange> ranges{};                  ///< of the ranks
  bool ends_with_odd_values = false;               ///< the last two keys have values of Inf and NaN
  bool begins_with_odd_values = false;             ///< the first two have, which the last query does not see
  std::optional<DType> of_queries{}, of_values{};  ///< other types than that of the keys
  std::vector<float> key_scales{};                 ///< KvScales::k

  /// Ranks that hold keys of the longest sequence.
  std::int64_t n_holders() const {
    const std::int64_t longest = std::ranges::max(lengths);
    return std::ranges::count_if(ranges, [&](KeyRange range) { return OwnedLeaves(range, order).n_keys(longest) > 0; });
  }
  /// Tests whether a leaf of a sequence lies between its sinks and its window.
  bool hides_leaves() const {
    return std::ranges::any_of(lengths, [&](std::int64_t length) {
      const Seen any = rule.of_any(length, axes.n_queries);
      return any.begin / kLeafKeys > (any.sinks + kLeafKeys - 1) / kLeafKeys;
    });
  }
  std::string text() const {
    std::ostringstream line;
    line << name_of(of_queries.value_or(axes.dtype)) << " of " << name_of(axes.dtype) << " and "
         << name_of(of_values.value_or(axes.dtype)) << (key_scales.empty() ? ", " : " with scales, ") << axes.heads
         << " heads for " << axes.kv_heads << ", l " << axes.n_queries << ", d " << axes.head_dim << " and "
         << axes.value_dim << ", " << ranges.size() << " ranks, " << name_of(order) << (rule.causal ? ", causal" : "")
         << ", window " << rule.window << ", sinks " << rule.sinks << ", lengths";
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

/// A random mask for the step of a case, in memory of its own, and a random soft cap.
struct MaskOfCase {
  std::vector<std::byte> bytes;
  Mask mask{};
  double softcap = 0;

  MaskOfCase(std::mt19937& random, const SeenCase& c) {
    const Axes& axes = c.axes;
    if (random() % 2 == 0) softcap = std::uniform_real_distribution<double>(0.1, 20)(random);
    if (random() % 4 == 0) return;
    const std::array<std::int64_t, 4> shape{random() % 2 == 0 ? 1 : axes.batch, random() % 2 == 0 ? 1 : axes.heads,
                                            axes.n_queries, axes.n_keys};
    const bool is_boolean = random() % 2 == 0;
    const auto n = static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]);
    // One more byte in front: elements may be at any alignment. In half of the rows few keys are seen, in some none.
    bytes.resize(1 + n * (is_boolean ? 1 : sizeof(float)) + sizeof(float));
    unsigned one_in = 2;
    for (std::size_t i = 0; i < n; ++i) {
      if (shape[3] > 0 && i % static_cast<std::size_t>(shape[3]) == 0) one_in = random() % 2 == 0 ? 2 : 1000;
      const bool is_seen = random() % one_in == 0;
      const float element =
          is_seen ? std::normal_distribution<float>(0, 3)(random) : -std::numeric_limits<float>::infinity();
      if (is_boolean)
        bytes[1 + i] = static_cast<std::byte>(is_seen);
      else
        std::memcpy(bytes.data() + 1 + i * sizeof element, &element, sizeof element);
    }
    mask = Mask::dense(bytes.data() + 1, is_boolean, shape);
  }
  MaskOfCase(const MaskOfCase&) = delete;
  MaskOfCase& operator=(const MaskOfCase&) = delete;

  std::string text() const {
    return (mask.data == nullptr ? ""
            : mask.is_boolean    ? ", a boolean mask"
                                 : ", a mask that is added") +
           (softcap > 0 ? ", capped at " + std::to_string(softcap) : "");
  }
};

/// The forest of one range.
inline Forest<float> decode_range(const Backend& backend, TensorWorkload& workload, const OwnedLeaves& leaves,
                                  const Step& step) {
  const auto cache = backend.make_cache(workload.shape(), leaves, leaves.n_keys(workload.n_keys()));
  cache->set_scales(workload.shape().scales);
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
  Tensor q = normal_tensor(random, c.axes.q(), c.of_queries.value_or(c.axes.dtype)),
         k = normal_tensor(random, c.axes.k(), c.axes.dtype),
         v = normal_tensor(random, c.axes.v(), c.of_values.value_or(c.axes.dtype));
  for_each_row(q.shape, [&](std::int64_t i, std::int64_t h, std::int64_t j) {
    q.set(i, h, j, 0, 0.25f + std::fabs(static_cast<float>(row_of(q, i, h, j)[0])));
  });
  if (c.ends_with_odd_values || c.begins_with_odd_values) {
    using Limits = std::numeric_limits<float>;
    const std::int64_t first = c.begins_with_odd_values ? 0 : c.axes.n_keys - 2;
    for_each_row(v.shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
      for (std::int64_t j = 0; (a == first || a == first + 1) && j < c.axes.value_dim; ++j)
        v.set(i, h, a, j, a == first ? Limits::infinity() : Limits::quiet_NaN());
    });
  }
  auto workload = workload_of(std::move(q), std::move(k), std::move(v), c.lengths);
  workload->set_key_scales(c.key_scales);
  return workload;
}

/// Checks that every row of a case has the bits that the same row has alone, over one rank, by a step that sees everything:
/// the keys that the rule hides have scores of -inf.
inline void check_rows_alone(const Backend& backend, const SeenCase& c, unsigned seed) {
  INFO(c.text() << ", seed " << seed);
  const auto workload = workload_of(c, seed);
  const std::int64_t d_v = c.axes.value_dim, l = c.axes.n_queries;
  const Step step{workload->query(0), workload->lengths(), c.rule};
  const std::vector<float> all = decode_ranges(backend, c, *workload, step);
  if (c.ends_with_odd_values) REQUIRE(std::isnan(all.back()));  // the last query sees the NaN
  if (c.begins_with_odd_values) REQUIRE(std::isfinite(all.back()));
  for (std::int64_t i = 0; i < c.axes.batch; ++i) {
    for (std::int64_t j = 0; j < l; ++j) {
      const Seen seen = step.seen(i, j);
      Tensor k = copy_of(workload->k().entry(i).positions(0, seen.end));
      for (std::int64_t a = 0; a < seen.end; ++a)
        for (std::int64_t g = 0; g < c.axes.kv_heads && !seen.contains(a); ++g)
          k.set(0, g, a, 0, -std::numeric_limits<float>::infinity());
      const auto row =
          workload_of(copy_of(step.q.entry(i).positions(j, j + 1)), std::move(k),
                      copy_of(workload->v().entry(i).positions(0, seen.end)), std::vector{seen.end}, workload->scale);
      const OwnedLeaves whole(c.order == LeafOrder::kDealt ? dealt_ranges(1)[0] : KeyRange{0, seen.end}, c.order);
      Forest<float> forest = decode_range(backend, *row, whole, {row->query(0), row->lengths()});
      const std::span<const float> states = forest.fold();
      const auto size = static_cast<std::size_t>(state_size(d_v));
      for (std::int64_t h = 0; h < c.axes.heads; ++h) {
        const auto row_of_all = static_cast<std::size_t>((i * c.axes.heads + h) * l + j);
        INFO("entry " << i << ", head " << h << ", query " << j);
        REQUIRE(same_numbers(std::span(all).subspan(row_of_all * size, size),
                             states.subspan(static_cast<std::size_t>(h) * size, size)));
      }
    }
  }
}

/// Checks that a row is free of values that are not finite and that it does not see, although rows beside it see them.
inline void check_hidden_values(const Backend& backend, DType dtype) {
  for (const std::int64_t N : {3, 64, 70, 130}) {
    for (const bool at_end : {true, false}) {
      const SeenCase c{.axes = {.heads = 2, .kv_heads = 1, .n_queries = 3, .n_keys = N, .dtype = dtype},
                       .lengths = {N},
                       .rule = {.causal = true, .window = at_end ? 0 : N - 2},
                       .ranges = {{0, N}},
                       .ends_with_odd_values = at_end,
                       .begins_with_odd_values = !at_end};
      check_rows_alone(backend, c, 4520);
    }
  }
}

}  // namespace tree_attn::test
