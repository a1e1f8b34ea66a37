// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of warpgroups that really are late: sums are NaN until the wait that ends them, and operands are read
/// then.
#include "gpu/emulator/wgmma.hpp"

#include "gpu/emulator/sanitizer.hpp"
#include "gpu/emulator/shadow.hpp"
#include "gpu/emulator/tensor_sums.hpp"
#include "gpu/emulator/thread.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

namespace tree_attn::emulated::runtime {

/// Addresses of the sums of all threads.
using Addresses = std::array<float (*)[4], kWarpgroup>;

/// Products that one call has started.
struct Products {
  std::vector<BoxMatrix> a, b;
  std::vector<std::array<std::array<std::uint32_t, 4>, kWarpgroup>> registers;  ///< in place of a, and b is transposed
  bool is_half, is_transposed;
  int group;
  Line line;
};

/// Products that are added to the same sums, one after the other; and sums that a fence has named.
struct Chain {
  Addresses addresses;
  int n;
  std::vector<float> sums;  ///< [4 warps][n][16][8]
  std::vector<Products> products{};

  /// Calls act(sum of the thread, sum of the chain).
  template <class Act>
  void for_all(const Act& act) {
    for (int thread = 0; thread < kWarpgroup; ++thread) {
      const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4 * 2;
      for (int i = 0; i < 4 * n; ++i) {
        const int row = g + i % 4 / 2 * 8, at = ((warp * n + i / 4) * 16 + row) * 8 + t + i % 2;
        act(addresses[static_cast<std::size_t>(thread)][i / 4][i % 4], sums[static_cast<std::size_t>(at)]);
      }
    }
  }
  bool is_changed() {
    bool changed = false;
    for_all([&](const float& c, const float& sum) {
      changed = changed || std::bit_cast<std::uint32_t>(c) != std::bit_cast<std::uint32_t>(sum);
    });
    return changed;
  }
};

struct Warpgroup {
  std::vector<Chain> fenced, under_way;
  int group = 0;  ///< of the next products
};

namespace {

constexpr const char* kWord = "wgmma_64xNx16";

/// @throws DeviceError if a warpgroup has not waited for its products
void end_warpgroups(const Block& block) {
  for (std::size_t i = 0; i < std::size(block.of_warpgroups); ++i) {
    for (const Chain& chain : block.warpgroups[static_cast<std::ptrdiff_t>(i)].under_way)
      fail(chain.products.front().line, std::string(kWord) + ": the block ends before wgmma_wait()");
  }
}

Warpgroup& own_warpgroup() {
  Block& block = *running->block;
  if (!block.warpgroups) {
    block.warpgroups = std::make_shared<Warpgroup[]>(std::size(block.of_warpgroups));
    block.end_warpgroups = end_warpgroups;
  }
  return block.warpgroups[(running - block.threads) / kWarpgroup];
}

Chain* find(std::vector<Chain>& chains, const float (*first)[4]) {
  const auto found =
      std::find_if(chains.begin(), chains.end(), [&](const Chain& chain) { return chain.addresses[0] == first; });
  return found == chains.end() ? nullptr : &*found;
}

/// Address of the 16 bytes `unit` of a row: vectors are swizzled by the number of their row, which is in the address.
const std::byte* unit_at(const BoxMatrix& matrix, int row, int unit) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(matrix.at) % 1024;
  return matrix.at - past + row * kBoxRowBytes + 16 * swizzled_unit(row, static_cast<int>(past / 16) + unit);
}
/// Calls act(16 bytes, row, unit) for all that a product takes of a matrix.
template <class Act>
void for_units(const BoxMatrix& matrix, int n_rows, int n_units, const Act& act) {
  for (int row = 0; row < n_rows; ++row) {
    for (int unit = 0; unit < n_units; ++unit) act(unit_at(matrix, row, unit), row, unit);
  }
}

/// Rows of a matrix, and vectors of each, that a product takes: 16 columns, or, transposed, 16 rows.
struct Shape {
  int n_rows, n_units;
};
Shape shape_of(int n_rows, bool is_transposed) { return is_transposed ? Shape{16, 8} : Shape{n_rows, 2}; }
constexpr int kBoxBytes = 64 * kBoxRowBytes;

/// Calls act(matrix, shape, name) for the operands of a product in shared memory, box by box.
template <class Act>
void for_operands(const Products& products, std::size_t i, int n, const Act& act) {
  if (products.registers.empty()) {
    act(products.a[i], shape_of(64, products.is_transposed), "a");
    act(products.b[i], shape_of(8 * n, false), "b");
  } else {
    for (int box = 0; box < n / 8; ++box) act(products.b[i] + box * kBoxBytes, shape_of(0, true), "b");
  }
}

/// The running thread reads a matrix: at the start, and again at the end.
void read(const BoxMatrix& matrix, const Shape& shape, const Line& line) {
  for_units(matrix, shape.n_rows, shape.n_units, [&](const std::byte* at, int, int) {
    note_read(at, 16);
    shadow::access(at, 16, false, line);
  });
}
void check(const BoxMatrix& matrix, const Shape& shape, const char* name, const Line& line) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(matrix.at) % 1024, most = shape.n_units == 8 ? 0 : 96;
  if (past % 32 != 0 || past > most)
    fail(line, std::string(kWord) + ": " + name + " begins " + std::to_string(past) + " bytes past a multiple of 1024, " +
                   (most == 0 ? "and not there" : "and not 0, 32, 64 or 96") + ": rows are swizzled by their address");
  const std::byte *const first = matrix.at - past, *const end = first + shape.n_rows * kBoxRowBytes;
  const auto& takes = running->block->takes;
  if (std::none_of(takes.begin(), takes.end(),
                   [&](const Take& take) { return first >= take.first && end <= take.first + take.n_bytes; }))
    fail(line, std::string(kWord) + ": the " + std::to_string(shape.n_rows) + " rows of " + name +
                   " are not, or not wholly, in one piece of this block's shared memory");
  for_units(matrix, shape.n_rows, shape.n_units,
            [&](const std::byte* at, int, int) { shadow::check_fenced(at, 16, "a warpgroup multiplies", line); });
  read(matrix, shape, line);
}

