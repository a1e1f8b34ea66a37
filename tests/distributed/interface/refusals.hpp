// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Arguments that one rank of several refuses, in every collective call of Attention; and a run of one of them.
#pragma once

#include "distributed/interface/attention.hpp"
#include "reference/data/fnv1a.hpp"
#include "tests/support/message.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/sequences.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tree_attn::test::refusals {

inline const AttentionShape kShape{.batch = 2, .heads = 6, .kv_heads = 3, .head_dim = 16, .value_dim = 8};
inline const SeenRule kWindow{.window = 100, .sinks = 3};
/// An object, and the rule of its steps.
struct Object {
  AttentionSetup setup{};
  SeenRule rule{};
};
inline const Object kDense{}, kPages{.setup = {.pages = {.n_pages = 12}}},
    kWindowed{.setup = {.pages = {.n_pages = 12, .window = kWindow.window, .sinks = kWindow.sinks}}, .rule = kWindow};
constexpr std::int64_t kKeys = 300, kMore = 192;  ///< of each sequence; and those of an append(), some on each of 3 ranks

struct Inputs : Sequences {
  Tensor o, lse;
  std::vector<float> sink{0.5f, -1, 2, 0, 1, 3};

  explicit Inputs(std::mt19937 random = std::mt19937(17))
      : Sequences(kShape, 2, kKeys + kMore, random),
        o(normal_tensor(random, {2, 6, 2, 8})),
        lse(normal_tensor(random, {2, 6, 2, 1})) {}
  TensorView more(const Tensor& of) const { return of.view().entry(0).positions(kKeys, kKeys + kMore); }
};
inline const Inputs& inputs() {
  static const Inputs all;
  return all;
}

/// A view with another axis, without data, or said to be on a device, or of another type.
inline TensorView with(TensorView view, std::size_t axis, std::int64_t n) { return view.shape[axis] = n, view; }
inline TensorView without_data(TensorView view) { return view.data = nullptr, view; }
inline TensorView on_device(TensorView view) { return view.on_device = true, view; }
inline TensorView as_bf16(TensorView view) { return view.dtype = DType::BF16, view; }

using Call = std::function<void(Attention&)>;

/// A call that one rank refuses, or makes with other arguments than the rest.
struct Kind {
  std::string_view name;
  const Object& object;
  Call odd, right;
};

inline Call step(const TensorView& q, const SeenRule& rule = {}, std::span<const float> sink = {}) {
  return [=](Attention& attention) { attention.step(q, rule, sink); };
}
inline Call start(const TensorView& q, const SeenRule& rule = {}, std::span<const float> sink = {}) {
  return [=](Attention& attention) { attention.start(q, rule, sink); };
}
inline Call combine(const TensorView& o, const TensorView& lse, OutputPart part = OutputPart::kAll) {
  return [=](Attention& attention) { attention.combine(o, lse, part); };
}
inline Call append(std::int64_t entry, const TensorView& k, const TensorView& v) {
  return [=](Attention& attention) { attention.append(entry, k, v); };
}
inline Call refuse(Refused call = Refused::kStep) {
  return [=](Attention& attention) { attention.refuse("q is on another planet", call); };
}

inline Call use(const std::string& algorithm) {
  return [=](Attention& attention) { attention.use(algorithm); };
}
inline Call reshard(const std::vector<KeyRange>& ranges) {
  return [=](Attention& attention) { attention.reshard(ranges); };
}

