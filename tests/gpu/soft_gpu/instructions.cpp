// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The instructions of PTX that compute (PTX ISA 9.0, section 9.7): each for the 32 lanes of a warp at once.
#include "tests/gpu/soft_gpu/instructions.hpp"

#include <chrono>
#include <cmath>
#include <concepts>
#include <limits>
#include <tuple>

namespace tree_attn::soft_gpu {
namespace {

// ---- Functions of lanes

/// d <- f(a, b, ..) in every lane.
template <auto f, class D, class... S>
void each(Warp& w, const Op& op) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    const std::tuple<const S*...> from{w.of<S>(op.at[1 + i])...};
    put_lanes<D>(w, op, [&](int lane) { return f(std::get<i>(from)[lane]...); });
  }
  (std::index_sequence_for<S...>{});
}

/// f of one, two or three operands of the type that is named.
template <auto f, int n>
Run typed(const Statement& s, Op&) {
  return for_type(s.type(), []<class T>() -> Run {
    if constexpr (n == 1 && std::is_invocable_v<decltype(f), T>) return each<f, T, T>;
    if constexpr (n == 2 && std::is_invocable_v<decltype(f), T, T>) return each<f, T, T, T>;
    if constexpr (n == 3) return each<f, T, T, T, T>;
    return nullptr;
  });
}
template <auto f>
constexpr Run (*one)(const Statement&, Op&) = typed<f, 1>;
template <auto f>
constexpr Run (*two)(const Statement&, Op&) = typed<f, 2>;
template <auto f>
constexpr Run (*three)(const Statement&, Op&) = typed<f, 3>;
/// Applies f to integers, or to predicates, whose lanes are the bits of a word.
template <auto f>
Run logic(const Statement& s, Op& op) {
  if (s.type() != "pred") return two<f>(s, op);
  return [](Warp& w, const Op& now) { w.put_predicate(now.at[0], f(w.predicate(now.at[1]), w.predicate(now.at[2]))); };
}

/// A NaN loses, and -0 is below +0.
template <bool is_max>
constexpr auto extreme = [](auto a, decltype(a) b) {
  if constexpr (std::floating_point<decltype(a)>) {
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return std::signbit(a) == is_max ? b : a;
  }
  return (a > b) == is_max ? a : b;
};
constexpr auto multiply_add = [](auto a, decltype(a) b, decltype(a) c) -> decltype(a) {
  if constexpr (std::floating_point<decltype(a)>)
    return std::fma(a, b, c);
  else
    return static_cast<decltype(a)>(a * b + c);
};
/// Divides; the manual promises no result for a division by 0 or an overflow.
constexpr auto divide = [](auto a, decltype(a) b) -> decltype(a) {
  using T = decltype(a);
  if constexpr (std::integral<T>) {
    if (b == 0) return static_cast<T>(-1);
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - a);
  }
  return static_cast<T>(a / b);
};
constexpr auto remainder = [](std::integral auto a, decltype(a) b) -> decltype(a) {
  using T = decltype(a);
  if (b == 0 || (std::is_signed_v<T> && b == static_cast<T>(-1))) return b == 0 ? a : T{0};
  return static_cast<T>(a % b);
};
/// Shifts by the width and more leave the sign alone.
template <bool is_left>
constexpr auto shifted = [](std::integral auto a, std::uint32_t b) {
  constexpr std::uint32_t kMost = 8 * sizeof a - 1;
  if (b > kMost) return static_cast<decltype(a)>(!is_left && a < 0 ? -1 : 0);
  return static_cast<decltype(a)>(is_left ? a << b : a >> b);
};
/// The lowest bits of a, in place of some of b.
constexpr auto inserted = [](auto a, decltype(a) b, std::uint32_t from, std::uint32_t length) {
  using T = decltype(a);
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  const std::uint32_t at = from & 0xFF, n = std::min(length & 0xFF, kBits);
  if (at >= kBits) return b;
  const T field = (n == kBits ? ~T{0} : (T{1} << n) - 1) << at;
  return static_cast<T>((b & ~field) | (a << at & field));
};
/// The bytes that four digits of c choose of the eight of b and a; a digit of 8 and more takes the sign of the byte.
constexpr auto permuted = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(b) << 32 | a;
  std::uint32_t d = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t digit = c >> 4 * i & 0xF, byte = static_cast<std::uint32_t>(bytes >> 8 * (digit & 7)) & 0xFF;
    d |= ((digit & 8) == 0 ? byte : (byte >> 7) * 0xFF) << 8 * i;
  }
  return d;
};
/// The manual allows 2 units in the last place; this is the function of the host, as in the emulator, so that bits compare.
template <bool flushes>
constexpr auto power_of_2 = [](float a) {
  if (flushes && std::fpclassify(a) == FP_SUBNORMAL) a = 0;
  const float power = std::exp2(a);
  return flushes && power < std::numeric_limits<float>::min() ? 0 : power;
};

