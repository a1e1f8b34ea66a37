// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums inside tensor cores: results that were published, by two models from two sources.
#include "tests/gpu/soft_gpu/machine.hpp"
#include "tests/gpu/soft_gpu/two_models.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace tree_attn;
using test::Tile;

namespace {

constexpr float kInf = INFINITY;
float two_to(int e) { return std::ldexp(1.0f, e); }

/// A sum that was published: c and products that begin at a position of the sixteen.
struct Example {
  std::string name;
  float c;
  std::vector<std::pair<float, float>> products;
  float sum[2];  ///< on 8.0 and on 9.0
  std::size_t first = 0;
};
std::vector<Example> repeated(const Example& one, std::size_t n) {
  std::vector<Example> all;
  for (std::size_t first = 0; first < n; ++first) all.push_back(one), all.back().first = first;
  return all;
}

/// Fasi, Higham, Mikaitis and Pranesh (2021), tests of the A100, with the letters of their sections; the sums on 9.0 follow
/// from the second extra bit.
template <class T>
std::vector<Example> of_a100() {
  constexpr bool is_half = std::is_same_v<T, Half>;
  const float below = 1 - two_to(is_half ? -11 : -8), square = below * below, tiny = two_to(-24);
  const std::vector<std::pair<float, float>> ones(4, {1.0f, 1.0f}), halves(4, {0.5f, tiny});
  const auto both = [](float sum) { return std::pair(sum, sum); };
  const auto example = [](std::string name, float c, std::vector<std::pair<float, float>> products,
                          std::pair<float, float> sum) {
    return Example{std::move(name), c, std::move(products), {sum.first, sum.second}};
  };
  const float carry = 1 + two_to(-22) + two_to(-23);
  std::vector<Example> all = {
      example("A: subnormal element", 0, {is_half ? std::pair(tiny, 4.0f) : std::pair(two_to(-133), two_to(7))},
              both(two_to(is_half ? -22 : -126))),
      example("A: subnormal c", two_to(-149), {}, both(two_to(-149))),
      example("A: subnormal result", 0, {{two_to(is_half ? -14 : -126), 0.5f}}, both(two_to(is_half ? -15 : -127))),
      example("A: subnormal difference", -two_to(is_half ? -15 : -127), {{two_to(is_half ? -14 : -126), 1.0f}},
              both(two_to(is_half ? -15 : -127))),
      example("B: exact product", 0, {{below, below}}, both(square)),
      example("B: exact sum", 0, {4, {below, below}}, both(4 * square)),
      example("B: terms in float", 1, halves, {1, 1 + two_to(-23)}),
      example("B: largest term last", tiny, {halves[0], halves[0], halves[0], ones[0]}, {1, 1 + two_to(-23)}),
      example("B: largest term first", tiny, {ones[0], halves[0], halves[0], halves[0]}, {1, 1 + two_to(-23)}),
      example("C: down if positive", 0, {{1, 2}, {1, two_to(-23) + tiny}}, both(2)),
      example("C: up if negative", 0, {{1, -2}, {1, -two_to(-23) - tiny}}, both(-2)),
      example("D1: extra bits", -(1 - tiny), {ones[0]}, both(tiny)),
      example("D2: sum is not normalized", 1 - tiny, {4, {1.0f, tiny}}, both(1 + two_to(-23))),
      example("D3: difference is not normalized", -1 + tiny, {{1, 1}, {1, -tiny}}, both(0)),
      example("D4: third carry", 1.875f, {{1, 1}, {1, 1.5f}, {1, 1.75f}, {1, 1.875f}}, both(8)),
      example("D4: down after carries", carry, ones, both(5)),
      example("D4: up after carries", -carry, {4, {1.0f, -1.0f}}, both(-5)),
      example("D5: not monotonic, below 1", 1 - tiny, {halves[0], halves[0], halves[0], {0.5f, two_to(-23) + tiny}},
              both(1 + two_to(-23))),
      example("D5: not monotonic, at 1", 1, {halves[0], halves[0], halves[0], {0.5f, two_to(-23) + tiny}},
              {1, 1 + two_to(-23)}),
  };
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<std::pair<float, float>> products = ones;
    products[i].second = two_to(-23);
    all.push_back(example("D4: carries", carry, products, both(4 + two_to(-21))));
  }
  return all;
}

