// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Grouped heads on tensor cores (eq. (7)): as exact as the scalar kernels, in numbers, in bits, and at the edges.
#include <bit>

#include "tests/support/device_problem.hpp"

namespace tree_attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// The longest chain of additions: the keys of a leaf in three parts each, then the tree.
double n_additions(const TensorProblem& problem) { return 3 * 64 + 8 + tree_decode_model(std::max<std::int64_t>(1, problem.n_keys())).n_additions; }

std::string error_of(TensorProblem& problem, const DecodeOutput& output) {
  return against_oracle(problem, output, n_additions(problem));
}

DecodeOutput run(TensorProblem& problem, int n_splits = 0) { return run_step(device::kTensor, problem, {.n_splits = n_splits}); }

const Storage kStorages[] = {Storage::F16, Storage::BF16};

}  // namespace

/// @tested{eq_7, eq. (7)}
TEST_CASE("tensor: within the bound of the oracle, for head sizes, groups and lengths of all kinds") {
  unsigned seed = 7000;
  for (const Storage storage : kStorages) {
    std::vector<std::pair<Axes, std::vector<std::int64_t>>> shapes;
    for (const std::int64_t d : {64, 128, 256}) shapes.push_back({{.heads = 4, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 300, .storage = storage}, {300}});
    for (const std::int64_t d : {1, 46, 59, 111, 192}) shapes.push_back({{.heads = 2, .kv_heads = 1, .head_dim = d, .value_dim = d, .n_keys = 130, .storage = storage}, {130}});
    shapes.push_back({{.heads = 3, .kv_heads = 1, .head_dim = 32, .value_dim = 100, .n_keys = 90, .storage = storage}, {90}});
    shapes.push_back({{.heads = 3, .kv_heads = 1, .head_dim = 100, .value_dim = 7, .n_keys = 90, .storage = storage}, {90}});
    for (const std::int64_t group : {1, 2, 3, 8, 9, 16, 20}) shapes.push_back({{.heads = 2 * group, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 100, .storage = storage}, {100}});
    shapes.push_back({{.heads = 12, .kv_heads = 1, .head_dim = 256, .value_dim = 256, .n_keys = 200, .storage = storage}, {200}});
    shapes.push_back({{.batch = 4, .heads = 4, .kv_heads = 2, .head_dim = 128, .value_dim = 64, .n_queries = 3, .n_keys = 150, .storage = storage}, {150, 0, 1, 65}});
    for (const auto& [axes, lengths] : shapes) {
      const auto problem = normal_problem(seed++, axes, lengths);
      INFO(name_of(storage) << ", group " << axes.heads / axes.kv_heads * axes.n_queries << ", d_h " << axes.head_dim << ", d_v "
                            << axes.value_dim << ", seed " << seed - 1);
      CHECK(error_of(*problem, run(*problem)) == "");
    }
  }
}

TEST_CASE("tensor: small weights keep all their bits") {
  // Keys in falling order of their scores, and values that only one of them has: what it contributes is not lost among others.
  for (const Storage storage : kStorages) {
    for (const float scale_of_value : {1.0f, 6e4f, 1e-3f}) {
      const Axes axes{.heads = 2, .kv_heads = 1, .head_dim = 8, .value_dim = 40, .n_keys = 40, .storage = storage};
      Tensor q = Tensor(std::vector<float>(16, 0), axes.q(), storage), k = Tensor(std::vector<float>(320, 0), axes.k(), storage),
             v = Tensor(std::vector<float>(1600, 0), axes.v(), storage);
      q.set(0, 0, 0, 0, 1), q.set(0, 1, 0, 0, 0.8125f);
      for (std::int64_t a = 0; a < 40; ++a) k.set(0, 0, a, 0, -0.703125f * static_cast<float>(a)), v.set(0, 0, a, a, scale_of_value);
      const auto problem = problem_of(std::move(q), std::move(k), std::move(v), {}, 1.0);
      CAPTURE(scale_of_value);
      CHECK(against_oracle(*problem, run(*problem)) == "");
    }
  }
}

TEST_CASE("tensor: a weight has the 24 bits that it has without tensor cores") {
  // Two keys: the first weighs 1 and its value is 0, so that z = w / (1 + w) with the weight w of the second.
  for (const Storage storage : kStorages) {
    for (int i = 1; i < 40; ++i) {
      const Axes axes{.heads = 2, .kv_heads = 1, .head_dim = 8, .value_dim = 8, .n_keys = 2, .storage = storage};
      Tensor q = Tensor(std::vector<float>(16, 0), axes.q(), storage), k = Tensor(std::vector<float>(16, 0), axes.k(), storage),
             v = Tensor(std::vector<float>(16, 0), axes.v(), storage);
      q.set(0, 0, 0, 0, 1), q.set(0, 1, 0, 0, 0.75f), k.set(0, 0, 1, 0, -0.3125f * static_cast<float>(i)), v.set(0, 0, 1, 0, 1);
      const auto problem = problem_of(std::move(q), std::move(k), std::move(v), {}, 1.0);
      CAPTURE(i);
      CHECK(same_output(run(*problem), run_step(device::kVectors, *problem)));
    }
  }
}

