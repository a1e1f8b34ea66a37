// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief FNV-1a, the hash that ranks compare to detect different input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tree_attn {

/// The hash of no bytes.
inline constexpr std::uint64_t kFnvStart = 0xCBF29CE484222325u;

/// 64-bit FNV-1a (Fowler, Noll, Vo), continued from `hash`: for every byte, hash = (hash xor byte) * (2^40 + 0x1B3).
///
/// Detects accidental differences only. Inputs with equal hashes are easy to construct.
inline std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t hash = kFnvStart) {
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3u;
  return hash;
}

}  // namespace tree_attn
