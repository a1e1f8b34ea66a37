// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The CPU backend has the bits of the plain decode: in every state, for every type, shape, length, cut, order of
/// leaves, number of threads and instruction set (eq. (7), section 5).
#include "reference/cpu/leaf_kernel.hpp"
#include "reference/decode/backend.hpp"
#include "reference/decode/plain.hpp"
#include "tests/support/plain_of.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/tensor_workload.hpp"

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <utility>

namespace tree_attn::test::plain_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kTypes{DType::F32, DType::F16, DType::BF16, DType::F64, DType::F8_E4M3};

/// Decodes the keys of a range of the tree with the backend and plainly, and compares all states.
void check_range(TensorWorkload& workload, const OwnedLeaves& leaves, int n_threads = 1) {
  const auto cache = cpu_backend(n_threads).make_cache(workload.shape(), leaves, 1);
  if (leaves.order() == LeafOrder::kContiguous && leaves.range().end <= workload.n_keys())
    cache->borrow(workload.shard(leaves.range()), rows_in_use(workload.lengths(), leaves));
  else
    fill(*cache, workload, workload.lengths());
  check_plain(*cache, {workload.query(0), workload.lengths()}, workload.scale);
}
void check_whole(TensorWorkload& workload, int n_threads = 1) {
  check_range(workload, KeyRange{0, workload.n_keys()}, n_threads);
}

/// 0, 1, 2, ..., n - 1.
std::vector<std::int64_t> lengths_below(std::int64_t n) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(n));
  std::iota(lengths.begin(), lengths.end(), 0);
  return lengths;
}

}  // namespace

TEST_CASE("plain: the backend has its bits for every type, row and length below 200, and for some up to 3000") {
  unsigned seed = 7810;
  for (const DType dtype : kTypes) {
    // Every length, as entries of one batch.
    for (const auto& [d_h, d_v] :
         {std::pair{1, 1}, {5, 3}, {16, 17}, {33, 7}, {64, 64}, {65, 127}, {128, 128}, {192, 128}, {300, 256}, {576, 512}}) {
      INFO(name_of(dtype) << ", d_h " << d_h << ", d_v " << d_v);
      const std::int64_t n = kIsSanitized || d_h > 300 ? 70 : 200;
      check_whole(*normal_workload(seed++, {n, 1, 1, d_h, d_v, 1, n - 1, dtype}, lengths_below(n)));
    }
    // Every length, as the end of a range that may cut a leaf.
    std::vector<std::int64_t> ends = lengths_below(200);
    for (const std::int64_t end : {255, 256, 257, 511, 640, 1000, 1024, 1025, 2047, 2500, 3000}) ends.push_back(end);
    for (const std::int64_t N : ends) {
      INFO(name_of(dtype) << ", " << N << " keys");
      check_whole(*normal_workload(seed++, {1, 2, 1, 12, 9, 1, N, dtype}));
    }
  }
}

