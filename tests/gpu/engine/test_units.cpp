// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Units of work: which slots each has, how many there are, and that none of this changes a bit (section 5.3).
#include "gpu/engine/units.hpp"
#include "tests/gpu/engine/part_kernels.hpp"
#include "tests/support/device_params.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sweep.hpp"

#include <random>

#if !defined(TREE_ATTN_FOR_CUDA)
#include "gpu/emulator/settings.hpp"
#endif

namespace tree_attn::test::units_test {
namespace {

/// The shard [begin, end) of sequences of these lengths, without memory.
DecodeParams params_of(const std::vector<std::int64_t>& lengths, KeyRange shard) {
  DecodeParams params;
  params.lengths = lengths.data(), params.batch = static_cast<std::int64_t>(lengths.size());
  params.kv_heads = 2, params.group = 12;
  params.begin = shard.begin, params.end = shard.end;
  return params;
}

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("units: aligned subtrees of 2^c leaves that cover the leaves of a shard, none across two of its subtrees") {
  std::mt19937 random(6700);
  const auto upto = [&random](std::int64_t n) { return std::uniform_int_distribution<std::int64_t>(0, n)(random); };
  bool right = true;
  for (int i = 0; i < 4000; ++i) {
    const std::int64_t first = i % 3 == 0 ? 0 : upto(300), end = first * kLeafKeys + 1 + upto(40000);
    const KeyRange shard{first * kLeafKeys, end};
    const std::int64_t slots = leaf_at(end + kLeafKeys - 1) - first, begin = upto(slots - 1),
                       n = 1 + upto(slots - begin - 1);
    UsedSlots used{Count(first + begin), Count(first + begin + n), Count(first + begin + n), Count(first + begin + n)};
    if (n > 2 && i % 2 == 0) {  // a gap
      used.gap = Count(used.first + 1 + upto(n - 3));
      used.after = Count(used.gap + 1 + upto(used.end - used.gap - 2));
    }
    const bool is_whole = i % 5 < 2;
    const int log = static_cast<int>(upto(11));
    const Units units(shard, used, log, is_whole);
    std::int64_t reached = -1;
    for (Count k = 0; k < units.size(); ++k) {
      const std::int64_t from = units.begin_of(k), to = units.end_of(from);
      // Neighbours touch, but for a gap without leaves.
      if (k > 0) right = right && (from == reached || (from > reached && reached >= used.gap && from <= used.after));
      reached = to;
      // Each has a leaf, on either side of the gap.
      right = right && ((from < used.gap && to > used.first) || (from < used.end && to > used.after));
      right = right && units.number_of(from) == k && units.number_of(to - 1) == k;
      const std::int64_t size = to - from;
      right = right && size <= std::int64_t{1} << log && (size & (size - 1)) == 0 && from % size == 0;
      if (is_whole) {
        right = right && size == std::int64_t{1} << log;
        continue;
      }
      // As large as c and the subtree of the shard allow.
      KeyRange rest = shard;
      Subtree node = first_subtree(rest.begin, rest.end);
      for (; node.end() <= from * kLeafKeys; node = first_subtree(rest.begin, rest.end)) rest.begin = node.end();
      const std::int64_t of_node = std::max<std::int64_t>(1, (node.end() - node.begin()) / kLeafKeys);
      right = right && size == std::min(of_node, std::int64_t{1} << log);
    }
    right = right && units.begin_of(0) <= used.first && reached >= used.end;
    // Slots without a unit have no leaf.
    for (std::int64_t slot = used.first; slot < used.end; ++slot)
      right = right && (units.number_of(slot) < units.size() || (slot >= used.gap && slot < used.after));
    if (!right) FAIL("shard [" << shard.begin << ", " << shard.end << "), c " << log << ", case " << i);
  }
  CHECK(right);
}

/// Every work item once, in runs of one query tile, for any number of takers; and no more items than there is memory for.
/// @tested{thm_1, Thm. 1}
TEST_CASE("units: takers divide the work items of all query tiles in equal runs") {
  const std::vector<std::vector<std::int64_t>> batches{{1000}, {0}, {0, 1, 64, 65, 1000, 5}, {100000, 3, 3}};
  for (const std::vector<std::int64_t>& lengths : batches) {
    for (const KeyRange shard : {KeyRange{0, 100000}, KeyRange{64, 900}, KeyRange{64, 128}, KeyRange{512, 512}}) {
      for (const int log_rows : {0, 3}) {
        for (const Count n_takers : {1, 7, 64, 528}) {
          const DecodeParams params = params_of(lengths, shard);
          const UnitRule rule{.least_log = 1, .most_items = 4 * n_takers, .n_takers = n_takers, .n_blocks = n_takers};
          const Division all(params, rule, log_rows);
          const EqualRuns runs{all.n_items(params, Count(params.batch)), n_takers};
          INFO("shard from " << shard.begin << ", " << n_takers << " takers, 2^" << log_rows << " rows");
          Count reached = 0, most = 0, least = runs.n_items;
          bool right = true;
          for (Count taker = 0; taker < n_takers; ++taker) {
            const Count begin = runs.begin_of(taker), end = runs.begin_of(taker + 1);
            most = std::max(most, end - begin), least = std::min(least, end - begin);
            FoundEntry found{};
            for (Count item = begin; item < end;) {
              const UnitRun run = all.run_at(params, item, end, found);
              right = right && run.first == item && item == reached && run.last > item && run.last <= end;
              right = right && run.kv_head / 2 == run.found.entry && run.first_row % (1u << log_rows) == 0;
              const KeyRange leaves = params.leaves_of_slots(run.found.entry, run.begin, run.end);
              right = right && !leaves.empty() && leaves.begin == run.begin * kLeafKeys;
              if (!right) break;  // it may not go on
              found = run.found, item = reached = run.last;
            }
          }
          CHECK(right);
          CHECK(reached == runs.n_items);
          CHECK(most - least <= 1);
        }
      }
    }
  }
}

TEST_CASE("units: every taker of every block has a run of its own, and fewer work items than takers are on all blocks") {
  for (const Count n_blocks : {1, 3, 132}) {
    for (const Count of_block : {1, 2, 4}) {
      for (const Count n_items :
           {Count{0}, Count{1}, n_blocks, n_blocks + 1, 2 * n_blocks, 4 * n_blocks, 9 * n_blocks + 2}) {
        const EqualRuns runs{n_items, n_blocks * of_block};
        std::vector<int> times(n_items);
        Count fewest = n_items, most = 0;
        for (Count block = 0; block < n_blocks; ++block) {
          Count of_this = 0;
          for (Count i = 0; i < of_block; ++i) {
            const Count taker = runs.taker(block, i, n_blocks);
            for (Count item = runs.begin_of(taker); item < runs.begin_of(taker + 1); ++item) ++times.at(item), ++of_this;
          }
          fewest = std::min(fewest, of_this), most = std::max(most, of_this);
        }
        INFO(n_items << " items, " << n_blocks << " blocks of " << of_block);
        CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }));
        CHECK(most - fewest <= (n_items < n_blocks * of_block ? 1 : of_block));
      }
    }
  }
}

