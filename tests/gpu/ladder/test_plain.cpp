// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernels have the bits of the steps of the ladder that define them: for every type, length of rows,
/// group, number of keys and splits (eq. (7), section 5).
#include "tests/support/device_params.hpp"
#include "tests/support/sweep.hpp"

#include <array>
#include <map>

namespace tree_attn::test::plain_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// Number of comparisons of each step.
using Counts = std::map<std::string, int>;

/// Normal elements in rows of d, with zeros after each up to a multiple of 16 bytes: the steps read rows of vectors.
Tensor padded_rows(std::mt19937& random, Shape shape, DType dtype) {
  const std::int64_t d = shape[3], of_vector = 16 / static_cast<std::int64_t>(bytes_of(dtype));
  shape[3] = (d + of_vector - 1) / of_vector * of_vector;
  std::vector<float> elements = normal_elements(random, n_elements(shape));
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (static_cast<std::int64_t>(i) % shape[3] >= d) elements[i] = 0;
  }
  return Tensor(elements, shape, dtype);
}
std::unique_ptr<TensorWorkload> padded_workload(std::mt19937& random, const Axes& axes, std::vector<std::int64_t> lengths) {
  return workload_of(padded_rows(random, axes.q(), axes.dtype), padded_rows(random, axes.k(), axes.dtype),
                     padded_rows(random, axes.v(), axes.dtype), std::move(lengths),
                     1 / std::sqrt(static_cast<double>(axes.head_dim)));
}

/// Decodes rows with NaN after them, as a shard pads them, by the library kernels, and rows with zeros by the step that
/// defines their bits, or without them where the step takes rows of any length; compares every bit. Steps that fuse products
/// and sums are held to the bound of the oracle, if all elements are finite.
/// @param n_splits 0: as the kernels choose
void check(TensorWorkload& workload, std::int64_t d_h, std::int64_t d_v, int n_splits, bool all_finite, Counts& counts) {
  const TensorView q = workload.query(0);
  const Shard whole = workload.whole();
  const Tensor k_alone = copy_of(whole.k.components(d_h)), v_alone = copy_of(whole.v.components(d_v));
  const DeviceShard padded(q, whole, workload.lengths(), workload.scale),
      shard(q.components(d_h), {k_alone.view(), v_alone.view(), 0}, workload.lengths(), workload.scale);
  const DecodeOutput engine = run_step(device::kEqualRuns, shard, {.n_splits = n_splits});
  const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, shard.dtype, {.n_splits = n_splits});
  if (n_splits > 0) CHECK(plan.n_splits == n_splits);
  const bool scalar = is_scalar(plan);
  CHECK(scalar == (shard.dtype == DType::F32 || d_v > 512));
  for (const device::LadderStep* step : device::ladder()) {
    if (!step->is_canonical || step->refusal(padded.params, padded.dtype) != "") continue;
    CHECK(is_scalar(step->plan(padded.params, padded.dtype, {})) == scalar);
    if (step->is_fused && !all_finite) continue;
    const bool takes_any = step->refusal(shard.params, shard.dtype).empty();
    DecodeOutput plain =
        run_step(*step, takes_any ? shard : padded, {.n_splits = std::min(std::max(1, n_splits), step->max_splits)});
    ++counts[step->name];
    if (step->is_fused) {
      CHECK_MESSAGE(against_oracle(workload, plain, *step, padded) == "", step->name);
      continue;
    }
    const std::int64_t stride = takes_any ? d_v : whole.v.shape[3];
    for (std::size_t r = 0; r < plain.lse.size(); ++r)
      std::copy_n(plain.out.begin() + static_cast<std::ptrdiff_t>(r) * stride, d_v,
                  plain.out.begin() + static_cast<std::ptrdiff_t>(r) * d_v);
    plain.out.resize(engine.out.size());
    CHECK_MESSAGE(same_output(plain, engine), step->name);
  }
}

}  // namespace

/// One shape is drawn for every type and number of keys. Most rows are short: they take less time.
/// @tested{eq_7, eq. (7)}
TEST_CASE("plain kernels: the library kernels have their bits for every N below 200, and for others up to 3000") {
  std::mt19937 random(7900);
  const auto draw = [&random](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<unsigned>(most - least + 1));
  };
  Counts counts;
  for (std::int64_t i = 0; i < 216; ++i) {
    // The fast set has a sixth of them, and those around ends of leaves.
    if (!takes_all_cases() && i % 6 != 2 && (i + 1) % 64 > 2) continue;
    const std::int64_t n_keys = i < 200 ? i : i == 200 ? 3000 : draw(200, 3000);
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      const std::int64_t longest = i % 8 == 0 && n_keys < 1000 ? 576 : i % 4 == 0 ? 150 : 40;
      Axes axes{.batch = draw(1, 2),
                .heads = 1,
                .kv_heads = draw(1, 2),
                .head_dim = draw(1, longest),
                .value_dim = draw(1, longest),
                .n_keys = n_keys,
                .dtype = dtype};
      axes.heads = axes.kv_heads * draw(1, 3), axes.n_queries = draw(1, 2);
      std::vector<std::int64_t> lengths{n_keys, draw(0, n_keys)};
      lengths.resize(static_cast<std::size_t>(axes.batch));
      const int n_splits = i % 10 == 9 ? 64 : static_cast<int>(draw(0, 17));
      INFO(name_of(dtype) << ", " << axes.batch << " entries, " << axes.heads << " heads over " << axes.kv_heads << ", "
                          << axes.n_queries << " queries, d_h " << axes.head_dim << ", d_v " << axes.value_dim << ", N "
                          << n_keys << ", second length " << lengths.back() << ", splits " << n_splits);
      check(*padded_workload(random, axes, lengths), axes.head_dim, axes.value_dim, n_splits, true, counts);
    }
  }
  // split, tensor, vectors, copies; and units, which takes BF16 in rows of up to 128.
  CHECK(counts.size() == (device::device().major < 9 ? 4 : 5));
  for (const auto& [name, n] : counts) CHECK_MESSAGE(n > (takes_all_cases() ? 150 : 30), name);
}

