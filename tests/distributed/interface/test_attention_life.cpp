// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The second life of an Attention: random appends, cuts, releases, shared prefixes and steps over ranks, on the CPU
/// and on a device, against an object that is filled anew before every step.
#include "distributed/interface/attention.hpp"
#include "distributed/transport/thread_transport.hpp"
#include "gpu/emulator/settings.hpp"
#include "reference/data/input_error.hpp"
#include "tests/support/decoding.hpp"
#include "tests/support/device_tensor.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tree_attn::test::attention_life_test {
namespace {

constexpr double kTimeout = 60;
constexpr std::int64_t kRows = 600, kDim = 8, kMostKeys = 500;

/// Keys and values of which sequences are made: the key at a position is one of these rows.
struct Rows {
  Tensor k, v;
};

/// Expected content of the object: the rows of each sequence, and from where on their pages are there for sure.
struct Model {
  std::vector<std::vector<std::int64_t>> rows;
  std::vector<std::int64_t> kept_from;
};

/// One kind of object.
struct Kind {
  int p;
  bool is_emulated;
  AttentionShape shape;
  AttentionSetup setup;
  std::string text() const {
    return setup.backend + ", " + setup.algorithm + ", " + std::string(name_of(shape.dtype)) + ", " + std::to_string(p) +
           " ranks, " + (setup.ranges.empty() ? "dealt" : "contiguous") + ", " + std::to_string(setup.pages.n_pages) +
           " pages, a window of " + std::to_string(setup.pages.window);
  }
};

/// Some positions of a sequence as tensors.
Rows taken(const Rows& all, std::span<const std::int64_t> rows) {
  const auto take = [&](const Tensor& from) {
    Tensor to({}, {1, from.shape[1], std::ssize(rows), kDim}, from.dtype);
    const std::size_t n = static_cast<std::size_t>(kDim) * bytes_of(from.dtype);
    for (std::int64_t h = 0; h < from.shape[1]; ++h) {
      for (const std::int64_t row : rows) {
        const std::byte* const first = from.view().row(0, h, row);
        to.bytes.insert(to.bytes.end(), first, first + n);
      }
    }
    return to;
  };
  return {take(all.k), take(all.v)};
}

/// The operations of one rank, the same on all. @returns whether each was refused
class Life {
 public:
  Life(const Ranks& ranks, const Kind& kind, unsigned seed)
      : kind_(kind),
        random_(seed),
        model_{std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(kind.shape.batch)),
               std::vector<std::int64_t>(static_cast<std::size_t>(kind.shape.batch), 0)},
        attention_(ranks, kind.shape, kind.setup) {
    const AttentionShape& s = kind.shape;
    all_ = {normal_tensor(random_, {1, s.kv_heads, kRows, kDim}, s.dtype),
            normal_tensor(random_, {1, s.kv_heads, kRows, kDim}, s.dtype)};
  }

  void operate() {
    const std::int64_t batch = kind_.shape.batch, entry = draw(batch - 1), length = std::ssize(of(entry));
    switch (draw(9)) {
      case 0: truncate(entry, draw(length)); break;
      case 1: truncate(entry, 0); break;
      case 2: {
        const std::int64_t to = draw(batch - 1);
        if (to != entry) truncate(to, 0);
        append(entry, 1), share(entry, to, draw(1) == 0 ? std::ssize(of(entry)) : draw(length));
        break;
      }
      case 3: append(entry, draw(200)); break;
      case 4:
      case 5: append(entry, 1); break;
      default: append(entry, draw(40));
    }
    if (draw(2) > 0) step();
  }
  int n_steps = 0, n_refused = 0, n_shared = 0, n_wrong = 0;