// ---- Instructions that take types of several widths

Run multiply(const Statement& s, Op& op) {
  constexpr auto wide = []<class T>(T a, T b) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return static_cast<Wide>(a) * static_cast<Wide>(b);
  };
  constexpr auto high = []<std::integral T>(T a, T b) {
    return static_cast<__int128>(a) * static_cast<__int128>(b) >> 8 * sizeof(T);
  };
  if (s.has("hi")) return two<high>(s, op);
  if (!s.has("wide")) return two<[](auto a, decltype(a) b) { return a * b; }>(s, op);
  if (s.type() == "s32") return each<wide, std::int64_t, std::int32_t, std::int32_t>;
  if (s.type() == "u16") return each<wide, std::uint32_t, std::uint16_t, std::uint16_t>;
  return s.type() == "u32" ? each<wide, std::uint64_t, std::uint32_t, std::uint32_t> : nullptr;
}
Run exp2(const Statement& s, Op&) {
  if (s.type() != "f32" || !s.has("approx")) return nullptr;
  return s.has("ftz") ? each<power_of_2<true>, float, float> : each<power_of_2<false>, float, float>;
}
Run negation(const Statement& s, Op& op) {
  if (s.type() != "pred") return one<[](std::integral auto a) { return ~a; }>(s, op);
  return [](Warp& w, const Op& now) { w.put_predicate(now.at[0], ~w.predicate(now.at[1])); };
}
template <bool is_left>
Run shifting(const Statement& s, Op&) {
  return for_type(is_left ? bits(s.type()) : s.type(), []<class T>() -> Run {
    if constexpr (std::integral<T>) return each<shifted<is_left>, T, T, std::uint32_t>;
    return nullptr;
  });
}
template <auto f>
Run counting(const Statement& s, Op&) {
  return bytes_of(s.type()) == 8 ? each<f, std::uint32_t, std::uint64_t> : each<f, std::uint32_t, std::uint32_t>;
}
/// Zeros before the highest bit of a word without a sign; all bits if it is 0.
Run finding(const Statement& s, Op&) {
  constexpr auto zeros = [](std::uint32_t a) {
    return a == 0 ? ~std::uint32_t{0} : static_cast<std::uint32_t>(std::countl_zero(a));
  };
  return s.type() == "u32" && s.has("shiftamt") ? each<zeros, std::uint32_t, std::uint32_t> : nullptr;
}
Run insertion(const Statement& s, Op&) {
  using Word = std::uint32_t;
  return bytes_of(s.type()) == 4 ? each<inserted, Word, Word, Word, Word, Word> : nullptr;
}

