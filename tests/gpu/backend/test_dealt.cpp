// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The dealt order on a device: the states of every range of slots are those of the canonical tree, and caches that
/// grow have the bits of fresh ones (section 5.3).
#include "gpu/backend/backends.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/same_bits.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/seen_cases.hpp"

#include <map>
#include <tuple>

#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

namespace tree_attn::test::dealt_test {
namespace {

/// The canonical tree over slots, written down as it is defined, for one batch entry. A leaf has the states that the backend
/// gives to a cache that holds nothing else.
class CanonicalTree {
 public:
  using States = std::vector<float>;

  /// @param n keys of the sequence @param range of the tree; leaves outside are not computed
  CanonicalTree(TensorWorkload& workload, std::int64_t n, KeyRange range = {0, std::int64_t{1} << kPositionBits})
      : workload_(workload) {
    for (std::int64_t begin = 0; begin < n; begin += kLeafKeys) {
      const std::int64_t slot = slot_of(LeafOrder::kDealt, begin / kLeafKeys);
      if (slot * kLeafKeys < range.begin || slot * kLeafKeys >= range.end) continue;
      // A leaf alone. One key in all is a sequence of its own.
      const std::int64_t end = std::min(n, begin + kLeafKeys);
      const Shard leaf{workload.k().positions(begin, end), workload.v().positions(begin, end), begin};
      const auto cache = device::backend().make_cache(workload.shape(), {begin, begin + kLeafKeys});
      cache->borrow(leaf, std::vector<std::int64_t>{end - begin});
      const auto session = cache->open(workload.scale);
      const auto states = session->decode({workload.query(0), std::vector<std::int64_t>{n}}).host().states();
      leaves_[slot] = States(states.begin(), states.end());
    }
  }
  /// The value of a node: the merge of its children, left first.
  States value(const Subtree& node) const {
    const auto first = leaves_.lower_bound(node.begin() / kLeafKeys);
    const std::int64_t n_rows = workload_.shape().n_rows(), d_v = workload_.shape().value_dim;
    if (first == leaves_.end() || first->first >= node.end() / kLeafKeys) {
      States empty(static_cast<std::size_t>(n_rows * state_size(d_v)));
      for (std::int64_t r = 0; r < n_rows; ++r) set_empty(empty.data() + r * state_size(d_v), d_v);
      return empty;
    }
    if (node.level == kLeafLevel) return first->second;
    States left = value({node.level - 1, 2 * node.index});
    const States right = value({node.level - 1, 2 * node.index + 1});
    for (std::int64_t r = 0; r < n_rows; ++r)
      merge(left.data() + r * state_size(d_v), right.data() + r * state_size(d_v), d_v);
    return left;
  }