/// The rule: few enough states, few enough work items, and one for each block if there are as many leaves.
TEST_CASE("units: as large as the rule says, and no larger") {
  const UnitRule rule{.least_log = 2, .most_items = 400, .n_takers = 100, .n_blocks = 100};
  CHECK(rule.log_of(1, 1600) == 2);
  CHECK(rule.log_of(1, 1604) == 3);
  // 201 units would give one of 100 takers a half more than the others, and 402 a quarter.
  CHECK(rule.log_of(1, 1608) == 2);
  CHECK(UnitRule{.most_items = 400, .n_takers = 100}.log_of(1, 1600) == 2);
  CHECK(UnitRule{.most_items = 400, .n_takers = 100}.log_of(1, 1608) == 1);
  CHECK(UnitRule{.most_items = 400, .n_takers = 100}.log_of(1, 3200) == 3);
  CHECK(rule.log_of(4, 1600) == 4);
  CHECK(rule.log_of(1, 399) == 1);
  CHECK(rule.log_of(1, 99) == 0);
  CHECK(rule.log_of(1, 0) == 0);
}

#if !defined(TREE_ATTN_FOR_CUDA)
/// The shapes of the chapter, on an H200: states of units take an eighth of the cache, however often a tile of rows reads
/// its keys again; or there are so few keys that a block each has more.
TEST_CASE("units: states take an eighth of the cache at most, or no block has two") {
  const emulated::SettingsScope scope({.n_multiprocessors = 132, .major = 9});
  struct Shape {
    std::int64_t heads, kv_heads, n_keys, l, d_h, d_v, units, items;
  };
  const Shape shapes[] = {{16, 16, 512, 1, 128, 128, 8, 128},        {16, 16, 1 << 13, 1, 128, 128, 128, 2048},
                          {16, 16, 1 << 16, 1, 128, 128, 128, 2048}, {16, 16, 1 << 20, 1, 128, 128, 128, 2048},
                          {32, 8, 1 << 13, 1, 128, 128, 128, 1024},  {32, 8, 1 << 16, 1, 128, 128, 256, 2048},
                          {32, 8, 1 << 16, 8, 128, 128, 128, 1024},  {16, 1, 1 << 16, 1, 576, 512, 256, 256},
                          {128, 1, 1 << 16, 1, 576, 512, 64, 128},   {32, 8, 1 << 13, 64, 128, 128, 4, 128}};
  alignas(16) const unsigned char memory[16] = {};
  for (const Shape& shape : shapes) {
    DecodeParams params;
    params.kv_heads = shape.kv_heads, params.group = shape.heads / shape.kv_heads * shape.l, params.n_queries = shape.l;
    params.d_h = static_cast<int>(shape.d_h), params.d_v = static_cast<int>(shape.d_v);
    params.end = params.readable_end = shape.n_keys;
    params.k = params.v = {memory, {shape.kv_heads * shape.n_keys * shape.d_h, shape.n_keys * shape.d_h, shape.d_h}};
    if (shape.d_v == shape.d_h) params.v.data = nullptr;  // apart
    const device::UnitCounts counts = device::count_units(params, DType::BF16);
    const double part = static_cast<double>(counts.state_bytes) / static_cast<double>(counts.cache_bytes);
    INFO(shape.heads << "/" << shape.kv_heads << " heads, " << shape.n_keys << " keys, l = " << shape.l << ": states are "
                     << 100 * part << " % of the cache");
    CHECK(counts.units == shape.units);
    CHECK(counts.items == shape.items);
    CHECK((part <= 0.125 || counts.items < 2 * counts.blocks));
  }
}
#endif