 private:
  std::int64_t draw(std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random_); }
  std::vector<std::int64_t>& of(std::int64_t entry) { return model_.rows[static_cast<std::size_t>(entry)]; }
  std::int64_t& kept_from(std::int64_t entry) { return model_.kept_from[static_cast<std::size_t>(entry)]; }
  /// Calls an operation that is refused unless it may happen. @returns may
  template <class Call>
  bool happens(bool may, const Call& call) {
    try {
      call();
      n_wrong += !may;
    } catch (const std::out_of_range&) {
      n_wrong += may, ++n_refused;
    }
    return may;
  }

  void append(std::int64_t entry, std::int64_t n) {
    n = std::min(n, kMostKeys - std::ssize(of(entry)));
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < n; ++i) rows.push_back(draw(kRows - 1));
    const Rows tensors = taken(all_, rows);
    const bool on_device = kind_.is_emulated && draw(3) == 0;
    try {
      if (on_device)
        attention_.append(entry, DeviceTensor(tensors.k).view(), DeviceTensor(tensors.v).view());
      else
        attention_.append(entry, tensors.k, tensors.v);
    } catch (const std::exception&) {  // too few pages
      n_wrong += kind_.setup.pages.n_pages == 0, ++n_refused;
      return;
    }
    of(entry).insert(of(entry).end(), rows.begin(), rows.end());
    const PageRule& pages = kind_.setup.pages;
    if (pages.window > 0)
      kept_from(entry) = std::max(kept_from(entry), std::ssize(of(entry)) - (kind_.setup.most_queries - 1) - pages.window);
  }
  void truncate(std::int64_t entry, std::int64_t n) {
    const bool may = n == 0 || n >= kept_from(entry);
    if (!happens(may, [&] { n == 0 ? attention_.release(entry) : attention_.truncate(entry, n); })) return;
    of(entry).resize(static_cast<std::size_t>(n));
    if (n == 0) kept_from(entry) = 0;
  }
  void share(std::int64_t from, std::int64_t to, std::int64_t n) {
    if (kind_.setup.pages.n_pages == 0 || from == to) return;
    if (!of(to).empty()) truncate(to, 0);
    if (!happens(n == 0 || n >= kept_from(from), [&] { attention_.share(from, to, n); })) return;
    of(to) = of(from), of(to).resize(static_cast<std::size_t>(n));
    kept_from(to) = n == 0 ? 0 : kept_from(from);
    ++n_shared;
  }
  void step() {
    const AttentionShape& s = kind_.shape;
    const Tensor q = normal_tensor(random_, {s.batch, s.heads, 1 + draw(2), kDim}, s.dtype);
    const PageRule& pages = kind_.setup.pages;
    const std::int64_t window = pages.window > 0 ? pages.window - draw(pages.window / 2) : draw(2) == 0 ? 1 + draw(300) : 0;
    const SeenRule rule{draw(1) == 0, window, pages.window > 0 ? pages.sinks : draw(80)};
    const bool on_device = kind_.is_emulated && draw(1) == 0;
    AttentionSetup setup{.backend = kind_.setup.backend};
    if (!kind_.setup.ranges.empty()) setup.ranges = {{0, kOpenEnd}};
    Attention fresh(s, setup);
    for (std::int64_t entry = 0; entry < s.batch; ++entry) {
      const Rows tensors = taken(all_, of(entry));
      fresh.append(entry, tensors.k, tensors.v);
    }
    n_wrong += !std::ranges::equal(attention_.lengths(), fresh.lengths());
    // After a cut, a window may begin before what was kept.
    const Step seen{q, fresh.lengths(), rule};
    bool sees_all = true;
    for (std::int64_t entry = 0; entry < s.batch; ++entry) {
      const std::int64_t begin = (pages.sinks + kLeafKeys - 1) / kLeafKeys * kLeafKeys,
                         end = kept_from(entry) / kLeafKeys * kLeafKeys;
      sees_all = sees_all && (begin >= end || !seen.seen_by_any(entry).touches(begin, end));
    }
    try {
      const DecodeOutput got =
          on_device ? attention_.step(DeviceTensor(q).view(), rule).copy() : attention_.step(q, rule).copy();
      n_wrong += !sees_all || !same_bits(got, fresh.step(q, rule).copy()), ++n_steps;
    } catch (const std::invalid_argument&) {
      n_wrong += sees_all, ++n_refused;
    } catch (const InputError&) {
      n_wrong += sees_all, ++n_refused;
    }
  }

  const Kind& kind_;
  std::mt19937 random_;
  Model model_;
  Rows all_{Tensor({}, {1, 1, 0, kDim}, DType::F32), Tensor({}, {1, 1, 0, kDim}, DType::F32)};
  Attention attention_;
};

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("facade: random lives of sequences have the bits of an object that is filled anew, over ranks and on a device") {
  const emulated::SettingsScope defaults({});
  const int n_cases = takes_all_cases() ? 400 : kIsSanitized ? 12 : 36;
  std::atomic<int> n_steps = 0, n_refused = 0, n_shared = 0;
  std::mt19937 random(6500);
  const auto draw = [&](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  for (int i = 0; i < n_cases; ++i) {
    const bool is_emulated = i % 3 == 2;
    Kind kind{.p = 1 + static_cast<int>(draw(2)),
              .is_emulated = is_emulated,
              .shape = {},
              .setup = {.backend = is_emulated ? "emulated" : "cpu"}};
    const DType dtype = std::array{DType::F32, DType::BF16, DType::F16}[static_cast<std::size_t>(draw(2))];
    kind.shape = {.dtype = dtype,
                  .value_dtype = dtype,
                  .batch = 1 + draw(2),
                  .heads = 4,
                  .kv_heads = 2,
                  .head_dim = kDim,
                  .value_dim = kDim};
    kind.setup.most_queries = 1 + draw(1);
    kind.setup.algorithm = std::array{"two-level", "gather", "leaders", "ring-state"}[static_cast<std::size_t>(draw(3))];
    if (draw(1) == 0) {
      // Whole leaves for each, the last range open; or two ranks and one without keys.
      for (int rank = 0; rank < kind.p; ++rank) kind.setup.ranges.push_back({64 * rank, 64 * (rank + 1)});
      if (kind.p == 3) kind.setup.ranges[1].end = 64, kind.setup.ranges[2].begin = 64;
      kind.setup.ranges.back().end = kOpenEnd;
    }
    if (draw(2) > 0) {
      const bool has_window = draw(1) == 0;
      kind.setup.pages = {4 + draw(20), has_window ? 20 + draw(150) : 0, has_window ? draw(1) * draw(100) : 0};
    }
    const auto seed = static_cast<unsigned>(draw(1 << 30));
    const std::string text = kind.text();
    INFO(i << ": " << text);
    std::atomic<int> n_wrong = 0;
    run_threads(Topology::pretend(kind.p, 2), kTimeout, ThreadBody([&](const ThreadRanks& ranks, ThreadTransport&) {
                  Life life(ranks, kind, seed);
                  for (int operation = 0; operation < (is_emulated ? 16 : 40); ++operation) life.operate();
                  n_wrong += life.n_wrong, n_steps += life.n_steps, n_refused += life.n_refused, n_shared += life.n_shared;
                }));
    CHECK(n_wrong.load() == 0);
  }
  CHECK(n_steps.load() > 10 * n_cases);
  CHECK(n_refused.load() > n_cases / 2);
  CHECK(n_shared.load() > n_cases / 2);
}

}  // namespace tree_attn::test::attention_life_test
