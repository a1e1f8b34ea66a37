// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The library kernel on tensor cores (eq. (7)): as exact as scalar kernels, in numbers, in bits, and at the edges.
#include "tree_attn/tests/support/device_params.hpp"
#if !defined(TREE_ATTN_FOR_CUDA)
#include "tree_attn/gpu/platform/emulator/settings.hpp"
#endif

#include <bit>

namespace tree_attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// The longest chain of additions: the keys of a leaf in three parts each, then the tree.
double n_additions(const TensorWorkload& workload) {
  return 3 * 64 + 8 + tree_decode_model(std::max<std::int64_t>(1, workload.n_keys())).n_additions;
}

std::string error_of(TensorWorkload& workload, const DecodeOutput& output) {
  return against_oracle(workload, output, n_additions(workload));
}

DecodeOutput run(TensorWorkload& workload, int n_splits = 0) {
  return run_step(device::kEqualRuns, workload, {.n_splits = n_splits});
}

const DType kDTypes[] = {DType::F16, DType::BF16};
/// Queries of which some share a lane, in a tile that is not full.
const std::int64_t kGroups[] = {1, 2, 6};
/// Types with the length of their rows: queries have a column of the product each, and two of it.
const std::pair<DType, std::int64_t> kTiles[] = {{DType::F16, 40}, {DType::F16, 136}, {DType::BF16, 40}};

Tensor zeros(const Shape& shape, DType dtype) {
  return Tensor(std::vector<float>(static_cast<std::size_t>(n_elements(shape)), 0), shape, dtype);
}

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("tensor: within the bound of the oracle, for head sizes, groups and lengths of all kinds") {
  unsigned seed = 7000;
  for (const DType dtype : kDTypes) {
    std::vector<std::pair<Axes, std::vector<std::int64_t>>> shapes;
    for (const std::int64_t d : {64, 128, 256})
      shapes.push_back({{.heads = 4, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 300, .dtype = dtype}, {300}});
    for (const std::int64_t d : {1, 46, 59, 111, 192})
      shapes.push_back({{.heads = 2, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 130, .dtype = dtype}, {130}});
    shapes.push_back({{.heads = 3, .kv_heads = 1, .head_dim = 32, .value_dim = 100, .n_keys = 90, .dtype = dtype}, {90}});
    shapes.push_back({{.heads = 3, .kv_heads = 1, .head_dim = 100, .value_dim = 7, .n_keys = 90, .dtype = dtype}, {90}});
    for (const std::int64_t group : {1, 2, 3, 8, 9, 16, 20})
      shapes.push_back(
          {{.heads = 2 * group, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 100, .dtype = dtype}, {100}});
    shapes.push_back(
        {{.heads = 12, .kv_heads = 1, .head_dim = 256, .value_dim = 256, .n_keys = 200, .dtype = dtype}, {200}});
    shapes.push_back({{.batch = 4,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 128,
                       .value_dim = 64,
                       .n_queries = 3,
                       .n_keys = 150,
                       .dtype = dtype},
                      {150, 0, 1, 65}});
    for (const auto& [axes, lengths] : shapes) {
      const auto workload = normal_workload(seed++, axes, lengths);
      INFO(name_of(dtype) << ", group " << axes.heads / axes.kv_heads * axes.n_queries << ", d_h " << axes.head_dim
                          << ", d_v " << axes.value_dim << ", seed " << seed - 1);
      CHECK(error_of(*workload, run(*workload)) == "");
    }
  }
}

TEST_CASE("tensor: small weights keep their bits") {
  // Keys in falling order of their scores, and values that only one of them has: what it contributes is not lost among
  // others.
  for (const auto& [dtype, d] : kTiles) {
    for (const std::int64_t heads : kGroups) {
      for (const float scale_of_value : {1.0f, 6e4f, 1e-3f}) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = 40, .n_keys = 40, .dtype = dtype};
        Tensor q = zeros(axes.q(), dtype), k = zeros(axes.k(), dtype), v = zeros(axes.v(), dtype);
        for (std::int64_t h = 0; h < heads; ++h) q.set(0, h, 0, 0, 1 - 0.1875f * static_cast<float>(h % 2));
        for (std::int64_t a = 0; a < 40; ++a)
          k.set(0, 0, a, 0, -0.703125f * static_cast<float>(a)), v.set(0, 0, a, a, scale_of_value);
        const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, 1.0);
        CAPTURE(scale_of_value);
        CHECK(against_oracle(*workload, run(*workload)) == "");
      }
    }
  }
}

