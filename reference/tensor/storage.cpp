// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Conversions between stored and computed numbers.
#include "reference/tensor/storage.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace tree_attn {
namespace {

/// Converts through an aligned buffer: a mapped file may start at an odd address, where no cast of the pointer is legal.
template <class Stored, class Real>
void convert(const std::byte* from, std::int64_t count, Real* out) {
  if constexpr (std::is_same_v<Stored, Real>) {
    if (count > 0) std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(Real));
    return;
  }
  constexpr std::int64_t kChunk = 512;
  alignas(64) Stored buffer[kChunk];
  for (std::int64_t done = 0; done < count; done += kChunk) {
    const std::int64_t n = std::min(kChunk, count - done);
    std::memcpy(static_cast<void*>(buffer), from + done * static_cast<std::int64_t>(sizeof(Stored)), static_cast<std::size_t>(n) * sizeof(Stored));
    if constexpr (std::is_same_v<Stored, Eigen::bfloat16>) {
      // BF16 is the upper half of F32: a shift, which compilers vectorise where Eigen's cast stays scalar.
      for (std::int64_t i = 0; i < n; ++i) out[done + i] = std::bit_cast<float>(std::uint32_t{buffer[i].value} << 16);
    } else {
      Eigen::Map<Eigen::Array<Real, Eigen::Dynamic, 1>>(out + done, n) =
          Eigen::Map<const Eigen::Array<Stored, Eigen::Dynamic, 1>>(buffer, n).template cast<Real>();
    }
  }
}

template <class Stored>
void convert_back(const float* from, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Stored stored = static_cast<Stored>(from[i]);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof(Stored)), &stored, sizeof stored);
  }
}

}  // namespace

std::size_t bytes_of(Storage storage) {
  switch (storage) {
    case Storage::F64: return 8;
    case Storage::F32: return 4;
    default: return 2;
  }
}

std::string_view name_of(Storage storage) {
  constexpr std::string_view kNames[] = {"F64", "F32", "F16", "BF16"};
  return kNames[static_cast<int>(storage)];
}

double unit_roundoff(Storage storage) {
  constexpr double kRoundoff[] = {0x1p-53, 0x1p-24, 0x1p-11, 0x1p-8};
  return kRoundoff[static_cast<int>(storage)];
}

TensorView TensorView::dense(const void* data, Storage storage, std::array<std::int64_t, 4> shape) {
  return {static_cast<const std::byte*>(data), storage, shape, {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3]}};
}

const std::byte* TensorView::row(std::int64_t i, std::int64_t j, std::int64_t n) const {
  assert(i >= 0 && i < shape[0] && j >= 0 && j < shape[1] && n >= 0 && n < shape[2]);
  return data + (i * stride[0] + j * stride[1] + n * stride[2]) * static_cast<std::int64_t>(bytes_of(storage));
}

TensorView TensorView::positions(std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || begin > end || end > shape[2]) {
    throw std::out_of_range("TensorView::positions: [" + std::to_string(begin) + ", " + std::to_string(end) + ") of " + std::to_string(shape[2]));
  }
  TensorView view = *this;
  view.shape[2] = end - begin;
  // No pointer is formed into an array that is not there.
  if (end > begin) view.data += begin * stride[2] * static_cast<std::int64_t>(bytes_of(storage));
  return view;
}

template <class Real>
void load(const std::byte* from, Storage storage, std::int64_t count, Real* out) {
  switch (storage) {
    case Storage::F64: return convert<double>(from, count, out);
    case Storage::F32: return convert<float>(from, count, out);
    case Storage::F16: return convert<Eigen::half>(from, count, out);
    case Storage::BF16: return convert<Eigen::bfloat16>(from, count, out);
  }
}

template <class Real>
void load_row(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t n, Real* out) {
  load(view.row(i, j, n), view.storage, view.shape[3], out);
}

void store(const float* from, Storage storage, std::int64_t count, std::byte* to) {
  switch (storage) {
    case Storage::F64: return convert_back<double>(from, count, to);
    case Storage::F32: return convert_back<float>(from, count, to);
    case Storage::F16: return convert_back<Eigen::half>(from, count, to);
    case Storage::BF16: return convert_back<Eigen::bfloat16>(from, count, to);
  }
}

template void load<float>(const std::byte*, Storage, std::int64_t, float*);
template void load<double>(const std::byte*, Storage, std::int64_t, double*);
template void load_row<float>(const TensorView&, std::int64_t, std::int64_t, std::int64_t, float*);
template void load_row<double>(const TensorView&, std::int64_t, std::int64_t, std::int64_t, double*);

}  // namespace tree_attn