TEST_CASE("plain: the backend has its bits for every group, number of queries and threads, and any layout") {
  for (const DType dtype : kTypes) {
    for (const auto& [heads, kv_heads, l] :
         {std::array{1, 1, 1}, {4, 1, 1}, {6, 2, 1}, {8, 2, 3}, {3, 3, 2}, {16, 1, 1}, {5, 1, 1}}) {
      for (const int n_threads : {1, 3}) {
        INFO(name_of(dtype) << ", " << heads << " heads for " << kv_heads << ", l " << l << ", " << n_threads << " threads");
        const Axes axes{3, heads, kv_heads, 64, 64, l, 450, dtype};
        check_whole(*normal_workload(7820, axes, std::vector<std::int64_t>{450, 1, 65}), n_threads);
      }
    }
    const auto dense = normal_workload(7821, {.batch = 2, .head_dim = 40, .value_dim = 40, .n_keys = 150, .dtype = dtype});
    check_whole(*packed(*dense));
    check_whole(*misaligned(*dense, 1));
  }
  // Keys and values of two types.
  std::mt19937 random(7822);
  check_whole(*workload_of(normal_tensor(random, {1, 2, 1, 70}), normal_tensor(random, {1, 2, 300, 70}, DType::F16),
                           normal_tensor(random, {1, 2, 300, 33}, DType::BF16)));
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("plain: the backend has its bits on every shard, wherever it ends, in both orders of leaves") {
  std::mt19937 random(7830);
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const std::int64_t N : {0, 1, 63, 64, 65, 130, 700, 3000}) {
      INFO(name_of(dtype) << ", " << N << " keys");
      const std::vector<std::int64_t> lengths{N, N / 2, std::min<std::int64_t>(N, 1)};
      const auto workload = normal_workload(7831, {3, 2, 1, 9, 5, 1, N, dtype}, lengths);
      for (int i = 0; i < 12; ++i) {
        const std::int64_t a = random() % (N + 1), b = random() % (N + 1);
        const KeyRange cut{std::min(a, b) / kLeafKeys * kLeafKeys, std::max(a, b)};
        CAPTURE(cut.begin);
        CAPTURE(cut.end);
        check_range(*workload, cut);
        check_range(*workload, KeyRange{cut.begin, kOpenEnd});
      }
      for (const int p : {1, 2, 3, 5, 8, 13}) {
        for (const KeyRange& range : dealt_ranges(p))
          check_range(*workload, OwnedLeaves(range, LeafOrder::kDealt), 1 + p % 3);
      }
    }
  }
  // Leaves with the same low bits, which are siblings.
  const auto workload =
      normal_workload(7832, {.heads = 1, .kv_heads = 1, .head_dim = 2, .value_dim = 1, .n_keys = 9000 * 64});
  for (const int p : {1, 3}) {
    for (const KeyRange& range : dealt_ranges(p)) check_range(*workload, OwnedLeaves(range, LeafOrder::kDealt));
  }
}

namespace {

/// A fault in one element of every tenth row or so, in batch entries of 64, 130 and 1 keys.
struct Special {
  const char* name;
  float score_scale, value_scale;
  std::vector<float> in_q, in_k, in_v;
};
const Special kSpecial[] = {{"scores x 30", 30, 1, {}, {}, {}},
                            {"scores x 300", 300, 1, {}, {}, {}},
                            {"keys not seen", 1, 1, {}, {-kInf}, {}},
                            {"keys not seen, with values that are not finite", 3, 1, {}, {-kInf}, {kNaN, kInf, -kInf}},
                            {"values that are not finite", 1, 1, {}, {}, {kNaN, kInf, -kInf, -0.0f}},
                            {"scores that are not finite", 1, 1, {}, {kNaN, kInf, -kInf}, {}},
                            {"queries that are not finite", 1, 1, {kNaN, kInf, -kInf, 0}, {-kInf}, {}},
                            {"large values", 20, 3e37f, {}, {}, {3e38f, -3e38f}},
                            {"small values", 40, 1e-37f, {}, {}, {1e-45f, -1e-40f, 0, -0.0f}},
                            {"large scores", 1, 1, {1e30f, -1e30f}, {1e8f, -1e8f, 1e20f}, {}}};

/// @param rare one element in so many
std::unique_ptr<TensorWorkload> special_workload(const Special& special, DType dtype, std::int64_t n, unsigned rare) {
  std::mt19937 random(7840);
  const auto some = [&random, rare](Tensor tensor, const std::vector<float>& elements) {
    for_each_row(tensor.shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
      if (!elements.empty() && random() % rare == 0)
        tensor.set(i, h, a, random() % tensor.shape[3], elements[random() % elements.size()]);
    });
    return tensor;
  };
  Tensor q = some(normal_tensor(random, {4, 4, 1, 37}, dtype, special.score_scale), special.in_q);
  for (std::int64_t i = 0; i < 4; ++i) q.set(i, 0, 0, 0, 1);
  Tensor k = some(normal_tensor(random, {4, 2, n, 37}, dtype), special.in_k);
  Tensor v = some(normal_tensor(random, {4, 2, n, 21}, dtype, special.value_scale), special.in_v);
  for (std::int64_t a = 0; a < std::min<std::int64_t>(n, 80); ++a)
    k.set(3, 0, a, 0, -kInf);  // a leaf that one head sees not
  return workload_of(std::move(q), std::move(k), std::move(v), std::vector<std::int64_t>{n, 64, 1, n});
}

}  // namespace