TEST_CASE("tensor: a weight has 24 bits") {
  // Two keys: the first weighs 1 and its value is 0, so that z = w / (1 + w) with the weight w of the second.
  for (const auto& [dtype, d] : kTiles) {
    for (const std::int64_t heads : kGroups) {
      for (int i = 1; i < 40; ++i) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = 8, .n_keys = 2, .dtype = dtype};
        Tensor q = zeros(axes.q(), dtype), k = zeros(axes.k(), dtype), v = zeros(axes.v(), dtype);
        for (std::int64_t h = 0; h < heads; ++h) q.set(0, h, 0, 0, 1 - 0.25f * static_cast<float>(h % 2));
        k.set(0, 0, 1, 0, -0.3125f * static_cast<float>(i)), v.set(0, 0, 1, 0, 1);
        const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, 1.0);
        const DecodeOutput output = run(*workload);
        for (std::int64_t h = 0; h < heads; ++h) {
          const float score = (1 - 0.25f * static_cast<float>(h % 2)) * -0.3125f * static_cast<float>(i);
          const float w = std::exp2(score * static_cast<float>(kLog2E)), z = w / (1 + w);
          CAPTURE(i);
          CHECK(std::abs(output.out[static_cast<std::size_t>(h) * 8] - z) <= 6 * 0x1p-24f * z);
        }
      }
    }
  }
}

TEST_CASE("tensor: a negative scale, and a scale of zero") {
  for (const DType dtype : kDTypes) {
    for (const double scale : {-0.3, 0.0, -0.0}) {
      const Axes axes{.heads = 3, .kv_heads = 1, .head_dim = 20, .value_dim = 9, .n_keys = 150, .dtype = dtype};
      std::mt19937 random(7150);
      Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
             v = normal_tensor(random, axes.v(), dtype);
      const auto workload = workload_of(std::move(q), std::move(k), std::move(v), {}, scale);
      CAPTURE(scale);
      CHECK(error_of(*workload, run(*workload)) == "");
    }
  }
}

TEST_CASE("tensor: copies by tensor maps, by cp.async and by plain loads leave the same bits") {
  unsigned seed = 7180;
  for (const DType dtype : kDTypes) {
    for (const std::int64_t d : {64, 96, 128, 256}) {
      for (const std::int64_t group : {3, 7}) {
        const Axes axes{
            .batch = 3, .heads = 2 * group, .kv_heads = 2, .head_dim = d, .value_dim = d, .n_keys = 500, .dtype = dtype};
        const auto workload = normal_workload(seed++, axes, std::vector<std::int64_t>{500, 384, 131});
        INFO(name_of(dtype) << ", d " << d << ", group " << group << ", seed " << seed - 1);
        // Rings of six tiles, or of five where a block has little memory, are filled through tensor maps, of three by
        // cp.async.
        const auto n_stages = [&] {
          const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
          return device::kEqualRuns.plan(shard.params, dtype, {}).n_stages;
        };
        const DecodeOutput by_async = [&] {
#if !defined(TREE_ATTN_FOR_CUDA)
          const emulated::SettingsScope scope({.major = 8});
          if (d == 64) CHECK(n_stages() == 3);
#endif
          return run(*workload, 2);
        }();
        if (d == 64 && device::device().major >= 9) CHECK(n_stages() > 3);
        CHECK(same_output(run(*workload, 2), by_async));
        CHECK(same_output(run_step(device::kEqualRuns, *workload), by_async));
        CHECK(same_output(run(*misaligned(*workload, 2), 3), by_async));
        CHECK(same_output(run_step(device::kEqualRuns, *misaligned(*workload, 2), {.n_splits = 3}), by_async));
      }
    }
  }
}