TEST_CASE("tensor: sums of small whole numbers are exact") {
  for (const Storage storage : kStorages) {
    const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 64, .value_dim = 64, .n_keys = 200, .storage = storage};
    std::mt19937 random(7100);
    std::vector<float> values(200 * 64);
    for (float& x : values) x = static_cast<float>(static_cast<int>(random() % 101) - 50);
    const auto problem = problem_of(normal_tensor(random, axes.q(), storage), Tensor(std::vector<float>(200 * 64, 0), axes.k(), storage),
                                    Tensor(values, axes.v(), storage));
    const DecodeOutput output = run(*problem);
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
  for (const Storage storage : kStorages) {
    for (const std::int64_t group : {3, 11}) {
      const Axes axes{.batch = 2, .heads = 2 * group, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .n_keys = 900, .storage = storage};
      const auto problem = normal_problem(seed++, axes, std::vector<std::int64_t>{900, 389});
      INFO(name_of(storage) << ", group " << group << ", seed " << seed - 1);
      const DeviceShard shard(problem->query(0), problem->whole(), problem->lengths(), problem->scale);
      const DecodeOutput one = run_step(device::kTensor, shard, {.n_splits = 1});
      for (const int n : {2, 7, 64}) {
        CHECK(device::kTensor.plan(shard.problem, storage, {.n_splits = n}).n_splits == n);
        CHECK(same_output(run_step(device::kTensor, shard, {.n_splits = n}), one));
      }
      CHECK(same_output(run(*misaligned(*problem, 2), 2), one));
      CHECK(same_output(run(*packed(*problem), 2), one));

      const std::size_t n_out = one.out.size() / 2, n_lse = one.lse.size() / 2;
      for (std::size_t entry = 0; entry < 2; ++entry) {
        const DecodeOutput alone = run(*entry_of(*problem, static_cast<std::int64_t>(entry)), 3);
        CHECK(std::memcmp(alone.out.data(), one.out.data() + entry * n_out, n_out * sizeof(float)) == 0);
        CHECK(std::memcmp(alone.lse.data(), one.lse.data() + entry * n_lse, n_lse * sizeof(float)) == 0);
      }
    }
  }
}

/// @tested{alg_3, Alg. 3}
TEST_CASE("tensor: shards cut at leaves have the bits of the whole, others are within the bound") {
  for (const Storage storage : kStorages) {
    const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 46, .value_dim = 33, .n_keys = 400, .storage = storage};
    const auto problem = normal_problem(7300, axes, std::vector<std::int64_t>{365});
    const DecodeOutput whole = run(*problem);
    for (const std::vector<std::int64_t>& cuts : {std::vector<std::int64_t>{0, 64, 320, 400}, {0, 3, 77, 200, 201, 390, 400}}) {
      Forest<float> forest(4, 33);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const DeviceShard shard(problem->query(0), problem->shard({cuts[i], cuts[i + 1]}), problem->lengths(), problem->scale);
        const std::vector<Subtree> subtrees = cover(cuts[i], cuts[i + 1]);
        device::DeviceBuffer<float> states(static_cast<std::int64_t>(subtrees.size()) * forest.block_size());
        states.fill(0xFF);
        const device::Plan plan = device::kTensor.plan(shard.problem, storage, {.n_splits = 2});
        const DeviceWorkspace workspace(plan);
        device::kTensor.run(shard.problem, storage, {.states = states.data()}, plan, workspace.get(), device::Stream{});
        forest.append(subtrees, states.download().data());
      }
      const DecodeOutput joined = finish_rows(forest.fold(), 4, 33);
      CHECK(error_of(*problem, joined) == "");
      if (cuts[1] == 64) CHECK(same_output(joined, whole));
    }
  }
}

TEST_CASE("tensor: one key gives its value to the bit") {
  for (const Storage storage : kStorages) {
    // A leaf and more, and less than a leaf: a few subtrees, of which all but the first hold no key.
    for (const std::int64_t n_keys : {70, 40}) {
      const Axes axes{.heads = 2, .kv_heads = 1, .head_dim = 64, .value_dim = 6, .n_keys = n_keys, .storage = storage};
      std::mt19937 random(7400);
      Tensor v = normal_tensor(random, axes.v(), storage);
      const float special[] = {-0.0f, 65504, 0x1p-24f, kInf, kNaN};
      for (std::int64_t c = 0; c < 5; ++c) v.set(0, 0, 0, c, special[c]);
      const auto problem = problem_of(normal_tensor(random, axes.q(), storage), normal_tensor(random, axes.k(), storage), v, std::vector<std::int64_t>{1});
      const std::vector<double> want = row_of(v.view(), 0, 0, 0);
      const DecodeOutput output = run(*problem);
      for (std::size_t r = 0; r < 2; ++r) {
        for (std::size_t c = 0; c < 6; ++c) {
          if (c == 4) CHECK(std::isnan(output.out[r * 6 + c]));
          else CHECK(std::bit_cast<std::uint32_t>(output.out[r * 6 + c]) == std::bit_cast<std::uint32_t>(static_cast<float>(want[c])));
        }
      }
      CHECK(error_of(*problem, output) == "");
    }
  }
}

