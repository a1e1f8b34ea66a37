// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of a warpgroup (PTX ISA 9.0, 9.7.15): a warp makes its 16 rows of them at the wait, from what shared
/// memory holds then; until then its sums are NaN.
#include "tests/gpu/soft_gpu/instructions.hpp"
#include "tests/gpu/soft_gpu/tensor_sums.hpp"

#include <cstring>

namespace tree_attn::soft_gpu {
namespace {

constexpr std::uint8_t kIsHalf = 1, kIsTransposed = 2, kInRegisters = 4;
constexpr std::uint32_t kUnknown = ~0U;  // NaN

/// A matrix as its descriptor has it: rows of 64 elements of 16 bits in patterns of eight rows, swizzled by 128 bytes.
struct Matrix {
  /// Bytes: its first element, from eight rows to the next eight, and from 64 elements of a row to the next 64.
  std::uint32_t begin, between, beside;

  /// @throws Fault for another layout, or an address where the swizzle of rows would not be that of the memory
  Matrix(std::uint64_t descriptor, bool is_transposed)
      : begin(static_cast<std::uint32_t>(descriptor & 0x3FFF) << 4),
        between(static_cast<std::uint32_t>(descriptor >> 32 & 0x3FFF) << 4),
        beside(static_cast<std::uint32_t>(descriptor >> 16 & 0x3FFF) << 4) {
    const std::uint64_t swizzle = descriptor >> 62, base_offset = descriptor >> 49 & 7;
    if (swizzle != 1 || base_offset != 0 || between % 1024 != 0)
      throw Fault("a matrix at ", hex(begin), " with swizzle ", swizzle, ", base offset ", base_offset, " and ", between,
                  " bytes between eight rows; swizzle 1, offset 0 and a multiple of 1024 are known");
    if (begin % (is_transposed ? 1024 : 32) != 0 || begin % 1024 > 96)
      throw Fault("a matrix at ", hex(begin), ", ", begin % 1024,
                  " bytes past a multiple of 1024: its rows are not swizzled so");
  }
  /// Address of 16 bytes of a row: of those that the product takes, the unit is counted from the first.
  std::uint32_t unit(int row, int i) const {
    const std::uint32_t past = begin % 1024, of_eight = static_cast<std::uint32_t>(row % 8);
    return begin - past + static_cast<std::uint32_t>(row / 8) * between + static_cast<std::uint32_t>(i / 8) * beside +
           of_eight * 128 + 16 * ((past / 16 + static_cast<std::uint32_t>(i % 8)) ^ of_eight);
  }
  Number number(Warp& w, int row, int column, int n_fraction) const {
    const auto [block, at] = w.shared(unit(row, column / 8), 16, 16);
    std::uint16_t bits;
    std::memcpy(&bits, &block->shared[at + static_cast<std::uint32_t>(column % 8) * 2], 2);
    return decoded(bits, n_fraction);
  }
  void check(Warp& w, int n_rows, int n_units) const {
    for (int row = 0; row < n_rows; ++row) {
      for (int i = 0; i < n_units; ++i) {
        const auto [block, at] = w.shared(unit(row, i), 16, 16);
        block->check_fenced(at, 16);
      }
    }
  }
};

int rows_of_warp(const Warp& w) { return static_cast<int>(w.first_thread / 32 % 4 * 16); }
/// Rows of a matrix that lie in memory, and vectors of each: 16 columns of rows, or 64 of 16 rows where they are transposed.
bool is_transposed(const Op& op) { return (op.kind & kIsTransposed) != 0; }
/// A is in four registers, and b, not a, is transposed.
bool is_in_registers(const Op& op) { return (op.kind & kInRegisters) != 0; }

void start(Warp& w, const Op& op) {
  if (!w.meet(~0U)) return;
  if (settings().major != 9) throw Fault("wgmma on a device of compute capability ", settings().major);
  if (w.grid->shape.block[0] * w.grid->shape.block[1] * w.grid->shape.block[2] < (w.first_thread / 128 + 1) * 128)
    throw Fault("wgmma in a block without four such warps");
  Product product{&op, 0, w.of<std::uint64_t>(op.at[op.n + (is_in_registers(op) ? 4 : 1)])[0], w.product_group};
  if (is_in_registers(op)) {
    for (std::size_t i = 0; i < 4; ++i) std::copy_n(w.of<std::uint32_t>(op.at[op.n + i]), 32, product.registers[i].begin());
    Matrix(product.b, true).check(w, 16, 2 * op.n / 8);
  } else {
    product.a = w.of<std::uint64_t>(op.at[op.n])[0];
    Matrix(product.a, is_transposed(op)).check(w, is_transposed(op) ? 16 : 64, is_transposed(op) ? 8 : 2);
    Matrix(product.b, false).check(w, 2 * op.n, 2);
  }

  auto chain = std::find_if(w.products.begin(), w.products.end(), [&](const Products& products) {
    return products.sums.size() == op.n && std::equal(op.at, op.at + op.n, products.at);
  });
  if (chain == w.products.end()) {
    if (!w.are_sums_fenced) throw Fault("wgmma without a wgmma.fence since the last wait, or since the beginning");
    Products products{op.at, {}, {}};
    for (int i = 0; i < op.n; ++i) {
      std::array<std::uint32_t, 32>& sums = products.sums.emplace_back();
      std::copy_n(w.of<std::uint32_t>(op.at[i]), 32, sums.begin());
      std::fill_n(w.of<std::uint32_t>(op.at[i]), 32, kUnknown);
    }
    chain = w.products.insert(w.products.end(), std::move(products));
  }
  chain->under_way.push_back(product);
}

/// The 16 rows of a warp of one product.
void multiply(Warp& w, Products& products, const Product& product) {
  const Op& op = *product.op;
  const int n_fraction = (op.kind & kIsHalf) != 0 ? 10 : 7, first = rows_of_warp(w);
  const bool in_registers = is_in_registers(op);
  const Matrix of_b(product.b, in_registers);
  Number a[16][16];
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      if (in_registers) {
        const std::uint32_t pair =
            product
                .registers[static_cast<std::size_t>(k / 8 * 2 + row / 8)][static_cast<std::size_t>(row % 8 * 4 + k % 8 / 2)];
        a[row][k] = decoded(static_cast<std::uint16_t>(pair >> 16 * (k % 2)), n_fraction);
      } else {
        const Matrix of_a(product.a, is_transposed(op));
        a[row][k] =
            is_transposed(op) ? of_a.number(w, k, first + row, n_fraction) : of_a.number(w, first + row, k, n_fraction);
      }
    }
  }
  for (int column = 0; column < 2 * op.n; ++column) {
    Number b[16];
    for (int k = 0; k < 16; ++k)
      b[k] = in_registers ? of_b.number(w, k, column, n_fraction) : of_b.number(w, column, k, n_fraction);
    for (int row = 0; row < 16; ++row) {
      const auto lane = static_cast<std::size_t>(row % 8 * 4 + column % 8 / 2),
                 i = static_cast<std::size_t>(column / 8 * 4 + row / 8 * 2 + column % 2);
      std::uint32_t& sum = products.sums[i][lane];
      sum = sum_of_products(a[row], b, sum, n_fraction, settings().major);
    }
  }
}