/// Factors of 16 columns, or rows, of a matrix, from the given row of its m or n on.
template <class T, int n>
Factors<n> factors_of(const BoxMatrix& matrix, int from, bool is_transposed) {
  Factors<n> factors;
  const auto put = [&](int k, int i, const std::byte* at) {
    T element;
    std::memcpy(&element, at, sizeof element);
    // A row of a is one of the tile; a row of b is a k.
    (n == 16 ? factors.value[i][k] : factors.value[k][i]) = widen(element);
  };
  for (int i = 0; i < n; ++i) {
    const int row = from + i;
    for (int k = 0; k < 16; ++k)
      put(k, i,
          is_transposed ? unit_at(matrix + row / 64 * kBoxBytes, k, row % 64 / 8) + row % 8 * 2
                        : unit_at(matrix, row, k / 8) + k % 8 * 2);
  }
  factors.find_exponents(kSmallestExponent<T>);
  return factors;
}

/// Factors of the 16 rows of a warp, in its registers.
template <class T>
Factors<16> factors_of(const std::array<std::uint32_t, 4>* lanes) {
  Factors<16> factors;
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      const std::uint32_t pair = lanes[row % 8 * 4 + k % 8 / 2][static_cast<std::size_t>(k / 8 * 2 + row / 8)];
      factors.value[row][k] = widen(T{static_cast<std::uint16_t>(pair >> 16 * (k % 2))});
    }
  }
  factors.find_exponents(kSmallestExponent<T>);
  return factors;
}

template <class T>
void add(Chain& chain, const Products& products, const TensorCores& cores) {
  const bool in_registers = !products.registers.empty();
  for (std::size_t i = 0; i < products.b.size(); ++i) {
    std::vector<Factors<8>> b;
    for (int j = 0; j < chain.n; ++j) b.push_back(factors_of<T, 8>(products.b[i], 8 * j, in_registers));
    for (int warp = 0; warp < 4; ++warp) {
      const auto a = in_registers ? factors_of<T>(&products.registers[i][static_cast<std::size_t>(32 * warp)])
                                  : factors_of<T, 16>(products.a[i], 16 * warp, products.is_transposed);
      for (int j = 0; j < chain.n; ++j) {
        float c[16][8];
        float* const sums = &chain.sums[static_cast<std::size_t>((warp * chain.n + j) * 128)];
        std::memcpy(c, sums, sizeof c);
        add_products(c, a, b[static_cast<std::size_t>(j)], cores);
        std::memcpy(sums, c, sizeof c);
      }
    }
  }
}

/// Addresses of the i-th sums that each thread brings, as sums_of() has them.
Chain chain_of(const Thread* threads, int i, int n) {
  Chain chain{{}, n, std::vector<float>(static_cast<std::size_t>(kWarpgroup * 4 * n))};
  for (std::size_t thread = 0; thread < kWarpgroup; ++thread)
    chain.addresses[thread] = static_cast<const Sums*>(threads[thread].operand)[i].c;
  return chain;
}