template <auto f, class T>
void compare(Warp& w, const Op& op) {
  const T *const a = w.of<T>(op.at[1]), *const b = w.of<T>(op.at[2]);
  std::uint32_t holds = 0;
  for (int i = 0; i < 32; ++i) holds |= static_cast<std::uint32_t>(f(a[i], b[i])) << i;
  w.put_predicate(op.at[0], holds);
}
template <auto f>
Run comparing(Type type) {
  return for_type(type, []<class T>() -> Run { return compare<f, T>; });
}
Run comparison(const Statement& s, Op&) {
  // What holds for NaN too is the opposite of the opposite relation.
  static constexpr auto is_number = [](auto a, auto b) { return a == a && b == b; };
  static constexpr std::pair<std::string_view, Run (*)(Type)> kRelations[] = {
      {"eq", comparing<[](auto a, auto b) { return a == b; }>},
      {"ne", comparing<[](auto a, auto b) { return is_number(a, b) && a != b; }>},
      {"lt", comparing<[](auto a, auto b) { return a < b; }>},
      {"le", comparing<[](auto a, auto b) { return a <= b; }>},
      {"gt", comparing<[](auto a, auto b) { return (a > b); }>},
      {"ge", comparing<[](auto a, auto b) { return a >= b; }>},
      {"neu", comparing<[](auto a, auto b) { return a != b; }>},
      {"ltu", comparing<[](auto a, auto b) { return !(a >= b); }>},
      {"leu", comparing<[](auto a, auto b) { return !(a > b); }>},
      {"gtu", comparing<[](auto a, auto b) { return !(a <= b); }>},
      {"geu", comparing<[](auto a, auto b) { return !(a < b); }>},
      {"num", comparing<is_number>},
      {"nan", comparing<[](auto a, auto b) { return !is_number(a, b); }>}};
  for (const auto& [name, relation] : kRelations) {
    if (name == s.word[1] && s.operand.size() == 3 && s.word.size() == 3) return relation(s.type());
  }
  return nullptr;
}
template <class T>
void select(Warp& w, const Op& op) {
  const T *const a = w.of<T>(op.at[1]), *const b = w.of<T>(op.at[2]);
  const std::uint32_t p = w.predicate(op.at[3]);
  put_lanes<T>(w, op, [=](int i) { return (p >> i & 1) != 0 ? a[i] : b[i]; });
}
Run selection(const Statement& s, Op&) {
  return for_type(bits(s.type()), []<class T>() -> Run { return select<T>; });
}

// ---- Moves

constexpr auto same = [](auto a) { return a; };
/// An address of global memory or of a parameter as a generic one, or back: the number is the same.
Run generic_address(const Statement& s, Op&) {
  return bytes_of(s.type()) == 8 ? each<same, std::uint64_t, std::uint64_t> : nullptr;
}

