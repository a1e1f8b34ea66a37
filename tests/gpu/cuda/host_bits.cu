// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of host_bits.hpp.
#include "tree_attn/tests/gpu/cuda/host_bits.hpp"

#include "tree_attn/gpu/platform/device.hpp"
#include "tree_attn/reference/state/state.hpp"

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr unsigned kBlocks = 64, kThreads = 256;

/// The elements of this thread.
template <class Act>
__device__ void for_own(std::uint32_t n, const Act& act) {
  for (std::uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < n; i += kBlocks * kThreads) act(i);
}

__global__ void lse_kernel(float e, std::uint32_t first, std::uint32_t stride, std::uint32_t n, float* lse) {
  for_own(n, [&](std::uint32_t i) {
    const float state[] = {e, float_of(first + i * stride)};
    lse[i] = finish_lse(state);
  });
}

__global__ void value_kernel(const float* n_j, const float* sum, std::uint32_t n, float* z) {
  for_own(n, [&](std::uint32_t i) {
    const float state[] = {0, sum[i]};
    z[i] = finish_value(state, n_j[i]);
  });
}

template <class T>
__global__ void widen_kernel(std::uint32_t n, float* out) {
  for_own(n, [&](std::uint32_t i) { out[i] = widen(T{static_cast<std::uint16_t>(i)}); });
}

template <class T>
__global__ void narrow_kernel(const float* in, std::uint32_t n, std::uint16_t* out) {
  for_own(n, [&](std::uint32_t i) { out[i] = narrow<T>(in[i]).bits; });
}

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& elements) {
  DeviceBuffer<T> buffer(static_cast<std::int64_t>(elements.size()));
  buffer.upload(elements);
  return buffer;
}

/// Runs a kernel whose last argument is its n results.
template <class Out, class Kernel, class... Arguments>
std::vector<Out> results_of(const Kernel& kernel, std::size_t n, const Arguments&... arguments) {
  const DeviceBuffer<Out> out(static_cast<std::int64_t>(n));
  launch(kernel, {.grid = {kBlocks}, .block = {kThreads}}, Stream{}, arguments..., out.data());
  return out.download();
}

/// Calls f with an element of a type of 16 bits.
template <class F>
void with_16_bits(DType dtype, const F& f) {
  with_dtype(dtype, [&]<class T>(T element) {
    if constexpr (sizeof(T) == 2) f(element);
  });
}

}  // namespace

std::vector<float> lse_on_device(float e, std::uint32_t first, std::uint32_t stride, std::uint32_t n) {
  return results_of<float>(lse_kernel, n, e, first, stride, n);
}

std::vector<float> values_on_device(const std::vector<float>& n, const std::vector<float>& sum) {
  const DeviceBuffer<float> n_j = on_device(n), D = on_device(sum);
  return results_of<float>(value_kernel, n.size(), n_j.data(), D.data(), static_cast<std::uint32_t>(n.size()));
}

std::vector<float> widened_on_device(DType dtype) {
  constexpr std::uint32_t kPatterns = 1 << 16;
  std::vector<float> out;
  with_16_bits(dtype, [&]<class T>(T) { out = results_of<float>(widen_kernel<T>, kPatterns, kPatterns); });
  return out;
}

std::vector<std::uint16_t> narrowed_on_device(DType dtype, const std::vector<float>& elements) {
  const DeviceBuffer<float> in = on_device(elements);
  const auto n = static_cast<std::uint32_t>(elements.size());
  std::vector<std::uint16_t> out;
  with_16_bits(dtype, [&]<class T>(T) { out = results_of<std::uint16_t>(narrow_kernel<T>, n, in.data(), n); });
  return out;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
