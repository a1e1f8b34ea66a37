// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A shard to the device, the library kernel over it, and its forest back.
#include "gpu/backend/decode.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "gpu/ladder/ladder.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// How the kernels store elements: as they are, but a type that no kernel takes, or values of another type than the keys, become F32.
Storage storage_of(const TensorView& q, const TensorView& k, const TensorView& v) {
  const bool as_it_is = kernel_unit_of(k.storage) != KernelUnit::None && q.storage == k.storage && v.storage == k.storage;
  return as_it_is ? k.storage : Storage::F32;
}

/// A dense copy of a tensor on the device.
class DeviceTensor {
 public:
  DeviceTensor(const TensorView& view, Storage storage) {
    const auto [b, h, n, d] = view.shape;
    const auto n_bytes = static_cast<std::size_t>(d) * bytes_of(storage);
    std::vector<unsigned char> dense(static_cast<std::size_t>(b * h * n) * n_bytes);
    std::vector<float> row(static_cast<std::size_t>(d));
    unsigned char* to = dense.data();
    for (std::int64_t i = 0; i < b; ++i) {
      for (std::int64_t j = 0; j < h; ++j) {
        for (std::int64_t a = 0; a < n && d > 0; ++a, to += n_bytes) {
          if (view.storage == storage) {
            std::memcpy(to, view.row(i, j, a), n_bytes);
          } else {
            load_row(view, i, j, a, row.data());
            store(row.data(), storage, d, reinterpret_cast<std::byte*>(to));
          }
        }
      }
    }
    memory_ = DeviceBuffer<unsigned char>(static_cast<std::int64_t>(dense.size()), MemoryUse::Input);
    memory_.upload(dense);
    view_ = {memory_.data(), {h * n * d, n * d, d}};
  }
  const DeviceView& view() const { return view_; }

 private:
  DeviceBuffer<unsigned char> memory_;
  DeviceView view_;
};

/// Shapes alone: enough for a plan.
DeviceProblem shapes_of(const TensorView& q, const Shard& shard) {
  const std::int64_t n_h = q.shape[1], n_kv = shard.k.shape[1], l = q.shape[2];
  DeviceProblem problem;
  problem.batch = q.shape[0], problem.kv_heads = n_kv;
  problem.group = n_kv == 0 ? 0 : n_h / n_kv * l, problem.n_queries = l;
  problem.d_h = static_cast<int>(q.shape[3]), problem.d_v = static_cast<int>(shard.v.shape[3]);
  problem.begin = shard.begin, problem.end = shard.end();
  return problem;
}

Forest<float> decode_shard(const TensorView& q, const Shard& shard, std::span<const std::int64_t> lengths, double scale,
                           const std::function<void()>& progress, int lift) {
  const Storage storage = storage_of(q, shard.k, shard.v);
  DeviceProblem problem = shapes_of(q, shard);
  Forest<float> forest(problem.n_rows(), problem.d_v);
  const std::vector<Subtree> subtrees = cover(shard.begin, shard.end());
  if (subtrees.empty() || problem.n_rows() == 0) {
    const std::vector<float> none(static_cast<std::size_t>(forest.block_size()) * subtrees.size());
    forest.append(subtrees, none.data());
    return forest;
  }
  if (const std::string why = kEqualRuns.refusal(problem, storage); !why.empty()) throw DeviceError("the kernels do not take " + why);

  // Bring the problem to the device.
  const DeviceTensor q_there(q, storage), k_there(shard.k, storage), v_there(shard.v, storage);
  DeviceBuffer<std::int64_t> lengths_there(static_cast<std::int64_t>(lengths.size()), MemoryUse::Input);
  lengths_there.upload(lengths);
  problem.q = q_there.view(), problem.k = k_there.view(), problem.v = v_there.view();
  problem.lengths = lengths_there.data();
  set_scale(problem, storage, scale, lift);
  if (progress) progress();

  // Launch, and take the states of its subtrees back.
  const Plan plan = kEqualRuns.plan(problem, storage, {});
  const DeviceBuffer<float> floats(plan.n_floats, MemoryUse::Scratch);
  DeviceBuffer<unsigned> counters(plan.n_counters);
  counters.fill(0);
  const DeviceBuffer<float> states(static_cast<std::int64_t>(subtrees.size()) * forest.block_size());
  kEqualRuns.run(problem, storage, {.states = states.data()}, plan, {floats.data(), counters.data()}, Stream{});
  const std::vector<float> numbers = states.download();
  if (progress) progress();
  forest.append(subtrees, numbers.data());
  return forest;
}

std::string refusal(const TensorView& q, const TensorView& k, const TensorView& v) {
  return kEqualRuns.refusal(shapes_of(q, {k, v, 0}), storage_of(q, k, v));
}

std::int64_t leaf_length(const TensorView& q, const TensorView& k, const TensorView& v) {
  const DeviceProblem problem = shapes_of(q, {k, v, 0});
  return multiplies_on_tensor_cores(problem, storage_of(q, k, v)) ? kLeafKeys : 1;
}

std::string describe(const TensorView& q, const Shard& shard) {
  const DeviceProblem problem = shapes_of(q, shard);
  const Storage storage = storage_of(q, shard.k, shard.v);
  const Plan plan = kEqualRuns.plan(problem, storage, {});
  std::ostringstream line;
  line << kEqualRuns.name << " of " << name_of(storage) << " on " << plan.path << " cores: " << plan.n_blocks << " blocks of " << plan.n_threads << " threads, " << plan.n_stages << " stages, "
       << plan.shared_bytes / 1024 << " KiB shared, workspace " << plan.n_floats * 4 / 1024 << " KiB";
  return line.str();
}

std::string device_name() { return device().name; }

}  // namespace

const KernelBackend kBackend{device_name, refusal, decode_shard, leaf_length, describe};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