/// Elements side by side in one register, and apart again.
template <class Whole, class Part>
void pack(Warp& w, const Op& op) {
  constexpr int n = sizeof(Whole) / sizeof(Part);
  Whole d[32];
  for (int k = 0; k < n; ++k) {
    for (int i = 0; i < 32; ++i) std::memcpy(reinterpret_cast<Part*>(&d[i]) + k, &w.of<Part>(op.at[1 + k])[i], sizeof(Part));
  }
  w.put(op.at[0], d);
}
template <class Whole, class Part>
void unpack(Warp& w, const Op& op) {
  constexpr int n = sizeof(Whole) / sizeof(Part);
  Part d[n][32];
  for (int k = 0; k < n; ++k) {
    for (int i = 0; i < 32; ++i)
      std::memcpy(&d[k][i], reinterpret_cast<const Part*>(&w.of<Whole>(op.at[n])[i]) + k, sizeof(Part));
  }
  for (int k = 0; k < n; ++k) w.put(op.at[k], d[k]);
}
template <auto f>
void special(Warp& w, const Op& op) {
  put_lanes<std::uint32_t>(w, op, [&](int lane) { return f(w, lane)[op.n]; });
}
/// The multiprocessor of a block: where a device that is empty would put it.
Extent multiprocessor(Warp& w, int) {
  const auto [x, y, z] = w.block->index;
  const auto& [n_x, n_y, n_z] = w.grid->shape.grid;
  return {(x + n_x * (y + n_y * z)) % static_cast<std::uint32_t>(settings().n_multiprocessors)};
}
/// Nanoseconds, as the time of the device and as the cycles of a multiprocessor.
void global_timer(Warp& w, const Op& op) {
  const auto time = std::chrono::steady_clock::now().time_since_epoch().count();
  put_lanes<std::uint64_t>(w, op, [=](int) { return time; });
}
Run special_register(std::string_view name, Type type, Op& op) {
  static constexpr std::pair<std::string_view, Run> kAll[] = {
      {"%tid", special<[](Warp& w, int lane) { return index_of(w.thread(lane), w.grid->shape.block); }>},
      {"%ntid", special<[](Warp& w, int) { return w.grid->shape.block; }>},
      {"%ctaid", special<[](Warp& w, int) { return w.block->index; }>},
      {"%nctaid", special<[](Warp& w, int) { return w.grid->shape.grid; }>},
      {"%smid", special<multiprocessor>},
      {"%cluster_ctarank", special<[](Warp& w, int) { return Extent{w.block->rank}; }>}};
  if (name == "%globaltimer" || name == "%clock64") return bytes_of(type) == 8 ? global_timer : nullptr;
  const std::size_t point = std::min(name.find('.'), name.size());
  op.n = point < name.size() ? static_cast<std::uint8_t>(name[point + 1] - 'x') : 0;
  for (const auto& [known, run] : kAll) {
    if (known == name.substr(0, point) && bytes_of(type) == 4) return run;
  }
  return nullptr;
}
Run moving(const Statement& s, Op& op) {
  const std::size_t n_to = s.operand.at(0).at.size(), n_from = s.operand.at(1).at.size();
  if (s.operand[1].is_special) return special_register(s.operand[1].name, s.type(), op);
  if (s.operand[1].is_label) throw Fault("what is '", s.operand[1].name, "'?");
  if (s.type() == "pred") return [](Warp& w, const Op& now) { w.put_predicate(now.at[0], w.predicate(now.at[1])); };
  switch (100 * static_cast<std::size_t>(bytes_of(s.type())) + 10 * std::max(n_to, n_from) + (n_to > 1)) {
    case 210: return each<same, std::uint16_t, std::uint16_t>;
    case 410: return each<same, std::uint32_t, std::uint32_t>;
    case 810: return each<same, std::uint64_t, std::uint64_t>;
    case 420: return pack<std::uint32_t, std::uint16_t>;
    case 421: return unpack<std::uint32_t, std::uint16_t>;
    case 820: return pack<std::uint64_t, std::uint32_t>;
    case 821: return unpack<std::uint64_t, std::uint32_t>;
    case 1620: return pack<B128, std::uint64_t>;
    case 1621: return unpack<B128, std::uint64_t>;
    default: return nullptr;
  }
}

// ---- Conversions

/// @param is_up whether it is rounded up to a whole number first
template <class D, class S>
D convert_one(S x, bool is_up) {
  if constexpr (std::floating_point<S>) {
    if (is_up) x = std::ceil(x);
    if constexpr (std::integral<D>) {
      // Past the ends, the nearest number there is; NaN is 0.
      constexpr D kLeast = std::numeric_limits<D>::min(), kMost = std::numeric_limits<D>::max();
      return x != x ? D{0} : x <= static_cast<S>(kLeast) ? kLeast : x >= static_cast<S>(kMost) ? kMost : static_cast<D>(x);
    }
  }
  if constexpr (std::same_as<D, Bfloat>) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
    return {static_cast<std::uint16_t>(x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
  } else {
    return static_cast<D>(x);
  }
}
template <class D, class S>
void convert(Warp& w, const Op& op) {
  const S* const a = w.of<S>(op.at[1]);
  put_lanes<D>(w, op, [&](int i) { return convert_one<D>(a[i], op.kind != 0); });
}
/// a b + c of one number, or of the two halves of a word.
constexpr auto pairs_multiply_add = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const auto half = [](std::uint32_t x, int at) { return double{std::bit_cast<float>(x >> at << 16)}; };
  std::uint32_t d = 0;
  for (int at = 0; at < 32; at += 16) {
    const double sum = std::fma(half(a, at), half(b, at), half(c, at));
    d |= std::uint32_t{convert_one<Bfloat>(sum, false).bits} << at;
  }
  return d;
};
Run fused(const Statement& s, Op& op) {
  if (!s.has("bf16x2")) return three<multiply_add>(s, op);
  return each<pairs_multiply_add, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
}
template <class S>
Run converting(Type to) {
  if (to == "f16") return convert<_Float16, S>;
  if (to == "bf16") return convert<Bfloat, S>;
  return for_type(to, []<class D>() -> Run { return convert<D, S>; });
}
Run conversion(const Statement& s, Op& op) {
  const Type to = s.type(0), from = s.type(1), source = s.operand.at(1).type;
  if (bytes_of(to) != bytes_of(s.operand[0].type)) return nullptr;
  // The lower half of a register.
  if (to == "s64" && from == "s32" && bytes_of(source) == 8)
    return each<[](std::uint64_t a) { return static_cast<std::int32_t>(a); }, std::int64_t, std::uint64_t>;
  if (!source.empty() && bytes_of(from) != bytes_of(source)) return nullptr;
  if (s.has("rzi") && to.starts_with("f")) return nullptr;
  op.kind = s.has("rpi");
  if (from == "f16") return converting<_Float16>(to);
  return for_type(from, [=]<class S>() -> Run { return converting<S>(to); });
}

}  // namespace