/// @tested{thm_1, Thm. 1}
TEST_CASE("units: no bit depends on their size, in finished rows and in the states of any shard") {
  unsigned seed = 6750;
  for (const auto& [dtype, heads, d] : {std::tuple{DType::F32, 1, 128},
                                        {DType::F32, 2, 136},
                                        {DType::BF16, 11, 128},
                                        {DType::F16, 2, 136},
                                        {DType::BF16, 9, 512}}) {
    const Axes axes{
        .batch = 2, .heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 2000, .dtype = dtype};
    const auto workload = normal_workload(++seed, axes, std::vector<std::int64_t>{1990, 700});
    INFO(name_of(dtype) << ", d " << d);
    // Larger units leave fewer states.
    const auto n_written = [&](int log) {
      const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = 1, .unit_log = log});
      device::DeviceBuffer<float> floats(plan.n_floats), out(shard.params.n_rows() * d), lse(shard.params.n_rows());
      floats.fill(0xFF);
      device::kEqualRuns.run(shard.params, dtype, {.out = out.data(), .lse = lse.data()}, plan, {floats.data(), nullptr},
                             device::Stream{});
      return std::ranges::count_if(floats.download(), [](float x) { return std::bit_cast<std::uint32_t>(x) != 0xFFFFFFFF; });
    };
    CHECK(n_written(0) > n_written(3));
    const DecodeOutput want = run_step(device::kEqualRuns, *workload, {.n_splits = 1, .unit_log = 0});
    for (const int log : {1, 2, 3, 5, 7})
      CHECK(same_output(run_step(device::kEqualRuns, *workload, {.n_splits = 3, .unit_log = log}), want));
    for (const KeyRange range : {KeyRange{0, 2000}, {64, 2000}, {7 * 64, 23 * 64}, {13 * 64, 14 * 64}, {64, 64 + 5}}) {
      CAPTURE(range.begin);
      const Forest<float> few = forest_of(device::kEqualRuns, *workload, range, 1, 0);
      for (const int log : {1, 2, 4, 6}) CHECK(same_bits(forest_of(device::kEqualRuns, *workload, range, 5, log), few));
      // The leaf in which a shard ends is in the first of the subtrees that share it, and in no other.
      const std::int64_t n_rows = few.n_rows();
      for (std::size_t i = 0; i < few.subtrees().size(); ++i) {
        const float* const states = few.states().data() + static_cast<std::int64_t>(i) * few.block_size();
        for (std::int64_t r = 0; r < n_rows && few.subtrees()[i].begin() % kLeafKeys != 0; ++r)
          CHECK(is_empty(states + r * state_size(d)));
      }
    }
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("units: random sizes, numbers of blocks and schedules have the bits of one leaf a unit") {
  std::mt19937 random(6770);
  const auto draw = [&random](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  for (int i = 0; i < (is_in_software() ? 4 : takes_all_cases() ? 2000 : 40); ++i) {
    constexpr std::array kTypes{DType::F32, DType::F16, DType::BF16, DType::F8_E4M3};
    constexpr std::array<std::int64_t, 5> kDims{8, 64, 128, 136, 256};
    Axes axes{.batch = draw(1, 3), .kv_heads = draw(1, 2), .n_queries = draw(1, 3), .n_keys = 0};
    axes.heads = axes.kv_heads * draw(1, 8), axes.dtype = kTypes[draw(0, 3)];
    axes.head_dim = axes.value_dim = kDims[draw(0, 4)];
    std::vector<std::int64_t> lengths;
    for (std::int64_t entry = 0; entry < axes.batch; ++entry) lengths.push_back(draw(0, i % 4 == 0 ? 2500 : 700));
    axes.n_keys = std::max<std::int64_t>(1, std::ranges::max(lengths));
    const auto workload = normal_workload(static_cast<unsigned>(6771 + i), axes, lengths);
    const DecodeOutput want = run_step(device::kEqualRuns, *workload, {.n_splits = 1, .unit_log = 0});
    const device::LaunchOptions options{.n_splits = static_cast<int>(draw(0, 9)), .unit_log = static_cast<int>(draw(-1, 6))};
#if !defined(TREE_ATTN_FOR_CUDA)
    emulated::Settings settings = emulated::settings();
    settings.seed = random(), settings.n_multiprocessors = static_cast<int>(draw(1, 9));
    const emulated::SettingsScope scope(settings);
#endif
    INFO(name_of(axes.dtype) << ", case " << i << ", c " << options.unit_log << ", splits " << options.n_splits);
    CHECK(same_output(run_step(device::kEqualRuns, *workload, options), want));
  }
}

/// Rows are on the first axis of the grid that combines: the others have 65535 blocks at most.
TEST_CASE("units: one row, and 70,000 rows, have the bits of seven, of no unit, of one and of three") {
  constexpr std::int64_t kDim = 8;
  for (const std::int64_t n_keys : {0, 5, 192}) {
    const auto decode = [n_keys](std::int64_t heads) {
      const Axes axes{
          .heads = heads, .kv_heads = 1, .head_dim = kDim, .value_dim = kDim, .n_keys = 192, .dtype = DType::BF16};
      std::mt19937 random(6790);
      const Tensor k = normal_tensor(random, axes.k(), axes.dtype), v = normal_tensor(random, axes.v(), axes.dtype);
      std::vector<float> q = normal_elements(random, 7 * kDim);
      // Repeat seven queries over all heads.
      while (std::ssize(q) < heads * kDim) q.push_back(q[q.size() - 7 * kDim]);
      q.resize(static_cast<std::size_t>(heads * kDim));
      return run_step(device::kEqualRuns, *workload_of(Tensor(q, axes.q(), axes.dtype), k, v, std::vector{n_keys}, 0.5),
                      {.unit_log = 0});
    };
    const DecodeOutput seven = decode(7);
    for (const std::int64_t heads : {1, 70'000}) {
      if (heads > 1 && !takes_all_cases() && (kIsSanitized || n_keys != 5)) continue;
      INFO(n_keys << " keys, " << heads << " rows");
      const DecodeOutput output = decode(heads);
      std::int64_t n_other = 0;
      for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
        n_other += std::memcmp(&output.lse[h], &seven.lse[h % 7], sizeof(float)) != 0 ||
                   std::memcmp(&output.out[h * kDim], &seven.out[h % 7 * kDim], kDim * sizeof(float)) != 0;
      }
      CHECK(n_other == 0);
    }
  }
}

TEST_CASE("units: both launches of a step, recorded once, have the same bits in a thousand replays") {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const Axes axes{.heads = 2, .kv_heads = 2, .head_dim = 8, .value_dim = 8, .n_keys = 200, .dtype = dtype};
    const auto workload = normal_workload(6795, axes);
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const DecodeOutput want = run_step(device::kEqualRuns, shard);
    const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = 1, .unit_log = 0});
    const DeviceWorkspace workspace(plan);
    device::DeviceBuffer<float> out(2 * 8), lse(2);
    const device::OwnedStream stream;
    device::Graph graph(stream, [&] {
      device::kEqualRuns.run(shard.params, dtype, {.out = out.data(), .lse = lse.data()}, plan, workspace.get(), stream);
    });
    int n_other = 0;
    for (int i = 0; i < (takes_all_cases() ? 1000 : 100); i += 10) {
      out.fill(0xFF, stream), lse.fill(0xFF, stream);
      // Each may begin before the one before it has ended.
      for (int j = 0; j < 10; ++j) graph.replay(stream);
      device::synchronise(stream);
      n_other += !same_output({out.download(), lse.download()}, want);
    }
    CHECK(n_other == 0);
  }
}

}  // namespace tree_attn::test::units_test