TEST_CASE("tensor: sums of small whole numbers are exact") {
  for (const DType dtype : kDTypes) {
    const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .n_keys = 200, .dtype = dtype};
    std::mt19937 random(7100);
    std::vector<float> values(200 * 64);
    for (float& x : values) x = static_cast<float>(static_cast<int>(random() % 101) - 50);
    const auto workload =
        workload_of(normal_tensor(random, axes.q(), dtype), Tensor(std::vector<float>(200 * 64, 0), axes.k(), dtype),
                    Tensor(values, axes.v(), dtype));
    const DecodeOutput output = run(*workload);
    for (std::size_t j = 0; j < 64; ++j) {
      float sum = 0;
      for (std::size_t a = 0; a < 200; ++a) sum += values[a * 64 + j];
      for (std::size_t r = 0; r < 4; ++r) CHECK(output.out[r * 64 + j] == sum / 200);
    }
  }
}

/// @tested{thm_1, Thm. 1}
TEST_CASE("tensor: bits do not depend on splits, batch, alignment or strides") {
  unsigned seed = 7200;
  for (const DType dtype : kDTypes) {
    for (const std::int64_t group : {3, 11}) {
      const Axes axes{
          .batch = 2, .heads = 2 * group, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 900, .dtype = dtype};
      const auto workload = normal_workload(seed++, axes, std::vector<std::int64_t>{900, 389});
      INFO(name_of(dtype) << ", group " << group << ", seed " << seed - 1);
      const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
      const DecodeOutput one = run_step(device::kEqualRuns, shard, {.n_splits = 1});
      for (const int n : {2, 7, 64}) {
        CHECK(device::kEqualRuns.plan(shard.params, dtype, {.n_splits = n}).n_splits == n);
        CHECK(same_output(run_step(device::kEqualRuns, shard, {.n_splits = n}), one));
      }
      CHECK(same_output(run(*misaligned(*workload, 2), 2), one));
      CHECK(same_output(run(*packed(*workload), 2), one));

      const std::size_t n_out = one.out.size() / 2, n_lse = one.lse.size() / 2;
      for (std::size_t entry = 0; entry < 2; ++entry) {
        const DecodeOutput alone = run(*entry_of(*workload, static_cast<std::int64_t>(entry)), 3);
        CHECK(std::memcmp(alone.out.data(), one.out.data() + entry * n_out, n_out * sizeof(float)) == 0);
        CHECK(std::memcmp(alone.lse.data(), one.lse.data() + entry * n_lse, n_lse * sizeof(float)) == 0);
      }
    }
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("tensor: shards cut at leaves have the bits of the whole, others are within the bound") {
  for (const DType dtype : kDTypes) {
    const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 46, .value_dim = 33, .n_keys = 400, .dtype = dtype};
    const auto workload = normal_workload(7300, axes, std::vector<std::int64_t>{365});
    const DecodeOutput whole = run(*workload);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 64, 320, 400}, {0, 3, 77, 200, 201, 390, 400}}) {
      Forest<float> forest(4, 33);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const DeviceShard shard(workload->query(0), workload->shard({cuts[i], cuts[i + 1]}), workload->lengths(),
                                workload->scale);
        const std::vector<Subtree> subtrees = cover(cuts[i], cuts[i + 1]);
        device::DeviceBuffer<float> states(static_cast<std::int64_t>(subtrees.size()) * forest.block_size());
        states.fill(0xFF);
        const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = 2});
        const DeviceWorkspace workspace(plan);
        device::kEqualRuns.run(shard.params, dtype, {.states = states.data()}, plan, workspace.get(), device::Stream{});
        forest.append(subtrees, states.download().data());
      }
      const DecodeOutput joined = finish_rows(forest.fold(), 4, 33);
      CHECK(error_of(*workload, joined) == "");
      if (cuts[1] == 64) CHECK(same_output(joined, whole));
    }
  }
}

