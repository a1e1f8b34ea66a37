// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The loops over leaves, in every build that this processor runs: bits of the tree down to single keys, scores in
/// the order that is written down, conversions.
#include "tree_attn/reference/cpu/leaf_kernel.hpp"
#include "tree_attn/reference/state/forest.hpp"
#include "tree_attn/tests/support/compare.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kSeed = 7100;

/// Rows of one type, each at an odd address and with a gap behind it.
class Rows {
 public:
  Rows(DType dtype, std::int64_t n, std::int64_t d)
      : dtype_(dtype), n_(n), d_(d), bytes_(static_cast<std::size_t>(n * stride() + 1)) {}
  std::int64_t stride() const { return d_ * static_cast<std::int64_t>(bytes_of(dtype_)) + 3; }
  const std::byte* row(std::int64_t a) const { return bytes_.data() + 1 + a * stride(); }
  void set(std::int64_t a, std::int64_t i, float x) {
    with_dtype(dtype_, [&]<class T>(T) {
      const T stored = narrow<T>(x);
      std::memcpy(bytes_.data() + 1 + a * stride() + i * static_cast<std::int64_t>(sizeof(T)), &stored, sizeof stored);
    });
  }
  /// As F32.
  float get(std::int64_t a, std::int64_t i) const {
    float x = 0;
    with_dtype(dtype_, [&]<class T>(T) {
      T stored;
      std::memcpy(&stored, row(a) + i * static_cast<std::int64_t>(sizeof(T)), sizeof stored);
      x = static_cast<float>(widen(stored));
    });
    return x;
  }
  std::int64_t size() const { return n_; }
  std::int64_t length() const { return d_; }
  DType dtype() const { return dtype_; }

 private:
  DType dtype_;
  std::int64_t n_, d_;
  std::vector<std::byte> bytes_;
};

/// How a chunk is computed; by default as is.
struct Options {
  float query_scale = 1, score_scale = 1;
};

/// States of the keys [begin, begin + n) for the queries q [n_queries][d_h], [n_queries][2 + d_v]. No bit depends on how
/// rows are requested.
std::vector<float> states_of(const LeafKernel& kernel, const Rows& k, const Rows& v, std::int64_t begin, std::int64_t n,
                             const std::vector<float>& q, std::int64_t n_queries, const Options& options = {}) {
  std::vector<float> packed(static_cast<std::size_t>(n_queries * packed_size(k.length())), kNaN);
  for (std::int64_t j = 0; j < n_queries; ++j)
    kernel.pack_query(q.data() + j * k.length(), k.length(), k.dtype(), options.query_scale,
                      packed.data() + j * packed_size(k.length()));
  std::vector<LeafRows> leaves;
  for (std::int64_t a = begin; a < begin + n; a += kLeafKeys) leaves.push_back({k.row(a), v.row(a), k.stride(), v.stride()});
  const std::int64_t n_leaves = std::ssize(leaves);
  std::vector<float> workspace(static_cast<std::size_t>(workspace_floats(n_leaves, n_queries, v.length())), kNaN);
  std::vector<float> states;
  for (const Requests requests : {Requests::kNone, Requests::kFirstLevel, Requests::kSecondLevel}) {
    std::vector<float> requested(static_cast<std::size_t>(n_queries * state_size(v.length())), kNaN);
    kernel.states({.leaves = leaves.data(),
                   .n_leaves = n_leaves,
                   .n_keys = n,
                   .key_type = k.dtype(),
                   .value_type = v.dtype(),
                   .d_h = k.length(),
                   .d_v = v.length(),
                   .n_queries = n_queries,
                   .queries = packed.data(),
                   .score_scale = options.score_scale,
                   .requests = requests},
                  workspace.data(), requested.data());
    if (states.empty()) states = requested;
    CHECK(std::memcmp(states.data(), requested.data(), states.size() * sizeof(float)) == 0);
  }
  return states;
}

/// Equal in bits; any NaN equals any other, and the sign of a zero counts.
bool same(float a, float b) { return std::isnan(a) ? std::isnan(b) : bits_of(a) == bits_of(b); }

