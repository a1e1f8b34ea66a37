// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Keys and values to the device as they arrive.
#include "gpu/backend/cache.hpp"

#include "gpu/backend/append_rows.hpp"
#include "gpu/backend/device_tensors.hpp"
#include "gpu/engine/launch.hpp"

#include <algorithm>
#include <utility>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

/// Positions that are converted at once.
constexpr std::int64_t kStagedPositions = 64;

}  // namespace

AttentionShape stored_on_device(const AttentionShape& shape) {
  AttentionShape stored = shape;
  stored.in_pairs = shape.in_pairs || sums_in_pairs(shape.dtype);
  if (kernel_cores_of(shape.dtype) == KernelCores::None || shape.value_dtype != shape.dtype)
    stored.dtype = stored.value_dtype = DType::F32;
  stored.row_multiple = 16;
  return stored;
}

std::string_view arithmetic_of(const AttentionShape& stored) {
  if (!multiplies_on_tensor_cores(params_of(stored, 1, {}), stored.dtype)) return "portable";
  return device().major < 9 ? "mma 8.0" : "mma 9.0";
}

DeviceCache::DeviceCache(const AttentionShape& shape, const OwnedLeaves& leaves, std::int64_t capacity)
    : KvCache(shape, stored_on_device(shape), leaves, capacity),
      most_(allocated_positions(capacity, leaves.order())),
      k_(KvCache::shape().dtype, shape.head_dim, KvCache::shape().pitch_of(KvCache::shape().key_bytes()),
         shape.batch * shape.kv_heads * most_),
      v_(KvCache::shape().value_dtype, shape.values_in_keys ? 0 : shape.value_dim,
         KvCache::shape().pitch_of(KvCache::shape().value_bytes()), shape.batch * shape.kv_heads * most_),
      appended_rows_(static_cast<std::size_t>(shape.batch), -1),
      appended_(static_cast<std::size_t>(shape.batch * bytes_of_entry())),
      row_(static_cast<std::size_t>(std::max(shape.head_dim, shape.value_dim))) {
  // So that write() allocates nothing: pages have been taken by then.
  staging_.reserve(static_cast<std::size_t>(shape.kv_heads * kStagedPositions * std::max(key_pitch(), value_pitch())));
}

const float* DeviceCache::scales_on_device(Rows& rows, std::int64_t entry) const {
  const std::vector<float>& scales = scales_of(rows);
  if (scales.empty()) return nullptr;
  if (scales != rows.uploaded) {
    rows.scales = DeviceBuffer<float>(std::ssize(scales), MemoryUse::Input);
    rows.scales.upload(scales);
    rows.uploaded = scales;
  }
  return rows.scales.data() + entry * shape().kv_heads;
}

void DeviceCache::upload(Rows& to, std::int64_t entry, std::int64_t first, const TensorView& view) const {
  const std::int64_t n_heads = shape().kv_heads, row = to.pitch, pitch = most_ * row, n = view.shape[2];
  const std::int64_t at = stored_row(entry, first) * row;
  if (n == 0 || row == 0 || n_heads == 0) return;
  if (view.on_device) {
    const TensorView rows{reinterpret_cast<const std::byte*>(to.memory.data() + at),
                          to.dtype,
                          view.shape,
                          {0, most_ * to.stride(), to.stride()},
                          true};
    return convert_rows(view, rows, Stream{}, scales_on_device(to, entry));
  }

  // As it is, head by head, if the rows of a head follow each other as here.
  if (view.dtype == to.dtype && to.stride() == to.dim && (view.stride[2] == to.dim || n == 1)) {
    to.memory.upload_rows(reinterpret_cast<const unsigned char*>(view.data),
                          view.stride[1] * static_cast<std::int64_t>(bytes_of(to.dtype)), at, pitch, n * row, n_heads);
    return;
  }
  // Else a few positions at a time, with zeros for padding.
  staging_.assign(static_cast<std::size_t>(n_heads * std::min(kStagedPositions, n) * row), 0);
  for (std::int64_t begin = 0; begin < n; begin += kStagedPositions) {
    const std::int64_t m = std::min(kStagedPositions, n - begin);
    for (std::int64_t h = 0; h < n_heads; ++h) {
      for (std::int64_t a = 0; a < m; ++a)
        store_row(view, 0, h, begin + a, KvScales::at(scales_of(to), entry * n_heads + h), to.dtype, row_,
                  reinterpret_cast<std::byte*>(staging_.data() + (h * m + a) * row));
    }
    to.memory.upload_rows(staging_.data(), m * row, at + begin * row, pitch, m * row, n_heads);
  }
}