// A tensor core aligns products by the exponents of their factors, and has 24 bits from there on: of a factor that is
// subnormal in F16 it keeps fewer. So an H200 has 2^-24 within 141 ulp.
TEST_CASE("tensor: one key gives its value within two ulp, if that is a normal number of its type") {
  for (const DType dtype : kDTypes) {
    const double least_normal = dtype == DType::F16 ? 0x1p-14 : 0x1p-126;
    // A leaf and more, and less than a leaf: a few subtrees, of which all but the first hold no key. Values that are loaded,
    // and values that could be copied.
    for (const auto& [n_keys, d_v] : {std::pair{70, 6}, {40, 6}, {70, 64}}) {
      for (const std::int64_t heads : kGroups) {
        const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = 64, .value_dim = d_v, .n_keys = n_keys, .dtype = dtype};
        std::mt19937 random(7400);
        Tensor v = normal_tensor(random, axes.v(), dtype);
        const float special[] = {-0.0f, 65504, 0x1p-24f, kInf, kNaN};
        // If values are copied, finite ones alone: others are loaded in a second walk.
        const std::int64_t n_special = d_v == 64 ? 3 : 5;
        for (std::int64_t c = 0; c < n_special; ++c) v.set(0, 0, 0, c, special[c]);
        const auto workload = workload_of(normal_tensor(random, axes.q(), dtype), normal_tensor(random, axes.k(), dtype), v,
                                          std::vector<std::int64_t>{1});
        const std::vector<double> want = row_of(v.view(), 0, 0, 0);
        const DecodeOutput output = run(*workload);
        const auto n = static_cast<std::size_t>(d_v);
        double worst = 0;
        for (std::size_t r = 0; r < static_cast<std::size_t>(heads); ++r) {
          for (std::size_t c = 0; c < n; ++c) {
            const float z = output.out[r * n + c];
            if (c == 4 && n_special > 4)
              CHECK(std::isnan(z));
            else
              worst =
                  std::max(worst, z == want[c] ? 0.0 : std::abs(z - want[c]) / std::max(std::abs(want[c]), least_normal));
          }
        }
        CHECK(error_of(*workload, output) == "");
        CHECK(worst * 0x1p23 <= 2);
      }
    }
  }
}

