// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A KV cache in device memory, and decode steps of the library kernel over it (section 5.3, Alg. 3).
#pragma once

#include "tree_attn/gpu/backend/device_steps.hpp"
#include "tree_attn/gpu/backend/kernel_stream.hpp"
#include "tree_attn/gpu/backend/leaf_lists.hpp"
#include "tree_attn/gpu/backend/step_input.hpp"
#include "tree_attn/gpu/engine/kernel.hpp"
#include "tree_attn/reference/decode/session.hpp"

#include <memory>
#include <string>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Positions for which a cache of n positions has memory, per key/value head: whole steps of eight, so that kernels may copy
/// the last step as one; in the dealt order, in which the last leaf is not read last, whole leaves.
constexpr std::int64_t allocated_positions(std::int64_t n, LeafOrder order = LeafOrder::kContiguous) {
  const std::int64_t unit = order == LeafOrder::kDealt ? kLeafKeys : 8;
  return (n + unit - 1) / unit * unit;
}

/// The types in which kernels read a shape: as they are, but a type that no kernel takes, or values of another type than
/// the keys, become F32.
AttentionShape stored_on_device(const AttentionShape& shape);

/// Keys [b, n_kv, N, d_h] and values [b, n_kv, N, d_v] in device memory, dense. A capacity that grows takes new memory, to
/// which the rows in use are copied.
///
/// A single position that is appended to an entry is kept on the host, until a session takes it along into its next step, or
/// until something else needs it on the device.
class DeviceCache final : public KvCache {
 public:
  DeviceCache(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity);

  DeviceView keys() const { return view_of(k_); }
  DeviceView values() const { return view_of(v_); }

  /// Rows of a key/value head that are allocated.
  std::int64_t n_allocated() const { return most_; }
  /// Bytes of a row of keys, and of values.
  std::int64_t key_bytes() const { return k_.row_bytes(); }
  std::int64_t value_bytes() const { return v_.row_bytes(); }

  /// @name Positions that are not on the device yet, at most one per entry
  /// @{
  /// Of one position: keys [n_kv, d_h], then values [n_kv, d_v], as stored.
  std::int64_t bytes_of_entry() const { return shape().kv_heads * (key_bytes() + value_bytes()); }
  /// Hands them over. @param[out] rows [b], row of each, or -1 @param[out] data [b][bytes_of_entry()], those that there are
  void take_appended(std::int64_t* rows, unsigned char* data) const;
  /// @}

  std::unique_ptr<DecodeSession> open(double scale) const override;

 protected:
  Shard read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const override;
  Shard read_all_on_device(std::int64_t n, std::byte* memory) const override;
  bool is_on_device() const override { return true; }
  void allocate() override;
  void cleared() override { std::fill(appended_rows_.begin(), appended_rows_.end(), -1); }
  void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) override;
  void write_all(const Shard& shard, std::span<const std::int64_t> lengths) override;

 private:
  /// All keys, or all values: [b][n_kv][most_] rows of dim elements.
  struct Rows {
    DType dtype;
    std::int64_t dim;
    DeviceBuffer<unsigned char> memory;

    Rows(DType type, std::int64_t row_size, std::int64_t n) : dtype(type), dim(row_size), memory(n * row_bytes()) {}
    std::int64_t row_bytes() const { return dim * static_cast<std::int64_t>(bytes_of(dtype)); }
  };
  DeviceView view_of(const Rows& rows) const {
    return {rows.memory.data(), {shape().kv_heads * most_ * rows.dim, most_ * rows.dim, rows.dim}};
  }
  /// The first n rows of every head as a shard that lies densely in `memory`: keys, then values.
  Shard dense_shard(const std::byte* memory, std::int64_t n, bool on_device) const;
  void upload(Rows& to, std::int64_t entry, std::int64_t first, const TensorView& view) const;
  void write_now(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) const;
  /// Uploads the positions that are not on the device yet.
  void put_appended() const;

  std::int64_t most_;  ///< positions of a key/value head that are allocated
  mutable Rows k_, v_;
  mutable std::vector<std::int64_t> appended_rows_;  ///< [b], -1: none
  mutable std::vector<unsigned char> appended_;      ///< [b][bytes_of_entry()]
  mutable std::vector<unsigned char> staging_;       ///< rows of all heads at a few positions, to be converted or gathered
  mutable std::vector<float> row_;
};