/// The kinds of calls of an object that is open.
inline std::vector<Kind> kinds() {
  const Inputs& in = inputs();
  const TensorView q = in.q, o = in.o, lse = in.lse, k = in.more(in.k), v = in.more(in.v);
  const std::span<const float> sink = in.sink;
  static const std::vector<float> other{0.5f, -1, 2, 0, 1, 4};
  std::vector<Kind> all;
  const auto add = [&](const Object& object, const Call& right, std::vector<std::pair<std::string_view, Call>> odd) {
    for (auto& [name, call] : odd) all.push_back({name, object, std::move(call), right});
  };
  add(kDense, step(q),
      {{"step: another batch", step(with(q, 0, 1))},
       {"step: other heads", step(with(q, 1, 3))},
       {"step: other queries", step(with(q, 2, 1))},
       {"step: another head dim", step(with(q, 3, 8))},
       {"step: a negative axis", step(with(q, 2, -1))},
       {"step: no data", step(without_data(q))},
       {"step: queries on a device", step(on_device(q))},
       {"step: queries of another type", step(as_bf16(q))},
       {"step: a negative window", step(q, {.window = -1})},
       {"step: negative sinks", step(q, {.window = 9, .sinks = -1})},
       {"step: too few learned sinks", step(q, {}, sink.first(5))},
       {"step: another window", step(q, {.window = 9})},
       {"step: causal alone", step(q, {.causal = true})},
       {"step: learned sinks alone", step(q, {}, sink)},
       {"step: refused by the caller", refuse()}});
  add(kDense, step(q, {.window = 9}, sink),
      {{"step: other sinks", step(q, {.window = 9, .sinks = 2}, sink)},
       {"step: no learned sinks", step(q, {.window = 9})},
       {"step: other learned sinks", step(q, {.window = 9}, other)}});
  add(kDense, start(q),
      {{"start: no data", start(without_data(q))},
       {"start: queries of another type", start(as_bf16(q))},
       {"start: other heads", start(with(q, 1, 12))},
       {"start: a negative window", start(q, {.window = -9})},
       {"start: another window", start(q, {.window = 9})},
       {"start: refused by the caller", refuse()}});
  add(kWindowed, step(q, kWindow),
      {{"step in pages: keys that were given back", step(q)},
       {"step in pages: a wider window", step(q, {.window = 290, .sinks = 3})},
       {"step in pages: no data", step(without_data(q), kWindow)}});
  add(kDense, combine(o, lse),
      {{"combine: another batch", combine(with(o, 0, 1), with(lse, 0, 1))},
       {"combine: other queries", combine(with(o, 2, 1), with(lse, 2, 1))},
       {"combine: another value dim", combine(with(o, 3, 4), lse)},
       {"combine: a negative axis", combine(with(o, 3, -1), lse)},
       {"combine: states beyond 2^40", combine(with(o, 2, std::int64_t{1} << 41), lse)},
       {"combine: an lse of other axes", combine(o, with(lse, 1, 3))},
       {"combine: an lse of two columns", combine(o, with(lse, 3, 2))},
       {"combine: no data of o", combine(without_data(o), lse)},
       {"combine: no data of lse", combine(o, without_data(lse))},
       {"combine: o on a device", combine(on_device(o), lse)},
       {"combine: both on a device", combine(on_device(o), on_device(lse))},
       {"combine: by heads alone", combine(o, lse, OutputPart::kHeads)},
       {"combine: refused by the caller", refuse()}});
  add(kDense, combine(o, lse, OutputPart::kHeads),
      {{"combine by heads: heads that are no multiple", combine(with(o, 1, 5), with(lse, 1, 5), OutputPart::kHeads)},
       {"combine by heads: all alone", combine(o, lse)}});
  add(kDense, use("gather"),
      {{"use: an unknown algorithm", use("none")},
       {"use: another algorithm", use("paper")},
       {"use: an algorithm that takes no dealt order", use("one-shot")},
       {"use: refused by the caller", refuse(Refused::kMove)}});
  add(kDense, reshard(dealt_ranges(2)),
      {{"reshard: fewer ranks", reshard(dealt_ranges(1))},
       {"reshard: no ranges", reshard({})},
       {"reshard: more ranges than ranks", reshard(dealt_ranges(9))},
       {"reshard: an end that is too early", reshard({{0, 640}})},
       {"reshard: ranges that overlap", reshard({{0, 640}, {64, dealt_ranges(1)[0].end}})},
       {"reshard: refused by the caller", refuse(Refused::kMove)}});
  add(kPages, append(0, k, v),
      {{"append in pages: entry -1", append(-1, k, v)},
       {"append in pages: an entry beyond the batch", append(2, k, v)},
       {"append in pages: another entry", append(1, k, v)},
       {"append in pages: fewer positions", append(0, k.positions(0, 10), v.positions(0, 10))},
       {"append in pages: no position", append(0, k.positions(0, 0), v.positions(0, 0))},
       {"append in pages: a negative number of positions", append(0, with(k, 2, -1), with(v, 2, -1))},
       {"append in pages: other positions in v", append(0, k, v.positions(0, 10))},
       {"append in pages: two entries at once", append(0, with(k, 0, 2), with(v, 0, 2))},
       {"append in pages: other KV heads", append(0, with(k, 1, 2), v)},
       {"append in pages: another head dim", append(0, with(k, 3, 8), v)},
       {"append in pages: another value dim", append(0, k, with(v, 3, 4))},
       {"append in pages: no data of keys", append(0, without_data(k), v)},
       {"append in pages: no data of values", append(0, k, without_data(v))},
       {"append in pages: keys on a device", append(0, on_device(k), v)},
       {"append in pages: another type", append(0, TensorView{k.data, DType::F64, k.shape, k.stride}, v)},
       {"append in pages: refused by the caller", refuse(Refused::kAppend)}});
  return all;
}

/// Arguments of the constructor of one rank.
struct Opened {
  AttentionShape shape = kShape;
  AttentionSetup setup{};
};
struct OpenKind {
  std::string_view name;
  std::function<void(Opened&)> change;
};