void fence(Warp& w, const Op&) {
  if (w.meet(~0U)) w.are_sums_fenced = true;
}
void commit(Warp& w, const Op&) {
  if (w.meet(~0U)) ++w.product_group;
}
void wait(Warp& w, const Op& op) {
  if (!w.meet(~0U)) return;
  w.are_sums_fenced = false;
  std::erase_if(w.products, [&](Products& products) {
    std::erase_if(products.under_way, [&](const Product& product) {
      if (product.group + static_cast<std::uint32_t>(op.offset) >= w.product_group) return false;
      for (std::size_t i = 0; i < 4 && is_in_registers(*product.op); ++i)
        if (!std::equal(product.registers[i].begin(), product.registers[i].end(),
                        w.of<std::uint32_t>(product.op->at[product.op->n + i])))
          throw Fault("an operand of a wgmma in registers was written before the wait for it");
      return multiply(w, products, product), true;
    });
    if (!products.under_way.empty()) return false;
    for (std::size_t i = 0; i < products.sums.size(); ++i) {
      std::uint32_t* const to = w.of<std::uint32_t>(products.at[i]);
      if (std::any_of(to, to + 32, [](std::uint32_t x) { return x != kUnknown; }))
        throw Fault("a sum of a wgmma was written before the wait for it");
      std::copy_n(products.sums[i].begin(), 32, to);
    }
    return true;
  });
}

}  // namespace

Run warpgroup_products(const Statement& s, Op& op) {
  if (s.has("fence")) return fence;
  if (s.has("commit_group")) return commit;
  if (s.has("wait_group")) return op.offset = s.operand.at(0).offset, wait;
  const std::size_t n = s.operand.at(0).at.size();
  const bool in_registers = s.operand.at(1).at.size() == 4;
  const bool is_shape = s.has(n == 8    ? "m64n16k16"
                              : n == 16 ? "m64n32k16"
                              : n == 32 ? "m64n64k16"
                              : n == 64 ? "m64n128k16"
                                        : "");
  if (!is_shape || s.operand.size() != (in_registers ? 7 : 8) || s.type(0) != "f32" || s.type(1) != s.type(2))
    return nullptr;
  // c is added, nothing is negated, and b is transposed only beside an a in registers.
  for (const std::size_t i : {3U, 4U, 5U}) {
    if (s.operand[i].offset != 1) return nullptr;
  }
  if (s.operand.back().offset != (in_registers ? 1 : 0) || (s.type(1) != "f16" && s.type(1) != "bf16")) return nullptr;
  op.n = static_cast<std::uint8_t>(n);
  const bool is_transposed = !in_registers && s.operand[6].offset != 0;
  op.kind = static_cast<std::uint8_t>((s.type(1) == "f16" ? kIsHalf : 0) | (is_transposed ? kIsTransposed : 0) |
                                      (in_registers ? kInRegisters : 0));
  return start;
}

}  // namespace tree_attn::soft_gpu
