// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A KV cache in device memory (section 5.3).
#pragma once

#include "gpu/engine/params.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/decode/kv_cache.hpp"
#include "reference/decode/page_table.hpp"
#include "reference/decode/session.hpp"

#include <memory>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Positions for which a cache of n positions has memory, per key/value head: whole steps of eight, so that kernels may copy
/// the last step as one; in the dealt order, in which the last leaf is not read last, whole leaves.
constexpr std::int64_t allocated_positions(std::int64_t n, LeafOrder order = LeafOrder::kContiguous) {
  const std::int64_t multiple = order == LeafOrder::kDealt ? kLeafKeys : 8;
  return (n + multiple - 1) / multiple * multiple;
}

/// The types in which kernels read a shape: as they are, but a type that no kernel takes, or values of another type than
/// the keys, become F32; and rows that begin at multiples of 16 bytes, so that kernels may copy them.
AttentionShape stored_on_device(const AttentionShape& shape);
/// The arithmetic of the current device for a shape as it is stored, see KvCache::arithmetic().
std::string_view arithmetic_of(const AttentionShape& stored);

/// Keys [b, n_kv, N, d_h] and values [b, n_kv, N, d_v] in device memory, dense but for padding after a row; components of
/// the keys once. A capacity that grows takes new memory, to which the rows in use are copied. A cache in pages is the pool,
/// [n_kv][64 n_pages] rows: as if it were one entry.
///
/// A single position that is appended to an entry from host memory is kept on the host, until a session takes it along into
/// its next step, or until something else needs it on the device.
class DeviceCache final : public KvCache {
 public:
  DeviceCache(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity);

  DeviceView keys() const { return view_of(k_); }
  DeviceView values() const { return view_of(shape().values_in_keys ? k_ : v_); }

  /// Rows of a key/value head that are allocated, and from one entry to the next.
  std::int64_t n_allocated() const { return most_; }
  std::int64_t entry_stride() const { return pages() == nullptr ? shape().kv_heads * most_ : 0; }
  /// Rows of an entry that there is room for: in pages more than are allocated, where a sliding window gives some back.
  std::int64_t n_positions() const { return pages() == nullptr ? most_ : capacity(); }
  /// Bytes of a row of keys, and of values beside them; and from one row to the next.
  std::int64_t key_bytes() const { return k_.row_bytes(); }
  std::int64_t value_bytes() const { return v_.row_bytes(); }
  std::int64_t key_pitch() const { return k_.pitch; }
  std::int64_t value_pitch() const { return v_.pitch; }

  /// @name Positions that are not on the device yet, at most one per entry
  /// @{
  /// Of one position: keys [n_kv, d_h], then values [n_kv, d_v], as stored.
  std::int64_t bytes_of_entry() const { return shape().kv_heads * (key_bytes() + value_bytes()); }
  /// Copies them for an upload. @param[out] rows [b], row of each, or -1 @param[out] data [b][bytes_of_entry()], those that
  /// there are
  void copy_appended(std::int64_t* rows, unsigned char* data) const;
  /// Forgets them: the upload is queued.
  void forget_appended() const { std::fill(appended_rows_.begin(), appended_rows_.end(), -1); }
  /// Uploads them.
  void put_appended() const;
  /// @}

  std::string_view arithmetic() const override { return arithmetic_of(shape()); }
  bool is_on_device() const override { return true; }
  std::unique_ptr<DecodeSession> open(double scale, std::int64_t most_queries = 0) const override;

 protected:
  Shard read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const override;
  Shard read_all_on_device(std::int64_t n, std::byte* memory) const override;
  void allocate(std::int64_t capacity) override;
  void cleared() override { forget_appended(); }
  void settle() override { put_appended(); }
  void copy_page(std::int64_t from, std::int64_t to, std::int64_t n) override;
  void write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) override;
  void write_all(const Shard& shard, std::span<const std::int64_t> lengths) override;

 private:
  /// All keys, or all values: [b][n_kv][most_] rows of dim elements, none of values that are in the keys.
  struct Rows {
    DType dtype;
    std::int64_t dim, pitch;  ///< elements of a row, and bytes from one to the next
    DeviceBuffer<unsigned char> memory;
    DeviceBuffer<float> scales{};   ///< of all heads, once a kernel has divided by them
    std::vector<float> uploaded{};  ///< those in `scales`

    Rows(DType type, std::int64_t row_size, std::int64_t row_pitch, std::int64_t n)
        : dtype(type), dim(row_size), pitch(row_pitch), memory(n * pitch) {}
    std::int64_t row_bytes() const { return dim * static_cast<std::int64_t>(bytes_of(dtype)); }
    /// Elements from one row to the next.
    std::int64_t stride() const { return pitch / static_cast<std::int64_t>(bytes_of(dtype)); }
  };
  DeviceView view_of(const Rows& rows) const {
    return {rows.memory.data(), {entry_stride() * rows.stride(), most_ * rows.stride(), rows.stride()}};
  }
  const std::vector<float>& scales_of(const Rows& rows) const { return &rows == &k_ ? scales().k : scales().v; }
  /// Scales of the heads of an entry; null: none. Opening a session uploads them.
  const float* scales_on_device(Rows& rows, std::int64_t entry) const;
  /// Index in memory of row a of an entry, counted from its first head; negative if its page has been given back.
  std::int64_t stored_row(std::int64_t entry, std::int64_t a) const {
    return pages() == nullptr ? entry * entry_stride() + a : pages()->row(entry, a);
  }
  /// Calls use(to, from, m, n_heads) for runs of m rows of so many heads, of the first n rows: where the run of the first
  /// head begins in a dense array, and here.
  template <class Use>
  void for_each_run(std::int64_t n, const Use& use) const;
  /// Calls copy(outside, pitch there, here, pitch here, width, n) for m rows of each of n_heads heads, in bytes: for all
  /// heads at once where rows have no padding, else for one after the other.
  /// @param outside bytes from the dense rows of one head to those of the next @param here index in memory of the first row
  template <class Copy>
  void for_each_copy(const Rows& rows, std::int64_t outside, std::int64_t here, std::int64_t m, std::int64_t n_heads,
                     const Copy& copy) const;
  Shard read(std::int64_t n, std::byte* memory, bool on_device) const;
  void upload(Rows& to, std::int64_t entry, std::int64_t first, const TensorView& view) const;
  void write_now(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) const;
  std::int64_t most_;  ///< positions of a key/value head that are allocated
  mutable Rows k_, v_;
  mutable std::vector<std::int64_t> appended_rows_;  ///< [b], -1: none
  mutable std::vector<unsigned char> appended_;      ///< [b][bytes_of_entry()]
  mutable std::vector<unsigned char> staging_;       ///< rows of all heads at a few positions, to be converted or gathered
  mutable std::vector<float> row_;
};

}  // namespace tree_attn::TREE_ATTN_PLATFORM