const std::vector<Instruction>& computing_instructions() {
  static const std::vector<Instruction> all = {
      {"abs", "", one<[](std::floating_point auto a) { return std::fabs(a); }>},
      {"add", "rn", two<[](auto a, decltype(a) b) { return a + b; }>},
      {"and", "", logic<[](std::integral auto a, decltype(a) b) { return a & b; }>},
      {"bfi", "", insertion},
      {"bfind", "shiftamt", finding},
      {"bra", "uni", always<[](Warp& w, const Op& op) { w.branch(static_cast<std::uint32_t>(op.offset)); }>},
      {"brev", "", one<[](std::unsigned_integral auto a) {
         decltype(a) reversed = 0;
         for (std::size_t i = 0; i < 8 * sizeof a; ++i) reversed = reversed << 1 | (a >> i & 1);
         return reversed;
       }>},
      {"clz", "", counting<[](auto a) { return std::countl_zero(a); }>},
      {"copysign", "", two<[](std::floating_point auto a, decltype(a) b) { return std::copysign(b, a); }>},
      {"cvt", "rn rpi rzi", conversion},
      {"cvta", "to global param", generic_address},
      {"div", "rn", two<divide>},
      {"ex2", "approx ftz", exp2},
      {"fma", "rn bf16x2", fused},
      {"griddepcontrol", "wait launch_dependents", always<nothing>},
      {"mad", "lo", three<multiply_add>},
      {"max", "", two<extreme<true>>},
      {"min", "", two<extreme<false>>},
      {"mov", "", moving},
      {"mul", "rn lo hi wide", multiply},
      {"neg", "", one<[](auto a) { return -a; }>},
      {"not", "", negation},
      {"or", "", logic<[](std::integral auto a, decltype(a) b) { return a | b; }>},
      {"popc", "", counting<[](auto a) { return std::popcount(a); }>},
      {"prmt", "", always<each<permuted, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>>},
      {"rem", "", two<remainder>},
      {"ret", "", always<[](Warp& w, const Op&) { w.exit(); }>},
      {"selp", "", selection},
      {"setp", "eq ne lt le gt ge neu ltu leu gtu geu num nan", comparison},
      {"shl", "", shifting<true>},
      {"shr", "", shifting<false>},
      {"sub", "rn", two<[](auto a, decltype(a) b) { return a - b; }>},
      {"xor", "", logic<[](std::integral auto a, decltype(a) b) { return a ^ b; }>},
  };
  return all;
}

void decode(const Statement& statement, Op& op) {
  for (const auto* list : {&computing_instructions(), &memory_instructions()}) {
    const auto found =
        std::find_if(list->begin(), list->end(), [&](const Instruction& one) { return one.name == statement.word.at(0); });
    if (found == list->end()) continue;
    const std::string allowed = ' ' + std::string(found->words) + ' ';
    for (std::size_t i = 1; i < statement.word.size(); ++i) {
      const std::string word(statement.word[i]);
      if (!is_type(word) && allowed.find(' ' + word + ' ') == std::string::npos)
        throw Fault("'", word, "' is not known to this GPU");
    }
    op.run = found->decode(statement, op);
    if (op.run == nullptr) throw Fault("this form is not known to this GPU");
    return;
  }
  throw Fault("an instruction that is not known to this GPU");
}

}  // namespace tree_attn::soft_gpu
