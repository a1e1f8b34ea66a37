// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Conversions between stored elements and float or double.
#include "reference/tensor/convert.hpp"

#include <cstring>
#include <type_traits>

namespace tree_attn {

template <class Real>
void load(const std::byte* from, DType dtype, std::int64_t count, Real* out) {
  with_dtype(dtype, [&]<class T>(T) {
    constexpr std::int64_t kBytes = sizeof(T);
    if constexpr (std::is_same_v<T, Real>) {
      if (count > 0) std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(T));
    } else {
      // A mapped file may start at an odd address, where a cast of the pointer is undefined. Compilers vectorise this loop.
      for (std::int64_t i = 0; i < count; ++i) {
        T element;
        std::memcpy(&element, from + i * kBytes, sizeof element);
        out[i] = static_cast<Real>(widen(element));
      }
    }
  });
}

void store(const float* from, DType dtype, std::int64_t count, std::byte* to) {
  with_dtype(dtype, [&]<class T>(T) {
    constexpr std::int64_t kBytes = sizeof(T);
    for (std::int64_t i = 0; i < count; ++i) {
      const T element = narrow<T>(from[i]);
      std::memcpy(to + i * kBytes, &element, sizeof element);
    }
  });
}

template void load<float>(const std::byte*, DType, std::int64_t, float*);
template void load<double>(const std::byte*, DType, std::int64_t, double*);

}  // namespace tree_attn