/// Memory for a plan; counters start at zero.
class DeviceWorkspace {
 public:
  DeviceWorkspace() = default;
  explicit DeviceWorkspace(const LaunchPlan& plan) : floats_(plan.n_floats, MemoryUse::Scratch), counters_(plan.n_counters) {
    counters_.fill(0);
  }
  Workspace get() const { return {floats_.data(), counters_.data()}; }
  bool is_enough_for(const LaunchPlan& plan) const {
    return plan.n_floats <= floats_.size() && plan.n_counters <= counters_.size();
  }
  const DeviceBuffer<unsigned>& counters() const { return counters_; }

 private:
  DeviceBuffer<float> floats_;
  DeviceBuffer<unsigned> counters_;
};

/// Steps over a device cache. Queries and lengths are uploaded, states stay on the device until host() asks for them.
///
/// A step uploads the queries, the lengths and the position that was appended to each entry by one copy; a kernel stores
/// that position where it belongs, and the library kernel decodes. All on a stream of its own, by DeviceStream::repeat():
/// from the second step of a plan on, a step is one launch of a graph. What changes from step to step is read from device
/// memory. The plan covers the capacity of the cache, so a new one is made when the cache has grown. The default stream
/// waits for a step, and a step for what the default stream did before it.
class DeviceSession : public DecodeSession, public DeviceSteps, public States {
 public:
  /// @throws DeviceError if no kernel takes the shape, or the device has no memory
  DeviceSession(const DeviceCache& cache, double scale);
  ~DeviceSession() override { stream_.finish(); }

  Forest<float>& host() override;
  const float* device() const override { return states_.data(); }
  std::string describe() const override;

  DeviceStream& stream() override { return stream_; }
  void decode_to(StepEnd& end, const Step& step, const std::function<void()>& progress) override;

 protected:
  States& run(const Step& step, const std::function<void()>& progress) override;
  /// Takes the memory for a step whose longest sequence has so many keys, if there is not enough.
  void prepare(std::int64_t longest);
  /// Plans for a range. Another range than the first is that of a shard of the ring, or of a cache that has grown: memory
  /// grows where it must.
  void plan_range(KeyRange range);
  bool is_dealt() const { return planned_order_ == LeafOrder::kDealt; }
  /// @name The kernel of a step
  /// @{
  /// Whether there is anything to launch.
  virtual bool has_work() const { return !subtrees_.empty() && cache_.shape().n_rows() > 0; }
  virtual LaunchPlan plan_kernel() const;
  virtual void queue_kernel();
  /// @}

 private:
  /// Writes what the step uploads: the queries as they are stored, the lengths, what was appended, the lists. @pre the step
  /// before is over
  void stage(const Step& step);
  /// Queues what a step does: the decode, then its end.
  void queue_step();
  void queue_decode();

 protected:
  const DeviceCache& cache_;
  double scale_;
  ListedParams params_;  ///< in the contiguous order the part that is DecodeParams
  LeafLists lists_;      ///< in the dealt order
  LaunchPlan plan_;
  LeafOrder planned_order_ = LeafOrder::kContiguous;
  KeyRange planned_{0, -1};        ///< the range that plan_ and subtrees_ are for
  std::int64_t planned_rows_ = 0;  ///< allocated rows of the cache then
  std::vector<Subtree> subtrees_;  ///< that states_ are of
  DeviceWorkspace workspace_;
  DeviceBuffer<float> states_;
  KernelStream stream_;

 private:
  StepInput input_;
  std::vector<float> row_;
  Forest<float> forest_;
  bool is_on_host_ = true;
  StepEnd *end_ = nullptr, *last_end_ = nullptr;  ///< of this step, and of the one before
  Event after_;                                   ///< on stream_
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