struct Draw {
  const char* name;
  float score_scale, value_scale;
  bool special;  ///< values of Inf and NaN; keys that no query sees, or only every other one
};
constexpr std::array<Draw, 5> kDraws{{{"normal", 1, 1, false},
                                      {"scores x 30", 30, 1, false},
                                      {"scores x 300", 300, 1, false},
                                      {"values of 3e37", 1, 3e37f, false},
                                      {"special", 3, 1, true}}};

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("leaf: one shift per leaf has the bits of merging key by key") {
  CAPTURE(kSeed);
  std::int64_t n_compared = 0, n_unseen = 0;
  std::vector<float> of_first_build;
  for (const LeafKernel* kernel : leaf_kernels()) {
    std::vector<float> of_build;
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
      for (const Draw& draw : kDraws) {
        if (dtype == DType::F16 && draw.value_scale > 1) continue;  // beyond its range
        const bool some_see = draw.special && dtype != DType::F16;
        std::mt19937 random(kSeed);
        std::normal_distribution<float> normal;
        for (const auto& [d_h, d_v] : {std::pair{5, 1}, {16, 17}, {32, 33}, {64, 64}, {100, 80}, {128, 128}, {40, 200}}) {
          for (const std::int64_t n_queries : {1, 2, 3, 4, 7}) {
            for (const std::int64_t n : {1, 2, 63, 64, 65, 150, 256}) {
              Rows k(dtype, n, d_h), v(dtype, n, d_v);
              for (std::int64_t a = 0; a < n; ++a) {
                for (std::int64_t i = 0; i < d_h; ++i) k.set(a, i, normal(random));
                for (std::int64_t i = 0; i < d_v; ++i) v.set(a, i, normal(random) * draw.value_scale);
                if (draw.special && random() % 3 == 0) k.set(a, 0, some_see ? -3e38f : -kInf);
                if (draw.special && random() % 40 == 0) v.set(a, d_v - 1, random() % 2 == 0 ? kInf : kNaN);
              }
              std::vector<float> q(static_cast<std::size_t>(n_queries * d_h));
              for (float& x : q) x = normal(random) * draw.score_scale / std::sqrt(static_cast<float>(d_h));
              if (draw.special) {
                for (std::int64_t j = 0; j < n_queries; ++j) {
                  q[static_cast<std::size_t>(j * d_h)] = !some_see    ? 1
                                                         : j % 2 == 0 ? 4
                                                                      : 2e-38f;  // -inf k_0, or 4 k_0: not seen
                }
              }
              INFO(kernel->name << ", " << name_of(dtype) << ", " << draw.name << ", d_h " << d_h << ", d_v " << d_v << ", "
                                << n_queries << " queries, " << n << " keys");
              const std::vector<float> together = states_of(*kernel, k, v, 0, n, q, n_queries);
              Forest<float> forest(n_queries, d_v);
              for (std::int64_t a = 0; a < n; ++a) {
                const std::vector<float> key = states_of(*kernel, k, v, a, 1, q, n_queries);
                for (std::int64_t j = 0; j < n_queries; ++j) {
                  const std::span state(key.data() + j * state_size(d_v), static_cast<std::size_t>(state_size(d_v)));
                  if (!is_empty(state.data())) continue;
                  std::vector<float> empty(state.size());
                  set_empty(empty.data(), d_v);
                  REQUIRE(std::equal(state.begin(), state.end(), empty.begin(), same));
                  ++n_unseen;
                }
                std::copy(key.begin(), key.end(), forest.slot());
                forest.push({0, a});
              }
              const std::span<const float> by_key = forest.fold();
              std::int64_t n_different = 0;
              for (std::size_t i = 0; i < together.size(); ++i) n_different += !same(together[i], by_key[i]);
              REQUIRE(n_different == 0);
              n_compared += std::ssize(together);
              of_build.insert(of_build.end(), together.begin(), together.end());
            }
          }
        }
      }
    }
    // Builds take different numbers of queries at a time.
    if (of_first_build.empty()) of_first_build = of_build;
    INFO(kernel->name);
    CHECK(std::equal(of_build.begin(), of_build.end(), of_first_build.begin(), of_first_build.end(), same));
  }
  CHECK(n_unseen > 1000);
  MESSAGE(n_compared << " elements compared");
}

