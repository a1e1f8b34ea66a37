// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The random numbers of the emulator: the same for the same seed, on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tree_attn::emulated::runtime {

/// splitmix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed = 0) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  /// 0 .. n - 1
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((next() >> 32) * n >> 32); }
  /// Any order of n things.
  template <class T>
  void shuffle(T* things, std::uint32_t n) {
    for (std::uint32_t i = n; i > 1; --i) std::swap(things[i - 1], things[below(i)]);
  }

 private:
  std::uint64_t state_;
};

/// 16 bits that are a NaN as a half, as a bfloat16 and, repeated, as a float and a double.
inline std::uint16_t poison(std::uint64_t seed) {
  const std::uint64_t die = Random(seed).next();
  return static_cast<std::uint16_t>((die & 0x8000) | 0x7FF0 | (die % 15 + 1));
}

/// Fills with 16 bits, low byte first.
inline void fill_with(std::uint16_t bits, std::byte* from, std::size_t n_bytes) {
  for (std::size_t i = 0; i + 1 < n_bytes; i += 2) std::memcpy(from + i, &bits, sizeof bits);
  if (n_bytes % 2 != 0) from[n_bytes - 1] = static_cast<std::byte>(bits & 0xFF);
}

}  // namespace tree_attn::emulated::runtime
