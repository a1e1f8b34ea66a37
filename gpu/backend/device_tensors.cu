// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels: one thread block per row of the last axis.
#include "gpu/backend/device_tensors.hpp"

#include "gpu/platform/device.hpp"

#include <cmath>
#include <limits>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr unsigned kThreads = 128;

/// A view as a kernel takes it.
struct Rows {
  unsigned char* data;
  DType dtype;
  std::int64_t n[4], stride[3];

  /// Element 0 of row i of all, counted in elements.
  __device__ std::int64_t begin(std::int64_t i) const {
    return i / (n[1] * n[2]) * stride[0] + i / n[2] % n[1] * stride[1] + i % n[2] * stride[2];
  }
  __device__ float load(std::int64_t at) const {
    float x = 0;
    try_dtype(dtype, [&]<class T>(T) { x = static_cast<float>(widen(load_once(reinterpret_cast<const T*>(data) + at))); });
    return x;
  }
  /// Types of other sizes than F32 are stored in a way that the emulator does not watch.
  __device__ void store(std::int64_t at, float x) const {
    if (dtype == DType::F32) return store_fresh(reinterpret_cast<float*>(data) + at, x);
    try_dtype(dtype, [&]<class T>(T) { reinterpret_cast<T*>(data)[at] = narrow<T>(x); });
  }
};

/// to <- from in another type, divided by a scale of the head where the types differ.
/// - Grid: rows of the last axis of `from`.
/// - Block: kThreads threads, which share the elements of a row.
/// - Reads: a row of `from`, and scales[head] unless scales is null.
/// - Writes: a row of `to`.
__global__ void convert_each(Rows from, Rows to, const float* scales) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const std::int64_t source = from.begin(blockIdx.x), target = to.begin(blockIdx.x);
  const float scale =
      scales == nullptr || from.dtype == to.dtype ? 1 : load_once(scales + blockIdx.x / from.n[2] % from.n[1]);
  for (std::int64_t j = threadIdx.x; j < from.n[3]; j += blockDim.x) {
    const float x = from.load(source + j), divided = x / scale;
    // What is finite stays so.
    to.store(target + j, std::fabs(x) <= kLargest && std::fabs(divided) > kLargest ? std::copysign(kLargest, x) : divided);
  }
}

/// The state of every row of o with its lse.
/// - Grid: rows of the last axis of o.
/// - Block: kThreads threads, which share the components of a row.
/// - Reads: a row of o, unless its lse is -inf, and its lse.
/// - Writes: states [rows][2 + d_v].
__global__ void set_each(float* states, Rows o, Rows lse, LseForm form) {
  const std::int64_t d_v = o.n[3], first = o.begin(blockIdx.x);
  float* const state = states + blockIdx.x * state_size(d_v);
  const float of_row = lse.load(lse.begin(blockIdx.x));
  const bool is_read = of_row != -std::numeric_limits<float>::infinity();
  // A thread makes the state of one component, with the same shift and sum as every other; a row of none has those too.
  for (std::int64_t j = threadIdx.x; j == 0 || j < d_v; j += blockDim.x) {
    const float value = is_read && j < d_v ? o.load(first + j) : 0;
    float one[kValues + 1];
    set_from_lse(one, &value, of_row, 1, form);
    if (j < d_v) store_fresh(state + kValues + j, one[kValues]);
    if (j == 0) store_fresh(state + kShift, one[kShift]), store_fresh(state + kSum, one[kSum]);
  }
}

Rows rows_of(const TensorView& view) {
  const auto offset = reinterpret_cast<std::uintptr_t>(view.data) % bytes_of(view.dtype);
  require(offset == 0, "a tensor on a device begins ", offset, " bytes inside an element of ", name_of(view.dtype));
  Rows rows{reinterpret_cast<unsigned char*>(const_cast<std::byte*>(view.data)), view.dtype, {}, {}};
  for (std::size_t axis = 0; axis < 4; ++axis) rows.n[axis] = view.shape[axis];
  for (std::size_t axis = 0; axis < 3; ++axis) rows.stride[axis] = view.stride[axis];
  return rows;
}

/// One thread block for each row of a view.
Launch per_row(const TensorView& view) {
  const std::int64_t n = view.shape[0] * view.shape[1] * view.shape[2];
  require(n <= std::numeric_limits<std::int32_t>::max(), "a tensor on a device has ", n, " rows; at most 2^31 - 1");
  return {.grid = {static_cast<unsigned>(n)}, .block = {kThreads}};
}

}  // namespace

void convert_rows(const TensorView& from, const TensorView& to, Stream stream, const float* scales) {
  require(from.shape == to.shape, "convert_rows: two views with other axes");
  const Launch config = per_row(from);
  if (config.grid.x == 0 || from.shape[3] == 0) return;
  launch(convert_each, config, stream, rows_of(from), rows_of(to), scales);
}

void set_states(float* states, const TensorView& o, const TensorView& lse, LseForm form, Stream stream) {
  const auto [b, n_h, l, d_v] = o.shape;
  require(lse.shape == std::array{b, n_h, l, std::int64_t{1}}, "set_states: o and lse have other axes");
  const Launch config = per_row(o);
  if (config.grid.x == 0) return;
  launch(set_each, config, stream, states, rows_of(o), rows_of(lse), form);
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