/// The kinds of setups that one rank refuses, or has alone. @param p ranks
inline std::vector<OpenKind> open_kinds(int p) {
  const auto ranges = [p](std::int64_t first) {
    std::vector<KeyRange> all{{0, first}};
    for (int rank = 1; rank < p; ++rank) all.push_back({64 * rank, rank + 1 == p ? kOpenEnd : 64 * (rank + 1)});
    return all;
  };
  return {{"open: an unknown algorithm", [](Opened& a) { a.setup.algorithm = "none"; }},
          {"open: another algorithm", [](Opened& a) { a.setup.algorithm = "gather"; }},
          {"open: an algorithm that takes no dealt order", [](Opened& a) { a.setup.algorithm = "one-shot"; }},
          {"open: an unknown backend", [](Opened& a) { a.setup.backend = "none"; }},
          {"open: another backend", [](Opened& a) { a.setup.backend = "emulated"; }},
          {"open: no threads", [](Opened& a) { a.setup.n_threads = 0; }},
          {"open: nodes of -1 ranks", [](Opened& a) { a.setup.ranks_per_node = -1; }},
          {"open: nodes of 2 ranks", [](Opened& a) { a.setup.ranks_per_node = 2; }},
          {"open: no shared memory", [](Opened& a) { a.setup.shares_memory = false; }},
          {"open: one range",
           [](Opened& a) {
             a.setup.ranges = {{0, kOpenEnd}};
           }},
          {"open: ranges that overlap", [=](Opened& a) { a.setup.ranges = ranges(96); }},
          {"open: ranges at all", [=](Opened& a) { a.setup.ranges = ranges(64); }},
          {"open: a cut inside a leaf",
           [=](Opened& a) {
             a.setup.ranges = ranges(64);
             a.setup.ranges[0].end = a.setup.ranges[1].begin = 33;
           }},
          {"open: a negative capacity", [](Opened& a) { a.setup.capacity = -1; }},
          {"open: another capacity", [](Opened& a) { a.setup.capacity = 640; }},
          {"open: steps of at most -1 queries", [](Opened& a) { a.setup.most_queries = -1; }},
          {"open: more queries", [](Opened& a) { a.setup.most_queries = 7; }},
          {"open: -1 pages", [](Opened& a) { a.setup.pages.n_pages = -1; }},
          {"open: pages at all", [](Opened& a) { a.setup.pages.n_pages = 12; }},
          {"open: scales of F32", [](Opened& a) { a.setup.scales.k = {1}; }},
          {"open: another scale", [](Opened& a) { a.setup.scale = 2; }},
          {"open: a radix of 1", [](Opened& a) { a.setup.plan.radix = 1; }},
          {"open: another radix", [](Opened& a) { a.setup.plan.radix = 3; }},
          {"open: lengths that are not compared", [](Opened& a) { a.setup.compares_lengths = false; }},
          {"open: a negative axis", [](Opened& a) { a.shape.head_dim = -1; }},
          {"open: heads that are no multiple of KV heads", [](Opened& a) { a.shape.heads = 7; }},
          {"open: another type", [](Opened& a) { a.shape.dtype = DType::BF16; }},
          {"open: another batch", [](Opened& a) { a.shape.batch = 1; }},
          {"open: refused by the caller", [](Opened& a) { a.setup.refusal = "dtype is of the moon"; }}};
}

/// Checks that all ranks refuse a call with one line, which names the rank; at once.
template <class Body>
void check_refused(const Ranks& ranks, const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string line = message<InputError>(body);
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 1);
  const bool names_rank =
      line.starts_with("rank 1: ") || line.find("ranks 0 and 1 differ in ") != line.npos ||
      line.find(" cannot be scattered over ") != line.npos;  // every rank refuses heads that do not divide
  CHECK_MESSAGE(names_rank, line);
  CHECK(ranks.all_equal(fnv1a(std::as_bytes(std::span(line))), "a test"));
}

/// An object with kKeys keys of both sequences.
inline void fill(Attention& attention) {
  for (std::int64_t entry = 0; entry < 2; ++entry) inputs().append(attention, entry, kKeys);
}

/// Runs all kinds, each many times. Rank 1 is the odd one. @param open makes the object of this rank for a shape and a setup
template <class Open>
void check_all(const Ranks& ranks, int n_times, const Open& open) {
  const bool is_odd = ranks.rank() == 1;
  const auto step_of_one = [](const Object& object) {
    Attention alone(kShape, object.setup);
    fill(alone);
    return alone.step(inputs().q, object.rule).copy();
  };
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    const std::unique_ptr<Attention> attention = open(kShape, kind.object.setup);
    fill(*attention);
    for (int i = 0; i < n_times; ++i) check_refused(ranks, [&] { (is_odd ? kind.odd : kind.right)(*attention); });
    CHECK(attention->lengths()[0] == kKeys);
    CHECK(same_bits(attention->step(inputs().q, kind.object.rule).copy(), step_of_one(kind.object)));
    CHECK(attention->combine(inputs().o, inputs().lse).lse.size() == 24);
    attention->append(0, inputs().more(inputs().k), inputs().more(inputs().v));
  }
  const DecodeOutput expected = step_of_one(kDense);
  for (const OpenKind& kind : open_kinds(ranks.size())) {
    CAPTURE(kind.name);
    Opened mine;
    if (is_odd) kind.change(mine);
    for (int i = 0; i < n_times; ++i) check_refused(ranks, [&] { open(mine.shape, mine.setup); });
    const std::unique_ptr<Attention> attention = open(kShape, {});
    fill(*attention);
    CHECK(same_bits(attention->step(inputs().q).copy(), expected));
  }
}

}  // namespace tree_attn::test::refusals