void DeviceCache::allocate(std::int64_t capacity) {
  const bool is_pool = pages() != nullptr;
  const std::int64_t needed = is_pool ? pages()->n_rows() : allocated_positions(capacity, leaves().order());
  if (is_pool ? needed == most_ : needed <= most_) return;
  // Either may fail, so both are there before one is used.
  const std::int64_t n_heads = (is_pool ? 1 : shape().batch) * shape().kv_heads, n = n_heads * needed;
  DeviceBuffer<unsigned char> k(n * k_.pitch), v(n * v_.pitch);
  // One copy on the device: the rows in use of every head.
  for (const auto& [to, rows] : {std::pair(&k, &k_), std::pair(&v, &v_)}) {
    const std::int64_t row = rows->pitch;
    to->queue_copy(Stream{}, rows->memory, 0, most_ * row, 0, needed * row, longest() * row, n_heads);
  }
  synchronise(Stream{});  // the memory before is freed
  k_.memory = std::move(k), v_.memory = std::move(v), most_ = needed;
}

void DeviceCache::write(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) {
  // What waits is older, and may be of a row that has been removed since.
  std::int64_t& row = appended_rows_[static_cast<std::size_t>(entry)];
  if (row >= 0) put_appended();
  if (k.shape[2] != 1 || k.on_device || v.on_device) return write_now(entry, first, k, v);
  unsigned char* to = appended_.data() + entry * bytes_of_entry();
  for (const auto& [view, rows] : {std::pair(&k, &k_), std::pair(&v, &v_)}) {
    for (std::int64_t h = 0; h < shape().kv_heads && rows->dim > 0; ++h, to += rows->row_bytes())
      store_row(*view, 0, h, 0, KvScales::at(scales_of(*rows), entry * shape().kv_heads + h), rows->dtype, row_,
                reinterpret_cast<std::byte*>(to));
  }
  row = first;
}

void DeviceCache::write_now(std::int64_t entry, std::int64_t first, const TensorView& k, const TensorView& v) const {
  upload(k_, entry, first, k);
  upload(v_, entry, first, v);
}

void DeviceCache::put_appended() const {
  AttentionShape entry = shape();
  entry.batch = 1;
  for (std::int64_t i = 0; i < shape().batch; ++i) {
    std::int64_t& row = appended_rows_[static_cast<std::size_t>(i)];
    if (row < 0 || stored_row(i, row) < 0) row = -1;
    if (row < 0) continue;
    const Shard one =
        dense_shard(entry, 1, reinterpret_cast<const std::byte*>(appended_.data() + i * bytes_of_entry()), 0, false);
    write_now(i, row, one.k, one.v);
    row = -1;
  }
}

void DeviceCache::copy_appended(std::int64_t* rows, unsigned char* data) const {
  for (std::int64_t i = 0; i < shape().batch; ++i) {
    rows[i] = appended_rows_[static_cast<std::size_t>(i)];
    if (rows[i] >= 0) std::copy_n(appended_.data() + i * bytes_of_entry(), bytes_of_entry(), data + i * bytes_of_entry());
    if (rows[i] >= 0 && pages() != nullptr) rows[i] = pages()->row(i, rows[i]);
  }
}

void DeviceCache::copy_page(std::int64_t from, std::int64_t to, std::int64_t n) {
  if (n == 0) return;
  for (Rows* rows : {&k_, &v_}) {
    const std::int64_t page = kLeafKeys * rows->pitch, pitch = most_ * rows->pitch;
    rows->memory.queue_copy(Stream{}, rows->memory, from * page, pitch, to * page, pitch, n * rows->pitch, shape().kv_heads);
  }
}

