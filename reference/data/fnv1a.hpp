// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief FNV-1a, the hash by which ranks compare what they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tree_attn {

/// The hash of no bytes.
inline constexpr std::uint64_t kFnvStart = 0xCBF29CE484222325u;

/// FNV-1a with 64 bits (Fowler, Noll, Vo), continued from `hash`: for every byte, hash = (hash xor byte) * (2^40 + 0x1B3).
///
/// It finds what differs by accident. Two inputs with the same hash are easy to construct, so it is no proof of anything.
inline std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t hash = kFnvStart) {
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3u;
  return hash;
}

}  // namespace tree_attn