/// The theorem of docs/II.2-tree.md: what its conditions exclude is not drawn.
/// @tested{thm_1, Thm. 1}
TEST_CASE("plain: one shift per leaf has the bits of merging key by key") {
  constexpr std::int64_t kKeys = 150;
  std::int64_t n_empty = 0, n_far = 0;
  for (const DType dtype : kTypes) {
    for (const Special& special : kSpecial) {
      if (!special.in_q.empty() || special.value_scale != 1) continue;  // sums that overflow, products that vanish
      INFO(name_of(dtype) << ", " << special.name);
      const auto workload = special_workload(special, dtype, kKeys, 40);
      const auto states_of = [&workload](KeyRange keys) {  // as if they were the first of their sequences
        const Shard shard = workload->shard(keys);
        std::vector<std::int64_t> lengths = workload->lengths();
        for (std::int64_t& n : lengths) n = std::clamp<std::int64_t>(n - keys.begin, 0, keys.size());
        return plain::decode({workload->query(0), lengths}, shard.k, shard.v, KeyRange{0, keys.size()}, workload->scale);
      };
      Forest<float> whole = states_of({0, kKeys}), by_key(whole.n_rows(), whole.d_v());
      float largest = -kInf, smallest = kInf;
      for (std::int64_t a = 0; a < kKeys; ++a) {
        const Forest<float> key = states_of({a, a + 1});
        std::copy(key.states().begin(), key.states().end(), by_key.next());
        by_key.push({0, a});
        for (const float* state = key.states().data(); state < key.states().data() + key.states().size();
             state += state_size(whole.d_v())) {
          n_empty += is_empty(state);
          if (std::isfinite(state[kShift]))
            largest = std::max(largest, state[kShift]), smallest = std::min(smallest, state[kShift]);
        }
      }
      n_far += largest - smallest > 126;
      const std::span<const float> merged = by_key.fold(), at_once = whole.fold();
      REQUIRE(same_numbers(merged, at_once));
    }
  }
  CHECK(n_far > 0);
  CHECK(n_empty > 100);
}

TEST_CASE("plain: the backend has its bits where numbers are not finite, overflow or vanish") {
  std::int64_t n_empty = 0, n_nan = 0;
  for (const DType dtype : kTypes) {
    for (const Special& special : kSpecial) {
      for (const unsigned rare : {1u, 10u, 100u}) {
        INFO(name_of(dtype) << ", " << special.name << ", one in " << rare);
        const auto workload = special_workload(special, dtype, 330, rare);
        check_whole(*workload);
        check_range(*workload, OwnedLeaves(dealt_ranges(3)[1], LeafOrder::kDealt));
        for (const KeyRange& cut : {KeyRange{0, 128}, {64, 192}, {64, 330}}) {
          check_range(*workload, cut);
          const Shard shard = workload->shard(cut);
          const Forest<float> forest =
              plain::decode({workload->query(0), workload->lengths()}, shard.k, shard.v, cut, workload->scale);
          for (auto state = forest.states().begin(); state < forest.states().end(); state += 23)
            n_empty += is_empty(&*state), n_nan += std::isnan(state[kSum]);
        }
      }
    }
  }
  CHECK(n_empty > 1000);
  CHECK(n_nan > 1000);
}