/// Khattak and Mikaitis (2025), features of the A30 and A100 (one extra bit, groups of 8) and of the H100 (two, 16).
std::vector<Example> of_features() {
  const float tiny = two_to(-24), last = 1 + two_to(-23), none = 0;
  std::vector<Example> all;
  const auto add = [&](const std::vector<Example>& more) { all.insert(all.end(), more.begin(), more.end()); };
  add(repeated({"1: one extra bit", 1, {{tiny, 1}, {tiny, 1}}, {last, last}}, 7));
  add(repeated({"1: two extra bits", 1, {{tiny, 1}, {tiny, 0.5f}, {tiny, 0.5f}}, {1, last}}, 6));
  for (const float sign : {1.0f, -1.0f}) {
    // A term of the second group comes after the sum of the first has lost its last bit.
    for (std::size_t k = 1; k < 16; ++k) {
      std::vector<std::pair<float, float>> products(k + 1, {none, 1.0f});
      products[0].first = sign, products[k].first = sign * two_to(-23);
      const float whole = sign * (2 + two_to(-22));
      add({{"2, 3: size of a group, " + std::to_string(k), sign * last, products, {k < 8 ? whole : sign * 2, whole}}});
    }
    add({{"5: cut off at the end", sign * (last + two_to(-22)), {3, {sign, 1.0f}}, {sign * 4, sign * 4}}});
    add({{"7: cut off while aligned, two extra bits", sign, {2, {sign * tiny, 0.25f + 0.125f}}, {sign, sign}}});
    add({{"7: cut off while aligned, one extra bit", sign, {2, {sign * tiny, 0.5f + 0.25f}}, {sign, sign}}});
    add({{"8: cut off between groups", sign * last, {{sign * tiny, 1.5f}}, {sign * last, sign * last}, 8}});
  }
  add(repeated({"4: late normalization", 1 - two_to(-21), {2, {two_to(-21) + tiny, 1.0f}}, {0, 0}}, 7));
  for (Example& one : all) {
    if (one.name.starts_with("4")) one.sum[0] = one.sum[1] = 1 + two_to(-21) + two_to(-23);
  }
  return all;
}

/// Sums that are not finite: the tests of exceptional cases beside the models of Khattak and Mikaitis, and MMA-Sim.
template <class T>
std::vector<Example> of_exceptions() {
  const float most = std::is_same_v<T, Half> ? two_to(15) : two_to(127);
  const float over = most * most == kInf ? kInf : most * most;
  const float nan = std::bit_cast<float>(0x7FFFFFFFu), c = two_to(127);
  std::vector<Example> all = {{"Inf and -Inf", 0, {{-kInf, 1.0f}, {kInf, 1.0f}}, {nan, nan}},
                              {"Inf times -Inf", 0, {{kInf, -kInf}}, {-kInf, -kInf}},
                              {"Inf times 0", 1, {{kInf, 0.0f}}, {nan, nan}},
                              {"c is NaN", std::bit_cast<float>(0xFF800001u), {{1.0f, 1.0f}}, {nan, nan}},
                              {"c is Inf", kInf, {{-1.0f, most}}, {kInf, kInf}},
                              {"products exceed floats", 0, {{most, most}, {1.0f, 1.0f}}, {over, over}},
                              {"products exceed floats and cancel", 1, {{most, most}, {-most, most}}, {0, 0}},
                              {"sum exceeds floats", c, {{most, c / most}, {0.0f, 1.0f}}, {kInf, kInf}}};
  if (!std::is_same_v<T, Half>) {
    all.push_back({"a sum of which nothing is left", -0.0f, {{-two_to(-133), two_to(-133)}}, {0, 0}});
    all.push_back({"nothing is left of any term, all below zero", -0.0f, {16, {-two_to(-133), two_to(-133)}}, {0, 0}});
    all.push_back(
        {"a float of which nothing is left; on 8.0 a second group follows", 0, {{-two_to(-75), two_to(-76)}}, {0, -0.0f}});
    all.push_back({"c is 0, products so small that 8.0 cuts off their last bits",
                   0,
                   {{255 * two_to(-80), two_to(-77)}, {two_to(-80), two_to(-77)}},
                   {0, two_to(-149)}});
  }
  return all;
}

/// The sum of an example by both models.
template <class T>
void check(const Example& example) {
  for (const int major : {8, 9}) {
    Tile<T> tile{};
    for (std::size_t i = 0; i < example.products.size(); ++i) {
      tile.a[0][example.first + i] = narrow<T>(example.products[i].first).bits;
      tile.b[0][example.first + i] = narrow<T>(example.products[i].second).bits;
    }
    tile.c[0][0] = std::bit_cast<std::uint32_t>(example.c);
    const auto expected = std::bit_cast<std::uint32_t>(example.sum[major - 8]);
    CHECK_MESSAGE(tile.by_emulator(major)[0][0] == expected, example.name, " by the emulator on ", major);
    CHECK_MESSAGE(tile.by_soft_gpu(major)[0][0] == expected, example.name, " by the GPU in software on ", major);
  }
}

}  // namespace

