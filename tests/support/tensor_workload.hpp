// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Workloads over tensors in memory, with any elements and any layout.
#pragma once

#include "reference/data/workload.hpp"
#include "tests/support/tensors.hpp"

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace tree_attn::test {

/// One decode step over the given queries, keys and values.
class TensorWorkload : public Workload {
 public:
  /// @param memory the memory of the views
  TensorWorkload(std::vector<std::vector<std::byte>> memory, TensorView q, TensorView k, TensorView v,
                 std::vector<std::int64_t> lengths, double scale_of_scores)
      : Workload({shape_of(q, k, v), k.shape[2], std::move(lengths)}, 1),
        scale(scale_of_scores),
        memory_(std::move(memory)),
        q_(q),
        k_(k),
        v_(v) {
    shape_.n_queries = q.shape[2];
  }

  void set_key_scales(std::vector<float> scales) { shape_.scales.k = std::move(scales); }
  TensorView query(int) override { return q_; }
  Shard keys_and_values(std::int64_t entry, KeyRange positions) override {
    const Shard part = shard(positions);
    return {part.k.entry(entry), part.v.entry(entry), positions.begin};
  }
  Shard shard(KeyRange positions) const {
    return {k_.positions(positions.begin, positions.end), v_.positions(positions.begin, positions.end), positions.begin};
  }
  Shard whole() override { return {k_, v_, 0}; }
  const TensorView& k() const { return k_; }
  const TensorView& v() const { return v_; }
  std::int64_t n_keys() const { return k_.shape[2]; }
  const std::vector<std::int64_t>& lengths() const { return shape().lengths; }

  double scale;

 private:
  std::vector<std::vector<std::byte>> memory_;
  TensorView q_, k_, v_;
};

/// A workload that owns dense q, k, v. Keys and values past the lengths become NaN and must not be read.
/// @param lengths keys in use per batch entry; all by default
/// @param scale 1/sqrt(d_h) by default
inline std::unique_ptr<TensorWorkload> workload_of(Tensor q, Tensor k, Tensor v,
                                                   std::optional<std::vector<std::int64_t>> lengths = {},
                                                   std::optional<double> scale = {}) {
  const std::int64_t n_keys = k.shape[2];
  const std::vector<std::int64_t> in_use =
      lengths ? *lengths : std::vector<std::int64_t>(static_cast<std::size_t>(q.shape[0]), n_keys);
  for (Tensor* tensor : {&k, &v}) {
    for_each_row(tensor->shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
      for (std::int64_t c = 0; a >= in_use[static_cast<std::size_t>(i)] && c < tensor->shape[3]; ++c)
        tensor->set(i, h, a, c, std::numeric_limits<float>::quiet_NaN());
    });
  }
  std::vector<std::vector<std::byte>> memory{std::move(q.bytes), std::move(k.bytes), std::move(v.bytes)};
  const TensorView views[] = {TensorView::dense(memory[0].data(), q.dtype, q.shape),
                              TensorView::dense(memory[1].data(), k.dtype, k.shape),
                              TensorView::dense(memory[2].data(), v.dtype, v.shape)};
  return std::make_unique<TensorWorkload>(std::move(memory), views[0], views[1], views[2], in_use,
                                          scale.value_or(1 / std::sqrt(static_cast<double>(q.shape[3]))));
}

/// The axes of a random workload.
struct Axes {
  std::int64_t batch = 1, heads = 4, kv_heads = 2, head_dim = 16, value_dim = 16, n_queries = 1, n_keys = 64;
  DType dtype = DType::F32;

  Shape q() const { return {batch, heads, n_queries, head_dim}; }
  Shape k() const { return {batch, kv_heads, n_keys, head_dim}; }
  Shape v() const { return {batch, kv_heads, n_keys, value_dim}; }
};