template <class Use>
void DeviceCache::for_each_run(std::int64_t n, const Use& use) const {
  const std::int64_t n_heads = shape().kv_heads;
  if (pages() == nullptr) return use(0, 0, n, shape().batch * n_heads);
  for (std::int64_t i = 0; i < shape().batch; ++i) {
    const std::int64_t used = std::min(n, lengths()[static_cast<std::size_t>(i)]);
    for (std::int64_t a = 0, end = 0; a < used; a = end) {
      end = std::min(used, leaves().end_of_leaf(a));
      if (stored_row(i, a) >= 0) use(i * n_heads * n + a, stored_row(i, a), end - a, n_heads);
    }
  }
}

template <class Copy>
void DeviceCache::for_each_copy(const Rows& rows, std::int64_t outside, std::int64_t here, std::int64_t m,
                                std::int64_t n_heads, const Copy& copy) const {
  const std::int64_t row = rows.row_bytes(), at = here * rows.pitch, pitch = most_ * rows.pitch;
  if (m * row == 0) return;
  if (row == rows.pitch) return copy(0, outside, at, pitch, m * row, n_heads);
  for (std::int64_t h = 0; h < n_heads; ++h) copy(h * outside, row, at + h * pitch, rows.pitch, row, m);
}

Shard DeviceCache::read(std::int64_t n, std::byte* memory, bool on_device) const {
  put_appended();
  auto* to = reinterpret_cast<unsigned char*>(memory);
  for (const Rows* rows : {&k_, &v_}) {
    const std::int64_t row = rows->row_bytes();
    for_each_run(n, [&](std::int64_t to_row, std::int64_t from, std::int64_t m, std::int64_t n_heads) {
      unsigned char* const first = to + to_row * row;
      if (on_device)
        return for_each_copy(*rows, n * row, from, m, n_heads, [&](auto outside, auto outside_pitch, auto... here) {
          rows->memory.queue_copy_out(Stream{}, first + outside, outside_pitch, here...);
        });
      for (std::int64_t h = 0; h < n_heads && m * row > 0; ++h) {
        unsigned char* const of_head = first + h * n * row;
        const bool is_dense = row == rows->pitch;
        staging_.resize(is_dense ? 0 : static_cast<std::size_t>(m * rows->pitch));
        unsigned char* const there = is_dense ? of_head : staging_.data();
        rows->memory.download({there, static_cast<std::size_t>(m * rows->pitch)}, (from + h * most_) * rows->pitch);
        for (std::int64_t a = 0; a < m && !is_dense; ++a) std::copy_n(there + a * rows->pitch, row, of_head + a * row);
      }
    });
    to += shape().batch * shape().kv_heads * n * row;
  }
  return dense_shard(shape(), n, memory, leaves().range().begin, on_device);
}

Shard DeviceCache::read_all(std::int64_t n, const std::function<std::byte*(std::size_t)>& memory) const {
  return read(n, memory(static_cast<std::size_t>(shape().batch * n * bytes_of_entry())), false);
}

Shard DeviceCache::read_all_on_device(std::int64_t n, std::byte* memory) const { return read(n, memory, true); }

void DeviceCache::write_all(const Shard& shard, std::span<const std::int64_t> lengths) {
  const auto can_be_copied = [](const TensorView& view, const Rows& rows) {
    return rows.dim == 0 || (view.on_device && view.dtype == rows.dtype &&
                             view.stride == TensorView::dense(nullptr, view.dtype, view.shape).stride);
  };
  if (lengths.empty() || !can_be_copied(shard.k, k_) || !can_be_copied(shard.v, v_))
    return KvCache::write_all(shard, lengths);
  // One copy of the longest entry's rows for all: rows that another does not use are not read.
  const std::int64_t n = shard.k.shape[2], n_used = *std::max_element(lengths.begin(), lengths.end());
  reserve(n_used);
  for (const auto& [rows, from] : {std::pair(&k_, shard.k.data), std::pair(&v_, shard.v.data)}) {
    const std::int64_t row = rows->row_bytes();
    const auto* const first = reinterpret_cast<const unsigned char*>(from);
    for_each_copy(*rows, n * row, 0, n_used, shape().batch * shape().kv_heads,
                  [&](auto outside, auto outside_pitch, auto... here) {
                    rows->memory.queue_copy_in(Stream{}, first + outside, outside_pitch, here...);
                  });
  }
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