 private:
  TensorWorkload& workload_;
  std::map<std::int64_t, States> leaves_;
};

OwnedLeaves dealt(const KeyRange& range) { return {range, LeafOrder::kDealt}; }

/// The states of a range, in a cache that holds nothing else, are the values of its subtrees.
void check_states(TensorWorkload& workload, const CanonicalTree& tree, const KeyRange& range,
                  const std::vector<std::int64_t>& lengths) {
  const Forest<float> forest = decode_range(device::backend(), workload, dealt(range), {workload.query(0), lengths});
  REQUIRE(forest.subtrees() == cover(range.begin, range.end));
  const auto size = static_cast<std::size_t>(forest.block_size());
  for (std::size_t i = 0; i < forest.subtrees().size(); ++i)
    REQUIRE(same_bits(forest.states().subspan(i * size, size), tree.value(forest.subtrees()[i])));
}

/// Scalar cores with bulk copies and without, tensor cores with maps and without.
Axes axes_of(DType dtype, std::int64_t heads, std::int64_t kv_heads, std::int64_t d, std::int64_t n) {
  return {.heads = heads, .kv_heads = kv_heads, .head_dim = d, .value_dim = d, .n_keys = n, .dtype = dtype};
}

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("dealt on a device: the states of a rank are the values of its subtrees in the tree over slots") {
  const auto check = [](const Axes& axes, std::initializer_list<int> ranks) {
    const auto workload = normal_workload(6600, axes);
    const CanonicalTree tree(*workload, axes.n_keys);
    for (const int p : ranks) {
      if (kIsSanitized && p > 3 && p < 8) continue;
      for (const KeyRange& range : dealt_ranges(p)) {
        INFO(name_of(axes.dtype) << ", " << axes.heads << " heads, " << axes.n_keys << " keys, " << p
                                 << " ranks, slots from " << range.begin / kLeafKeys);
        check_states(*workload, tree, range, workload->lengths());
        if (p == 33 && range.begin > 0) break;
      }
    }
  };
  for (const auto& [dtype, heads, d] : {std::tuple{DType::F32, 1, 32},
                                        {DType::BF16, 1, 128},
                                        {DType::BF16, 4, 64},
                                        {DType::F16, 6, 64},
                                        {DType::F32, 2, 5},
                                        {DType::F16, 2, 33}}) {
    for (const std::int64_t n : {0, 1, 64, 65, 700, 1090})
      check(axes_of(dtype, heads, 1, d, n), {1, 2, 3, 4, 5, 6, 7, 8, 33});
  }
  // Far fewer thread groups than leaves, so that units have several of them, and empty slots between.
#if !defined(TREE_ATTN_FOR_CUDA)
  const emulated::SettingsScope scope({.n_multiprocessors = 1});
#endif
  for (const auto& [dtype, heads, d] : {std::tuple{DType::F32, 12, 128}, {DType::F32, 12, 40}, {DType::BF16, 36, 64}})
    check(axes_of(dtype, heads, 12, d, 64 * 43 + 9), {1, 3});
}

/// Classes of several leaves, some of them one shorter than others, which are natural order inside reversed bits.
/// @tested{thm_1, Thm. 1}
TEST_CASE("dealt on a device: more than 4096 leaves, where leaves with the same low bits are siblings") {
  const auto workload =
      normal_workload(6700, {.heads = 1, .kv_heads = 1, .head_dim = 4, .value_dim = 4, .n_keys = 20000 * 64});
  for (const std::int64_t n_leaves : {4097, 9000, 12288, 20000}) {
    const std::int64_t n = n_leaves * kLeafKeys - 5;
    for (const int p : {512, 1000}) {
      const std::vector<KeyRange> ranges = dealt_ranges(p);
      for (const std::size_t rank : {std::size_t{0}, std::size_t{17}, ranges.size() - 1}) {
        INFO(n_leaves << " leaves, rank " << rank << " of " << p);
        const CanonicalTree tree(*workload, n, ranges[rank]);
        check_states(*workload, tree, ranges[rank], {n});
      }
    }
  }
}

TEST_CASE("dealt on a device: a step is one upload, and one for each list in which a leaf begins, and allocates nothing") {
  const auto workload = normal_workload(7000, {.batch = 2, .heads = 1, .kv_heads = 1, .n_keys = 700});
  const auto cache = device::backend().make_cache(workload->shape(), dealt(dealt_ranges(2)[0]), 400);
  const auto session = cache->open(workload->scale);
  const TensorView q = workload->query(0);
  const std::int64_t q_bytes = workload->shape().n_rows() * 16 * 4,
                     headers = 2 * static_cast<std::int64_t>(sizeof(LeafList));
  const auto step = [&](std::int64_t n, std::int64_t n_lists = 0) {
    fill(*cache, *workload, std::vector<std::int64_t>{n, 300});
    const Counts counts = counts_of([&] { session->decode({q, std::vector<std::int64_t>{n, 300}}); });
    CHECK(counts.allocations == 0);
    CHECK(counts.uploads == 1 + n_lists);
    return counts.uploaded - q_bytes - 2 * 2 * 8 - workload->shape().bytes_per_position();
  };
  // Leaves 0, 2, 4, ... are in this range. Sequences of 5 leaves have three of them each.
  CHECK(step(300, 2) == headers + 2 * 3 * static_cast<std::int64_t>(sizeof(ListedLeaf)));
  CHECK(step(300) == headers);
  CHECK(step(320) == headers);  // the last leaf has more keys
  CHECK(step(330) == headers);  // leaf 5 is of another rank
  CHECK(step(385, 1) == headers + 4 * static_cast<std::int64_t>(sizeof(ListedLeaf)));
}

}  // namespace tree_attn::test::dealt_test