/// Standard normal q, k and v; queries of keys of F8_E4M3 are BF16.
inline std::unique_ptr<TensorWorkload> normal_workload(unsigned seed, const Axes& axes,
                                                       std::optional<std::vector<std::int64_t>> lengths = {}) {
  std::mt19937 random(seed);
  Tensor q = normal_tensor(random, axes.q(), axes.dtype == DType::F8_E4M3 ? DType::BF16 : axes.dtype);
  Tensor k = normal_tensor(random, axes.k(), axes.dtype);
  Tensor v = normal_tensor(random, axes.v(), axes.dtype);
  return workload_of(std::move(q), std::move(k), std::move(v), std::move(lengths));
}

/// A dense copy of a view, in memory of exactly its size, so that AddressSanitizer reports any read past the end.
inline Tensor copy_of(const TensorView& view) {
  Tensor copy({}, view.shape, view.dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(view.shape[3]) * bytes_of(view.dtype);
  copy.bytes.resize(static_cast<std::size_t>(n_elements(view.shape)) * bytes_of(view.dtype));
  std::byte* to = copy.bytes.data();
  for_each_row(view.shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
    if (row_bytes > 0) std::memcpy(to, view.row(i, h, a), row_bytes);
    to += row_bytes;
  });
  return copy;
}

/// Copies the elements of a workload to strided views of one packed tensor. Each token has its query, key and value heads
/// side by side. Requires d_v = d_h and one query position, that of the last token; the queries of the other tokens are NaN.
inline std::unique_ptr<TensorWorkload> packed(TensorWorkload& workload) {
  const WorkloadShape& shape = workload.shape();
  const std::int64_t N = shape.n_keys, d = shape.head_dim, width = (shape.heads + 2 * shape.kv_heads) * d;
  std::vector<std::byte> memory(static_cast<std::size_t>(shape.batch * N * width) * bytes_of(shape.dtype), std::byte{0xFF});
  const auto view_at = [&](std::int64_t position, std::int64_t head, std::int64_t n_heads, std::int64_t n) {
    const std::int64_t offset = (position * width + head * d) * static_cast<std::int64_t>(bytes_of(shape.dtype));
    return TensorView{memory.data() + offset, shape.dtype, {shape.batch, n_heads, n, d}, {N * width, d, width}};
  };
  const TensorView q = view_at(N - 1, 0, shape.heads, 1), k = view_at(0, shape.heads, shape.kv_heads, N),
                   v = view_at(0, shape.heads + shape.kv_heads, shape.kv_heads, N);
  const auto fill = [&](const TensorView& to, const TensorView& from) {
    for_each_row(to.shape, [&](std::int64_t i, std::int64_t h, std::int64_t a) {
      std::memcpy(memory.data() + (to.row(i, h, a) - memory.data()), from.row(i, h, a),
                  static_cast<std::size_t>(d) * bytes_of(shape.dtype));
    });
  };
  fill(q, workload.query(0));
  fill(k, workload.k());
  fill(v, workload.v());
  std::vector<std::vector<std::byte>> owned;
  owned.push_back(std::move(memory));
  return std::make_unique<TensorWorkload>(std::move(owned), q, k, v, shape.lengths, workload.scale);
}

/// Copies the elements of a workload, every tensor starting `offset` bytes after a multiple of 16.
inline std::unique_ptr<TensorWorkload> misaligned(TensorWorkload& workload, std::size_t offset) {
  std::vector<std::vector<std::byte>> owned;
  std::vector<TensorView> views;
  for (const TensorView& view : {workload.query(0), workload.k(), workload.v()}) {
    const Tensor dense = copy_of(view);
    std::vector<std::byte>& memory = owned.emplace_back(dense.bytes.size() + 32);
    const std::size_t start = (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16 + offset;
    std::copy(dense.bytes.begin(), dense.bytes.end(), memory.begin() + static_cast<std::ptrdiff_t>(start));
    views.push_back(TensorView::dense(memory.data() + start, view.dtype, view.shape));
  }
  return std::make_unique<TensorWorkload>(std::move(owned), views[0], views[1], views[2], workload.lengths(),
                                          workload.scale);
}

}  // namespace tree_attn::test