/// The score of a key in the order that docs/5-tree.md states: sixteen partial sums, then halves, quarters and neighbours.
float score_as_written(const Rows& k, std::int64_t a, const float* q, const Options& options) {
  std::array<float, 16> sums{};
  const bool by_parity = k.dtype() == DType::BF16;
  for (std::int64_t pair = 0; pair < k.length(); pair += 32) {
    for (std::int64_t half = 0; half < 2; ++half) {
      for (std::int64_t lane = 0; lane < 16; ++lane) {
        const std::int64_t i = pair + (by_parity ? 2 * lane + half : 16 * half + lane);
        const float scaled = i < k.length() ? q[i] * options.query_scale : 0;
        volatile float product = i < k.length() ? k.get(a, i) * scaled : 0;  // rounded by itself
        float& sum = sums[static_cast<std::size_t>(lane)];
        sum = pair + half == 0 ? product : sum + product;
      }
    }
  }
  for (std::size_t i = 0; i < 8; ++i) sums[i] += sums[i + 8];
  for (std::size_t i = 0; i < 4; ++i) sums[i] += sums[i + 4];
  return options.score_scale * ((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// @tested{eq_7, eq. (7)}
TEST_CASE("leaf: the state of a key is (ceil s, w, w v), with s summed in the order that is written down") {
  CAPTURE(kSeed);
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  const Options options{.query_scale = 0.7f, .score_scale = 1.3f};
  double largest = 0;
  for (const LeafKernel* kernel : leaf_kernels()) {
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16, DType::F64}) {
      for (std::int64_t d = 1; d <= 140; ++d) {
        INFO(kernel->name << ", " << name_of(dtype) << ", d " << d);
        Rows k(dtype, 20, d), v(dtype, 20, d);
        for (std::int64_t a = 0; a < 20; ++a) {
          for (std::int64_t i = 0; i < d; ++i) k.set(a, i, normal(random)), v.set(a, i, normal(random));
        }
        for (const std::int64_t n_queries : {1, 3, 4}) {
          std::vector<float> q(static_cast<std::size_t>(n_queries * d));
          for (float& x : q) x = normal(random);
          for (std::int64_t a = 0; a < 20; ++a) {
            const std::vector<float> states = states_of(*kernel, k, v, a, 1, q, n_queries, options);
            for (std::int64_t j = 0; j < n_queries; ++j) {
              const float* const state = states.data() + j * state_size(d);
              const float s = score_as_written(k, a, q.data() + j * d, options);
              REQUIRE(state[kShift] == key_shift(s));
              const double weight = std::exp2(static_cast<double>(s) - std::ceil(s));
              largest = std::max(largest, std::abs(state[kSum] - weight) / weight * 0x1p24);
              bool all_products = true;
              for (std::int64_t i = 0; i < d; ++i)
                all_products = all_products && bits_of(state[kValues + i]) == bits_of(state[kSum] * v.get(a, i));
              REQUIRE(all_products);
            }
          }
        }
      }
    }
  }
  CHECK(largest < 2);  // ErrorTerms::exp_error
  MESSAGE("largest relative error of a weight: " << largest << " u");
}

TEST_CASE("leaf: every F16 and every BF16 is widened as widen() does, by every build") {
  for (const LeafKernel* kernel : leaf_kernels()) {
    for (const DType dtype : {DType::F16, DType::BF16}) {
      constexpr std::int64_t kPerRow = 96;
      Rows k(DType::F32, 1, 1);
      k.set(0, 0, 0);  // s = 0: a weight of 1
      for (std::int64_t first = 0; first < 65536; first += kPerRow) {
        std::vector<std::uint16_t> row(kPerRow);
        for (std::int64_t i = 0; i < kPerRow; ++i) row[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(first + i);
        const LeafRows leaf{k.row(0), reinterpret_cast<const std::byte*>(row.data()), k.stride(), 0};
        for (const std::int64_t n_queries : {1, 2}) {
          std::vector<float> packed(64, 0), workspace(static_cast<std::size_t>(workspace_floats(1, 2, kPerRow))),
              states(2 * (2 + kPerRow));
          kernel->states({&leaf, 1, 1, DType::F32, dtype, 1, kPerRow, n_queries, packed.data(), 1.0f}, workspace.data(),
                         states.data());
          for (std::int64_t i = 0; i < kPerRow; ++i) {
            const std::uint16_t bits = row[static_cast<std::size_t>(i)];
            const float want = dtype == DType::F16 ? widen(Half{bits}) : widen(BFloat16{bits});
            if (same(states[static_cast<std::size_t>(kValues + i)], want)) continue;
            FAIL_CHECK(kernel->name << ", " << name_of(dtype) << ", bits " << bits << ": "
                                    << states[static_cast<std::size_t>(kValues + i)] << ", not " << want);
          }
        }
      }
    }
  }
}

TEST_CASE("leaf: every build merges and divides states with the bits of merge() and finish()") {
  std::mt19937 random(kSeed);
  const auto draw = [&](float scale) {
    constexpr float kOdd[] = {0, -0.0f, kInf, -kInf, kNaN, 1e-40f, 3e38f, -3e38f};
    const auto kind = random() % 24;
    return kind < 8 ? kOdd[kind] : scale * std::uniform_real_distribution<float>(-1, 1)(random);
  };
  constexpr std::int64_t kRows = 9;
  for (const std::int64_t d_v : {0, 1, 15, 16, 33, 128}) {
    const std::int64_t size = state_size(d_v);
    std::vector<float> left(static_cast<std::size_t>(kRows * size)), right = left;
    for (std::vector<float>* states : {&left, &right}) {
      for (float& element : *states) element = draw(100);
      for (std::int64_t r = 0; r < kRows; ++r) {
        float* const state = states->data() + r * size;
        state[kShift] = static_cast<float>(static_cast<int>(random() % 400) - 200);
        state[kSum] = r % 3 == 0 ? draw(1) : 1 + static_cast<float>(random() % 1000);
        if (random() % 4 == 0) set_empty(state, d_v);
      }
    }
    std::vector<float> merged = left, z(static_cast<std::size_t>(kRows * d_v)), lse(kRows);
    for (std::int64_t r = 0; r < kRows; ++r) {
      merge(merged.data() + r * size, right.data() + r * size, d_v);
      lse[static_cast<std::size_t>(r)] = finish(merged.data() + r * size, z.data() + r * d_v, d_v);
    }
    for (const LeafKernel* kernel : leaf_kernels()) {
      CAPTURE(kernel->name);
      CAPTURE(d_v);
      // One element more than there are states, to see that it stays.
      std::vector<float> got = left, got_z(z.size() + 1, 7), got_lse(kRows + 1, 7);
      got.push_back(7);
      kernel->merge_states(left.data(), right.data(), got.data(), kRows, d_v);
      CHECK(std::equal(merged.begin(), merged.end(), got.begin(), same));
      // Into either operand.
      std::vector<float> in_place = left;
      kernel->merge_states(in_place.data(), right.data(), in_place.data(), kRows, d_v);
      CHECK(std::equal(merged.begin(), merged.end(), in_place.begin(), same));
      in_place = right;
      kernel->merge_states(left.data(), in_place.data(), in_place.data(), kRows, d_v);
      CHECK(std::equal(merged.begin(), merged.end(), in_place.begin(), same));
      kernel->finish_states(merged.data(), kRows, d_v, got_z.data(), got_lse.data());
      CHECK(std::equal(z.begin(), z.end(), got_z.begin(), same));
      CHECK(std::equal(lse.begin(), lse.end(), got_lse.begin(), same));
      CHECK((got.back() == 7 && got_z.back() == 7 && got_lse.back() == 7));
      // Merged and divided at once, whichever operand is the left one.
      for (const auto& [first, second] : {std::pair(&left, &right), std::pair(&right, &left)}) {
        std::ranges::fill(got_z, 7.0f), std::ranges::fill(got_lse, 7.0f);
        kernel->finish_merged(first->data(), second->data(), kRows, d_v, got_z.data(), got_lse.data());
        CHECK(std::equal(z.begin(), z.end(), got_z.begin(), same));
        CHECK(std::equal(lse.begin(), lse.end(), got_lse.begin(), same));
        CHECK((got_z.back() == 7 && got_lse.back() == 7));
      }
    }
  }
}

TEST_CASE("leaf: no element after the last row is read") {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::int64_t kLength = 70, kRow = 4 * kLength;
  // Rows that end where memory ends.
  void* const memory = ::mmap(nullptr, 9 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  REQUIRE(::mprotect(memory, 8 * page, PROT_READ | PROT_WRITE) == 0);
  const std::byte* const end = static_cast<std::byte*>(memory) + 8 * page;
  for (const LeafKernel* kernel : leaf_kernels()) {
    for (const std::int64_t n : {1, 20, 64, 100}) {
      for (const std::int64_t n_queries : {1, 4}) {
        std::vector<LeafRows> leaves;
        for (std::int64_t a = 0; a < n; a += kLeafKeys)
          leaves.push_back({end - (n - a) * kRow, end - (n - a) * kRow, kRow, kRow});
        std::vector<float> packed(static_cast<std::size_t>(n_queries * packed_size(kLength)), 0),
            workspace(static_cast<std::size_t>(workspace_floats(std::ssize(leaves), n_queries, kLength))),
            states(static_cast<std::size_t>(n_queries * state_size(kLength)));
        kernel->states(
            {leaves.data(), std::ssize(leaves), n, DType::F32, DType::F32, kLength, kLength, n_queries, packed.data(), 1.0f},
            workspace.data(), states.data());
        CHECK(states[kSum] == static_cast<float>(n));  // keys and values of 0, which weigh 1 each
      }
    }
  }
  ::munmap(memory, 9 * page);
}

}  // namespace tree_attn::test
