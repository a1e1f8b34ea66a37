// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A page table is a list of leaves: sequences whose pages lie anywhere in a pool have the bits of rows one after the
/// other (gpu/engine/listed_params.hpp).
#include "tree_attn/tests/gpu/engine/part_kernels.hpp"
#include "tree_attn/tests/support/device_params.hpp"

#include <tuple>

namespace tree_attn::test {
namespace {

/// A pool of pages of one leaf, for all sequences of a batch, and their page tables.
class PagePool {
 public:
  /// @param dense the same sequences, whose queries and lengths it takes
  PagePool(const TensorWorkload& workload, const DeviceShard& dense) {
    const std::vector<std::int64_t>& lengths = workload.lengths();
    const std::int64_t most = (workload.n_keys() + kLeafKeys - 1) / kLeafKeys;
    std::int64_t n_used = 0;
    for (const std::int64_t length : lengths) {
      const std::int64_t n = (length + kLeafKeys - 1) / kLeafKeys;
      lists_.push_back({0, most * kLeafKeys, static_cast<int>(n), static_cast<int>(n - 1)});
      // Neighbouring leaves are seven pages apart.
      for (std::int64_t i = 0; i < n; ++i)
        table_.push_back({static_cast<int>(i), static_cast<int>((7 * n_used++ + 3) % kPages), static_cast<int>(i)});
      table_.resize(lists_.size() * static_cast<std::size_t>(most + 1), {static_cast<int>(most), 0, kSeenWhole});
    }
    REQUIRE(n_used < kPages);
    static_cast<DecodeParams&>(params) = dense.params;
    params.begin = 0, params.end = params.readable_end = kPages * kLeafKeys;
    params.k = upload(workload.k(), lengths, most, memory_[0]), params.v = upload(workload.v(), lengths, most, memory_[1]);
    params.most_leaves = most, params.tree_positions = most * kLeafKeys;
    lists_on_device_ = device::DeviceBuffer<LeafList>(std::ssize(lists_), MemoryUse::Input);
    table_on_device_ = device::DeviceBuffer<ListedLeaf>(std::ssize(table_), MemoryUse::Input);
    lists_on_device_.upload(lists_), table_on_device_.upload(table_);
    params.lists = lists_on_device_.data(), params.leaf = table_on_device_.data();
  }
  ListedParams params;

 private:
  static constexpr std::int64_t kPages = 23;

  /// [n_kv][kPages * 64][d], all of it NaN but the rows of the workload.
  DeviceView upload(const TensorView& view, const std::vector<std::int64_t>& lengths, std::int64_t most,
                    device::DeviceBuffer<unsigned char>& memory) {
    const std::int64_t row = view.shape[3] * static_cast<std::int64_t>(bytes_of(view.dtype)),
                       head = kPages * kLeafKeys * row;
    std::vector<unsigned char> pool(static_cast<std::size_t>(view.shape[1] * head), 0xFF);
    for (std::int64_t i = 0; i < view.shape[0]; ++i) {
      for (std::int64_t h = 0; h < view.shape[1]; ++h) {
        for (std::int64_t a = 0; a < lengths[static_cast<std::size_t>(i)]; ++a) {
          const std::int64_t page = table_[static_cast<std::size_t>(i * (most + 1) + a / kLeafKeys)].place;
          std::memcpy(pool.data() + h * head + (page * kLeafKeys + a % kLeafKeys) * row, view.row(i, h, a),
                      static_cast<std::size_t>(row));
        }
      }
    }
    memory = device::DeviceBuffer<unsigned char>(std::ssize(pool), MemoryUse::Input);
    memory.upload(pool);
    return {memory.data(), {0, kPages * kLeafKeys * view.shape[3], view.shape[3]}};
  }

  std::vector<LeafList> lists_;
  std::vector<ListedLeaf> table_;
  device::DeviceBuffer<LeafList> lists_on_device_;
  device::DeviceBuffer<ListedLeaf> table_on_device_;
  device::DeviceBuffer<unsigned char> memory_[2];
};

}  // namespace

/// @tested{thm_1, Thm. 1}
TEST_CASE("page table: pages anywhere in a pool have the bits of rows one after the other") {
  for (const auto& [dtype, heads, d] : {std::tuple{DType::F32, 2, 40},
                                        {DType::F32, 2, 128},
                                        {DType::BF16, 2, 64},
                                        {DType::BF16, 8, 64},
                                        {DType::F16, 12, 128},
                                        {DType::BF16, 6, 33}}) {
    INFO(name_of(dtype) << ", " << heads << " heads, d " << d);
    const Axes axes{.batch = 5, .heads = heads, .kv_heads = 2, .head_dim = d, .value_dim = d, .n_keys = 700, .dtype = dtype};
    const auto workload = normal_workload(7300, axes, std::vector<std::int64_t>{700, 0, 1, 65, 320});
    const DeviceShard dense(workload->query(0), workload->whole(), workload->lengths(), workload->scale);
    const PagePool pool(*workload, dense);
    CHECK(device::copies_listed_rows(pool.params, dtype) == (d % 8 == 0));
    const DecodeParams& params = dense.params;
    device::DeviceBuffer<float> out(params.n_rows() * params.d_v), lse(params.n_rows());
    out.fill(0xFF), lse.fill(0xFF);
    device::run_listed(pool.params, dense.dtype, {.out = out.data(), .lse = lse.data()});
    CHECK(same_output({out.download(), lse.download()}, run_step(device::kEqualRuns, dense)));
  }
}

}  // namespace tree_attn::test