void start(const Thread* threads, const Line& line) {
  const auto call_of = [&](int i) -> const WgmmaCall& { return *static_cast<const WgmmaCall*>(threads[i].operand); };
  const WgmmaCall& call = call_of(0);
  const int n = call.sums.n, n_products = call.n_products;
  Products products{{}, {call.b, call.b + n_products}, {}, call.is_half, call.is_transposed, 0, line};
  if (call.registers == nullptr)
    products.a.assign(call.a, call.a + n_products);
  else
    products.registers.resize(static_cast<std::size_t>(n_products));
  for (int i = 0; i < kWarpgroup; ++i) {
    for (int k = 0; k < n_products; ++k) {
      if ((call.a != nullptr && call_of(i).a[k].at != call.a[k].at) || call_of(i).b[k].at != call.b[k].at)
        fail(line, std::string(kWord) + ": threads of a warpgroup ask for different matrices");
      if (call.registers != nullptr)
        std::copy_n(call_of(i).registers[k], 4,
                    products.registers[static_cast<std::size_t>(k)][static_cast<std::size_t>(i)].begin());
    }
  }
  for (std::size_t k = 0; k < products.b.size(); ++k)
    for_operands(products, k, n,
                 [&](const BoxMatrix& matrix, const Shape& shape, const char* name) { check(matrix, shape, name, line); });

  // Sums that are under way go on; others a fence has to name, and no thread may touch them after it.
  Warpgroup& own = own_warpgroup();
  products.group = own.group;
  Chain* chain = find(own.under_way, call.sums.c);
  if (chain == nullptr) {
    Chain* const fenced = find(own.fenced, call.sums.c);
    if (fenced == nullptr || fenced->n != n)
      fail(line, std::string(kWord) + ": no wgmma_fence() has named these sums since the last wgmma_wait()");
    if (fenced->is_changed()) fail(line, std::string(kWord) + ": these sums were written after wgmma_fence()");
    own.under_way.push_back(std::move(*fenced));
    own.fenced.erase(own.fenced.begin() + (fenced - own.fenced.data()));
    chain = &own.under_way.back();
    const std::uint32_t nan = running->block->cluster->nan;
    chain->for_all([&](float& c, const float&) { c = std::bit_cast<float>(nan | nan << 16); });
  }
  chain->products.push_back(std::move(products));
}

void end(int n_pending, const Sums* sums, int n, const Line& line) {
  Warpgroup& own = own_warpgroup();
  const TensorCores cores = tensor_cores_of(running->block->cluster->grid.settings.major);
  own.fenced.clear();
  const auto is_named = [&](const Chain& chain) {
    return std::any_of(sums, sums + n, [&](const Sums& named) { return named.c == chain.addresses[0]; });
  };
  std::erase_if(own.under_way, [&](Chain& chain) {
    const Line started = chain.products.back().line;
    std::erase_if(chain.products, [&](const Products& products) {
      if (products.group >= own.group - n_pending) return false;
      for (std::size_t k = 0; k < products.b.size(); ++k)
        for_operands(products, k, chain.n,
                     [&](const BoxMatrix& matrix, const Shape& shape, const char*) { read(matrix, shape, products.line); });
      (products.is_half ? add<Half> : add<BFloat16>)(chain, products, cores);
      return true;
    });
    if (!chain.products.empty()) {
      if (is_named(chain))
        fail(line, "wgmma_wait: products of " + to_string(started) + " with these sums are still under way, in one of " +
                       std::to_string(n_pending) + " groups or in none");
      return false;
    }
    if (!is_named(chain)) fail(line, "wgmma_wait: does not name the sums of " + to_string(started) + ", which it ends");
    const std::uint32_t nan = running->block->cluster->nan;
    chain.for_all([&](float& c, const float& sum) {
      if (std::bit_cast<std::uint32_t>(c) != (nan | nan << 16))
        fail(started, std::string(kWord) + ": a sum was written before wgmma_wait()");
      c = sum;
    });
    return true;
  });
}

void check_capability(const char* word, const Line& line) {
  if (const int major = running->block->cluster->grid.settings.major; major != 9)
    fail(line, std::string(word) + ": compute capability " + std::to_string(major) + " has none");
}

}  // namespace

void wgmma_fence(const Sums* sums, int n, const Line& line) {
  const Unwatched unwatched;
  check_capability("wgmma_fence", line);
  meet_warpgroup({"wgmma_fence", line}, const_cast<Sums*>(sums), [&](const Thread* threads) {
    Warpgroup& own = own_warpgroup();
    for (int i = 0; i < n; ++i) {
      Chain chain = chain_of(threads, i, sums[i].n);
      if (find(own.under_way, chain.addresses[0]) != nullptr) continue;
      chain.for_all([](const float& c, float& sum) { sum = c; });
      std::erase_if(own.fenced, [&](const Chain& other) { return other.addresses[0] == chain.addresses[0]; });
      own.fenced.push_back(std::move(chain));
    }
  });
}

void wgmma(WgmmaCall call, const Line& line) {
  const Unwatched unwatched;
  check_capability(kWord, line);
  meet_warpgroup({kWord, line}, &call, [&](const Thread* threads) { start(threads, line); });
}

void wgmma_commit(const Line& line) {
  const Unwatched unwatched;
  check_capability("wgmma_commit", line);
  meet_warpgroup({"wgmma_commit", line}, nullptr, [](const Thread*) { ++own_warpgroup().group; });
}

void wgmma_wait(int n_pending, const Sums* sums, int n, const Line& line) {
  const Unwatched unwatched;
  check_capability("wgmma_wait", line);
  // The names of the first thread stand for those of all.
  meet_warpgroup({"wgmma_wait", line}, const_cast<Sums*>(sums),
                 [&](const Thread* threads) { end(n_pending, static_cast<const Sums*>(threads[0].operand), n, line); });
}

}  // namespace tree_attn::emulated::runtime