TEST_CASE("tensor: NaN and Inf reach the outputs that the formula says, and change no bit of others") {
  const Axes axes{.heads = 6, .kv_heads = 2, .head_dim = 20, .value_dim = 9, .n_keys = 150};
  for (const Storage storage : kStorages) {
    const auto problem_with = [&](int where, std::int64_t position, float number) {
      std::mt19937 random(7500);
      Tensor q = normal_tensor(random, axes.q(), storage), k = normal_tensor(random, axes.k(), storage), v = normal_tensor(random, axes.v(), storage);
      if (where == 0) q.set(0, 1, 0, 2, number);
      if (where == 1) k.set(0, 1, position, 2, number);
      if (where == 2) v.set(0, 1, position, 2, number);
      return problem_of(std::move(q), std::move(k), std::move(v));
    };
    for (const int where : {0, 1, 2}) {
      for (const std::int64_t position : {0, 70, 149}) {
        const DecodeOutput clean = run(*problem_with(where, position, 0.25f));
        for (const float number : {kNaN, kInf, -kInf}) {
          INFO(name_of(storage) << ", tensor " << where << ", position " << position << ", number " << number);
          const auto problem = problem_with(where, position, number);
          const DecodeOutput output = run(*problem);
          CHECK(error_of(*problem, output) == "");
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
  for (const Storage storage : kStorages) {
    const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 20, .value_dim = 9, .n_keys = 150, .storage = storage};
    std::mt19937 random(7600);
    Tensor q = normal_tensor(random, axes.q(), storage), k = normal_tensor(random, axes.k(), storage), v = normal_tensor(random, axes.v(), storage);
    // Heads 0 and 1 see nothing of a whole leaf and of single keys, heads 2 and 3 all of it.
    for (std::int64_t h = 0; h < 4; ++h) q.set(0, h, 0, 2, h < 2 ? 1.0f : 0.0f), q.set(0, h, 0, 3, 0.5f);
    for (const std::int64_t a : {3, 17, 140}) k.set(0, 0, a, 3, -kInf);
    for (std::int64_t a = 64; a < 128; ++a) k.set(0, 0, a, 3, -kInf);
    Tensor v_nan = v;
    for (const std::int64_t a : {3, 17, 64, 90, 140}) v_nan.set(0, 0, a, a % 9, a % 2 == 0 ? kNaN : kInf);
    const auto problem = problem_of(q, k, v), not_looked_at = problem_of(q, k, v_nan);
    const DecodeOutput output = run(*problem), other = run(*not_looked_at);
    CHECK(error_of(*problem, output) == "");
    CHECK(error_of(*not_looked_at, other) == "");
    CHECK(same_output(output, other));
  }
}

TEST_CASE("tensor: all scores -inf is the empty set") {
  const Axes axes{.heads = 4, .kv_heads = 1, .head_dim = 20, .value_dim = 9, .n_keys = 100, .storage = Storage::BF16};
  std::mt19937 random(7700);
  Tensor q = normal_tensor(random, axes.q(), axes.storage), k = normal_tensor(random, axes.k(), axes.storage);
  for (std::int64_t h = 0; h < 4; ++h) q.set(0, h, 0, 3, 1);
  for (std::int64_t a = 0; a < 100; ++a) k.set(0, 0, a, 3, -kInf);
  const auto problem = problem_of(std::move(q), std::move(k), normal_tensor(random, axes.v(), axes.storage));
  const DecodeOutput output = run(*problem);
  for (const float z : output.out) CHECK(z == 0);
  for (const float lse : output.lse) CHECK(lse == -kInf);
}

TEST_CASE("tensor: refuses what it cannot keep exact") {
  const auto refusal = [](const Axes& axes) {
    const auto problem = normal_problem(7800, axes);
    const DeviceShard shard(problem->query(0), problem->whole(), problem->lengths(), problem->scale);
    return device::kTensor.refusal(shard.problem, shard.storage);
  };
  CHECK(refusal({.storage = Storage::F32}) == "F32 storage: no tensor core keeps its bits");
  CHECK(refusal({.storage = Storage::F64}) == "F64 storage");
  CHECK(refusal({.head_dim = 257, .storage = Storage::F16}) == "d_h 257, d_v 16: more than 256");
  CHECK(refusal({.storage = Storage::F16}) == "");
}

}  // namespace tree_attn::test
