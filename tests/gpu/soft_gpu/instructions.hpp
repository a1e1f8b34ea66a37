// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The tables of instructions.
#pragma once

#include "tests/gpu/soft_gpu/machine.hpp"

#include <algorithm>

namespace tree_attn::soft_gpu {

using Run = void (*)(Warp&, const Op&);

/// An instruction: what its name may be followed by besides types, and which function runs the form that is written.
struct Instruction {
  std::string_view name, words;
  Run (*decode)(const Statement&, Op&);  ///< nullptr for a form that is not known
};
const std::vector<Instruction>& computing_instructions();
const std::vector<Instruction>& memory_instructions();
/// Decodes wgmma.
Run warpgroup_products(const Statement& s, Op& op);

/// One function whatever the form.
template <auto run>
Run always(const Statement&, Op&) {
  return run;
}
inline constexpr auto nothing = [](Warp&, const Op&) {};

/// d <- f(lane) in every lane.
template <class D, class F>
void put_lanes(Warp& w, const Op& op, const F& f) {
  D d[32];
  for (int lane = 0; lane < 32; ++lane) d[lane] = static_cast<D>(f(lane));
  w.put(op.at[0], d);
}

/// Returns make<T>() for the type T that lanes of this type have; nullptr if they have none.
template <class Make>
Run for_type(Type type, const Make& make) {
  if (type == "b16" || type == "u16") return make.template operator()<std::uint16_t>();
  if (type == "s16") return make.template operator()<std::int16_t>();
  if (type == "b32" || type == "u32") return make.template operator()<std::uint32_t>();
  if (type == "s32") return make.template operator()<std::int32_t>();
  if (type == "f32") return make.template operator()<float>();
  if (type == "b64" || type == "u64") return make.template operator()<std::uint64_t>();
  if (type == "s64") return make.template operator()<std::int64_t>();
  return type == "f64" ? make.template operator()<double>() : nullptr;
}
/// The type of the same width without a sign.
inline Type bits(Type type) {
  const int n = bytes_of(type);
  return n == 2 ? "b16" : n == 4 ? "b32" : "b64";
}

/// Registers of 128 bits, and of 16 of which a float is the upper half.
struct B128 {
  std::uint64_t half[2];
};
struct Bfloat {
  std::uint16_t bits;
};

}  // namespace tree_attn::soft_gpu