TEST_CASE("plain: every instruction set has its bits, with a mask and a soft cap too") {
  for (const LeafKernel* kernel : leaf_kernels()) {
    for (const DType dtype : kTypes) {
      for (const auto& [d_h, d_v] : {std::pair{7, 5}, {32, 33}, {64, 64}, {80, 100}, {128, 128}, {192, 165}}) {
        for (const std::int64_t n_queries : {1, 2, 5, 8, 35}) {
          for (const std::int64_t n : {1, 2, 63, 64, 65, 150, 500}) {
            if (n_queries > 8 && n != 65) continue;
            INFO(kernel->name << ", " << name_of(dtype) << ", d_h " << d_h << ", d_v " << d_v << ", " << n_queries
                              << " queries, " << n << " keys");
            const std::vector<std::int64_t> lengths{n};
            const auto workload = normal_workload(7850, {1, n_queries, 1, d_h, d_v, 1, n, dtype});
            const TensorView q = workload->query(0), k = workload->k(), v = workload->v();
            const ScoreScale scale = split_scale(workload->scale);
            std::vector<float> row(static_cast<std::size_t>(d_h)),
                packed(static_cast<std::size_t>(n_queries * packed_size(d_h)));
            for (std::int64_t h = 0; h < n_queries; ++h) {
              load_row(q, 0, h, 0, row.data());
              kernel->pack_query(row.data(), d_h, dtype, scale.query, packed.data() + h * packed_size(d_h));
            }
            std::vector<LeafRows> leaves;
            for (std::int64_t a = 0; a < n; a += kLeafKeys) {
              const auto size = static_cast<std::int64_t>(bytes_of(dtype));
              leaves.push_back({k.row(0, 0, a), v.row(0, 0, a), d_h * size, d_v * size, a});
            }
            std::vector<float> added;
            for (std::int64_t i = 0; i < n_queries * n; ++i) added.push_back(i % 3 == 0 ? -kInf : static_cast<float>(i % 5));
            const Mask mask = Mask::dense(added.data(), false, {1, n_queries, 1, n});
            std::vector<const std::byte*> masks;
            for (std::int64_t h = 0; h < n_queries; ++h) masks.push_back(mask.row(0, h, 0));
            std::vector<float> workspace(
                static_cast<std::size_t>(workspace_floats(std::ssize(leaves), n_queries, d_h, d_v))),
                states(static_cast<std::size_t>(n_queries * state_size(d_v)));
            for (const double softcap : {0.0, 3.0}) {
              kernel->states({.leaves = leaves.data(),
                              .n_leaves = std::ssize(leaves),
                              .n_keys = n,
                              .key_type = dtype,
                              .value_type = dtype,
                              .d_h = d_h,
                              .d_v = d_v,
                              .n_queries = n_queries,
                              .queries = packed.data(),
                              .score_scale = scale.score,
                              .cap = static_cast<float>(kLog2E * softcap),
                              .cap_inverse = softcap > 0 ? static_cast<float>(1 / (kLog2E * softcap)) : 0,
                              .masks = softcap > 0 ? masks.data() : nullptr},
                             workspace.data(), states.data());
              // A range of whole leaves: the last of them has one shift.
              const Step step{q, lengths, {}, {}, softcap > 0 ? mask : Mask(), softcap};
              Forest<float> forest = plain::decode(step, k, v, KeyRange{0, std::ssize(leaves) * kLeafKeys}, workload->scale);
              REQUIRE(same_numbers(states, forest.fold()));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("plain: a range that ends with the sequence, an open one and the dealt order have the same bits") {
  // The weight of the last key is 2^-200, and its value 2^127: it counts if a subtree of its leaf has a shift of its own.
  for (const std::int64_t N : {1, 37, 65, 97, 100, 101, 127, 128, 200}) {
    for (const std::int64_t begin : {0, 64, 128}) {
      if (begin >= N) continue;
      INFO(N << " keys from " << begin);
      const std::vector<float> zeros(static_cast<std::size_t>(N)), low(static_cast<std::size_t>(N), -1000);
      Tensor q({1}, {1, 1, 1, 1}), k(low, {1, 1, N, 1}), v(zeros, {1, 1, N, 1});
      k.set(0, 0, std::min<std::int64_t>(64, N - 1), 0, 0), k.set(0, 0, N - 1, 0, -200), v.set(0, 0, N - 1, 0, 0x1p127f);
      if (N > 96) k.set(0, 0, 96, 0, -100);
      const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, std::log(2.0));
      const auto row = [&workload](const OwnedLeaves& leaves) {
        std::vector<float> result(2);
        const auto cache = cpu_backend(1).make_cache(workload->shape(), leaves, 1);
        fill(*cache, *workload, workload->lengths());
        const auto session = cache->open(workload->scale);
        const std::span<const float> state = session->decode({workload->query(0), workload->lengths()}).host().fold();
        result[0] = finish(state.data(), &result[1], 1);
        return result;
      };
      const std::vector<float> whole = row(KeyRange{begin, N});
      CHECK(same_numbers(whole, row(KeyRange{begin, kOpenEnd})));
      CHECK(same_numbers(whole, row(KeyRange{begin, 256})));
      if (begin == 0) CHECK(same_numbers(whole, row(OwnedLeaves(dealt_ranges(1)[0], LeafOrder::kDealt))));
      check_range(*workload, KeyRange{begin, N});
    }
  }
}

}  // namespace tree_attn::test::plain_test
