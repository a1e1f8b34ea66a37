// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Equal bits, NaN included.
#pragma once

#include "reference/decode/decode.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace tree_attn::test {

/// Compares the elements of two arrays.
template <class A, class B>
bool same_bits(const A& a, const B& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}
inline bool same_bits(const DecodeOutput& a, const DecodeOutput& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse);
}
/// Compares subtrees and their states.
inline bool same_bits(const Forest<float>& a, const Forest<float>& b) {
  return a.subtrees() == b.subtrees() && same_bits(a.states(), b.states());
}

/// Equal bits; any NaN equals any other, and the sign of a zero counts.
inline bool same_number(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }
/// Compares all elements of two arrays.
template <class A, class B>
bool same_numbers(const A& a, const B& b) {
  return std::ranges::equal(a, b, same_number);
}

}  // namespace tree_attn::test