TEST_CASE("tensor: NaN and Inf reach the outputs that the formula says, and change no bit of others") {
  const Axes axes{.heads = 6, .kv_heads = 2, .head_dim = 20, .value_dim = 9, .n_keys = 150};
  for (const DType dtype : kDTypes) {
    const auto workload_with = [&](int where, std::int64_t position, float number) {
      std::mt19937 random(7500);
      Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
             v = normal_tensor(random, axes.v(), dtype);
      if (where == 0) q.set(0, 1, 0, 2, number);
      if (where == 1) k.set(0, 1, position, 2, number);
      if (where == 2) v.set(0, 1, position, 2, number);
      return workload_of(std::move(q), std::move(k), std::move(v));
    };
    for (const int where : {0, 1, 2}) {
      for (const std::int64_t position : {0, 70, 149}) {
        const DecodeOutput clean = run(*workload_with(where, position, 0.25f));
        for (const float number : {kNaN, kInf, -kInf}) {
          INFO(name_of(dtype) << ", tensor " << where << ", position " << position << ", number " << number);
          const auto workload = workload_with(where, position, number);
          const DecodeOutput output = run(*workload);
          CHECK(error_of(*workload, output) == "");
          // The query is of head 1; heads 3 to 5 read key/value head 1.
          for (std::size_t r = 0; r < 6; ++r) {
            for (std::size_t j = 0; j < 9; ++j) {
              const bool may_show = where == 0 ? r == 1 : r >= 3 && (where == 1 || j == 2);
              if (!may_show) CHECK(std::memcmp(&output.out[r * 9 + j], &clean.out[r * 9 + j], sizeof(float)) == 0);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("tensor: values of keys that are not seen are not looked at") {
  for (const DType dtype : kDTypes) {
    // Rows that are loaded, and rows that are copied.
    for (const auto& [heads, d_h, d_v] : {std::tuple{4, 20, 9}, {8, 20, 9}, {4, 64, 64}, {8, 128, 72}}) {
      const Axes axes{.heads = heads, .kv_heads = 1, .head_dim = d_h, .value_dim = d_v, .n_keys = 150, .dtype = dtype};
      std::mt19937 random(7600);
      Tensor q = normal_tensor(random, axes.q(), dtype), k = normal_tensor(random, axes.k(), dtype),
             v = normal_tensor(random, axes.v(), dtype);
      // The first half of the heads sees nothing of a whole leaf and of single keys, the other half all of it.
      for (std::int64_t h = 0; h < heads; ++h) q.set(0, h, 0, 2, h < heads / 2 ? 1.0f : 0.0f), q.set(0, h, 0, 3, 0.5f);
      for (const std::int64_t a : {3, 17, 140}) k.set(0, 0, a, 3, -kInf);
      for (std::int64_t a = 64; a < 128; ++a) k.set(0, 0, a, 3, -kInf);
      Tensor v_nan = v;
      for (const std::int64_t a : {3, 17, 64, 90, 140}) v_nan.set(0, 0, a, a % 9, a % 2 == 0 ? kNaN : kInf);
      const auto workload = workload_of(q, k, v), not_looked_at = workload_of(q, k, v_nan);
      const DecodeOutput output = run(*workload), other = run(*not_looked_at);
      CHECK(error_of(*workload, output) == "");
      CHECK(error_of(*not_looked_at, other) == "");
      CHECK(same_output(output, other));
    }
  }
}

TEST_CASE("tensor: all scores -inf is the empty set") {
  const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 20, .value_dim = 9, .n_keys = 100, .dtype = DType::BF16};
  std::mt19937 random(7700);
  Tensor q = normal_tensor(random, axes.q(), axes.dtype), k = normal_tensor(random, axes.k(), axes.dtype);
  for (std::int64_t h = 0; h < 4; ++h) q.set(0, h, 0, 3, 1);
  for (std::int64_t a = 0; a < 100; ++a) k.set(0, 0, a, 3, -kInf);
  const auto workload = workload_of(std::move(q), std::move(k), normal_tensor(random, axes.v(), axes.dtype));
  const DecodeOutput output = run(*workload);
  for (const float z : output.out) CHECK(z == 0);
  for (const float lse : output.lse) CHECK(lse == -kInf);
}

TEST_CASE("tensor: states of padding are not stored") {
  // Floats that a kernel stores for its forests, by the queries of a tile.
  const auto n_stored = [](std::int64_t heads, DType dtype, std::int64_t d) {
    const auto workload =
        normal_workload(7900, {.heads = heads, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 300, .dtype = dtype});
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const device::LaunchPlan plan = device::kEqualRuns.plan(shard.params, dtype, {.n_splits = 2});
    device::DeviceBuffer<float> floats(plan.n_floats), out(heads * d), lse(heads);
    device::DeviceBuffer<unsigned> counters(plan.n_counters);
    counters.fill(0), floats.fill(0xFF);  // each byte: not a number, until it is stored
    device::kEqualRuns.run(shard.params, dtype, {.out = out.data(), .lse = lse.data()}, plan,
                           {floats.data(), counters.data()}, device::Stream{});
    const std::vector<float> stored = floats.download();
    return std::count_if(stored.begin(), stored.end(), [](float x) { return x == x; });
  };
  for (const auto& [dtype, d] : kTiles) {
    INFO(name_of(dtype) << ", rows of " << d);
    const auto of_one = n_stored(1, dtype, d);
    CHECK(of_one > 0);
    for (const std::int64_t heads : {2, 3, 4}) CHECK(n_stored(heads, dtype, d) == heads * of_one);
  }
}

TEST_CASE("tensor: refuses what it cannot keep exact") {
  const auto refusal = [](const Axes& axes) {
    const auto workload = normal_workload(7800, axes);
    const DeviceShard shard(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    return device::kTensor.refusal(shard.params, shard.dtype);
  };
  CHECK(refusal({.dtype = DType::F32}) == "F32 storage: no tensor core keeps its bits");
  CHECK(refusal({.dtype = DType::F64}) == "F64 storage");
  CHECK(refusal({.head_dim = 257, .dtype = DType::F16}) == "d_h 257, d_v 16: more than 256");
  CHECK(refusal({.dtype = DType::F16}) == "");
}

}  // namespace tree_attn::test