/// One element of one row of a tensor, of some rows or of all is overwritten: with numbers that are not finite, zeros,
/// elements that make scores of some thousands, and values whose sum is beyond F32.
/// @tested{eq_7, eq. (7)}
TEST_CASE("plain kernels: the library kernels have their bits whatever the elements and the scale") {
  std::mt19937 random(7950);
  const auto one_of = [&random](const auto& list) { return *(std::begin(list) + random() % std::size(list)); };
  Counts counts;
  for (int i = 0; i < 300; ++i) {
    for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
      const float number = one_of(std::array{kNaN, kInf, -kInf, -0.0f, 300.0f, static_cast<float>(largest_of(dtype))});
      const std::int64_t n_keys = one_of(std::array{1, 2, 64, 70, 130}), heads = one_of(std::array{1, 3});
      const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = 16, .value_dim = 24, .n_keys = n_keys, .dtype = dtype};
      Tensor tensors[] = {normal_tensor(random, axes.q(), dtype), normal_tensor(random, axes.k(), dtype),
                          normal_tensor(random, axes.v(), dtype)};
      const int which = static_cast<int>(random() % 3);
      const std::int64_t last = which == 0 ? heads : n_keys, from = static_cast<std::int64_t>(random()) % last,
                         to = one_of(std::array{from + 1, std::min(last, from + 70), last});
      for (std::int64_t at = from; at < to; ++at) tensors[which].set(0, which == 0 ? at : 0, which == 0 ? 0 : at, 3, number);
      const double scale = one_of(std::array{0.25, 0.25, -3.0, 0.0, 1e-38});
      const int n_splits = 1 + i % 3;
      INFO("draw " << i << ", " << name_of(dtype) << ", N " << n_keys << ", heads " << heads << ", tensor " << which << ", "
                   << number << " from " << from << " to " << to << ", scale " << scale);
      const auto workload = workload_of(tensors[0], tensors[1], tensors[2], {}, scale);
      check(*workload, 16, 24, n_splits, false, counts);
    }
  }
  CHECK(counts.size() == (device::device().major < 9 ? 2 : 3));  // split, tensor, units
  for (const auto& [name, n] : counts) CHECK_MESSAGE(n > 200, name);
}

/// Rows of all three lengths of a tile and of its edges, groups that fill tiles and that do not; and of every subtree that a
/// shard leaves the state, against the rows that step 6 makes of its positions alone.
/// @tested{thm_1, Thm. 1}
TEST_CASE("plain kernels: step 6 has the bits of the library kernel for all its tiles, and of the states that it keeps") {
  std::mt19937 random(7970);
  int n_states = 0;
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const auto& [d_h, d_v] : {std::pair{8, 8}, {64, 65}, {65, 9}, {100, 128}, {128, 129}, {256, 72}, {31, 255}}) {
      for (const std::int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 20}) {
        const std::int64_t end = 90 + static_cast<std::int64_t>(random() % 150);
        const std::int64_t begin = group % 3 == 0 ? 0 : 64;
        const Axes axes{
            .batch = 2, .heads = group, .kv_heads = 1, .head_dim = d_h, .value_dim = d_v, .n_keys = end, .dtype = dtype};
        const auto padded =
            padded_workload(random, axes, {end, std::min(end, begin + static_cast<std::int64_t>(random() % 40))});
        TensorWorkload workload({}, padded->query(0).components(d_h), padded->k().components(d_h),
                                padded->v().components(d_v), padded->lengths(), padded->scale);
        INFO(name_of(dtype) << ", d_h " << d_h << ", d_v " << d_v << ", group " << group << ", " << begin << " to " << end);
        const auto shard_of = [&](KeyRange range) {
          return DeviceShard(workload.query(0), workload.shard(range), workload.lengths(), workload.scale);
        };
        const DeviceShard shard = shard_of({begin, end});
        const DecodeOutput plain = run_step(device::kTensor, shard, {.n_splits = 3});
        CHECK(same_output(run_step(device::kEqualRuns, shard), plain));
        CHECK(same_output(run_step(device::kEqualRuns, shard, {.n_splits = 2}), plain));
        // Of whole leaves every subtree keeps its own keys.
        const Forest<float> forest = forest_of(device::kEqualRuns, workload, {begin, end / kLeafKeys * kLeafKeys}, 2);
        const auto size = static_cast<std::size_t>(forest.block_size());
        for (std::size_t i = 0; i < forest.subtrees().size(); ++i, ++n_states) {
          const DeviceShard part = shard_of({forest.subtrees()[i].begin(), forest.subtrees()[i].end()});
          CHECK(same_output(finish_rows(forest.states().subspan(i * size, size), forest.n_rows(), d_v),
                            run_step(device::kTensor, part)));
        }
      }
    }
  }
  CHECK(n_states > 70);
}

}  // namespace tree_attn::test::plain_test