TEST_CASE("tensor sums: results that were published") {
  for (const Example& one : of_a100<Half>()) check<Half>(one);
  for (const Example& one : of_a100<BFloat16>()) check<BFloat16>(one);
  for (const Example& one : of_features()) check<Half>(one), check<BFloat16>(one);
  for (const Example& one : of_exceptions<Half>()) check<Half>(one);
  for (const Example& one : of_exceptions<BFloat16>()) check<BFloat16>(one);
}

namespace {

/// The registers of lane i in the layout of the PTX ISA (9.7.14.5.8): four words of a, two of b, four of c.
template <class T>
std::vector<std::uint32_t> registers(const Tile<T>& tile) {
  std::vector<std::uint32_t> words;
  for (std::size_t i = 0; i < 32; ++i) {
    const std::size_t g = i / 4, t = 2 * (i % 4);
    const auto pair = [](const std::uint16_t* two) { return two[0] | std::uint32_t{two[1]} << 16; };
    for (std::size_t k = 0; k < 4; ++k) words.push_back(pair(&tile.a[g + 8 * (k % 2)][t + 8 * (k / 2)]));
    for (std::size_t k = 0; k < 2; ++k) words.push_back(pair(&tile.b[g][t + 8 * k]));
    for (std::size_t k = 0; k < 4; ++k) words.push_back(tile.c[g + 8 * (k / 2)][t + k % 2]);
  }
  return words;
}

/// One mma.sync on the registers of a warp, 40 bytes a lane, which take the sums in place of c.
template <class T>
std::string kernel() {
  const std::string type = std::is_same_v<T, Half> ? ".f16" : ".bf16";
  std::string text = R"(.version 9.0
.target sm_80
.address_size 64
.entry f(.param .u64 p0)
{
.reg .b32 %r<12>;
.reg .f32 %f<4>;
.reg .b64 %d<4>;
mov.u32 %r10, %tid.x;
ld.param.u64 %d1, [p0];
mul.wide.u32 %d2, %r10, 40;
add.s64 %d3, %d1, %d2;
)";
  for (int i = 0; i < 6; ++i) text += "ld.global.u32 %r" + std::to_string(i) + ", [%d3+" + std::to_string(4 * i) + "];\n";
  for (int i = 0; i < 4; ++i)
    text += "ld.global.f32 %f" + std::to_string(i) + ", [%d3+" + std::to_string(24 + 4 * i) + "];\n";
  text += "mma.sync.aligned.m16n8k16.row.col.f32" + type + type +
          ".f32 {%f0, %f1, %f2, %f3}, {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};\n";
  for (int i = 0; i < 4; ++i)
    text += "st.global.f32 [%d3+" + std::to_string(24 + 4 * i) + "], %f" + std::to_string(i) + ";\n";
  return text + "ret;\n}\n";
}

template <class T>
void check_instruction() {
  Tile<T> tile;
  std::mt19937 random(7);
  for (std::uint16_t(&row)[16] : tile.a)
    for (std::uint16_t& x : row)
      x = narrow<T>(std::ldexp(static_cast<float>(random() % 201) - 100, -static_cast<int>(random() % 12))).bits;
  for (std::uint16_t(&column)[16] : tile.b)
    for (std::uint16_t& x : column) x = narrow<T>(static_cast<float>(random() % 201) - 100).bits;
  for (std::uint32_t(&row)[8] : tile.c)
    for (std::uint32_t& x : row) x = std::bit_cast<std::uint32_t>(static_cast<float>(random() % 201) - 100);
  const std::vector<std::uint32_t> words = registers(tile);
  const std::size_t n_bytes = 4 * words.size();
  const std::uint64_t at = *soft_gpu::memory::allocate(n_bytes);
  std::byte* const memory = soft_gpu::memory::find(at)->host(at);
  std::memcpy(memory, words.data(), n_bytes);
  std::vector<std::byte> parameters(8);
  std::memcpy(parameters.data(), &at, 8);
  soft_gpu::Grid(soft_gpu::Module(kernel<T>()).kernel("f"), {{1, 1, 1}, {32, 1, 1}, 1, 0}, parameters, 1).run(4);
  const auto sums = tile.by_emulator(soft_gpu::settings().major);
  for (std::size_t row = 0; row < 16; ++row) std::copy(sums[row].begin(), sums[row].end(), tile.c[row]);
  CHECK(std::memcmp(memory, registers(tile).data(), n_bytes) == 0);
}

}  // namespace

TEST_CASE("tensor sums: an instruction of the GPU in software has those of the emulator") {
  check_instruction<Half>();
  check_instruction<BFloat16>();
}
