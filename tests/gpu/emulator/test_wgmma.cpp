// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of warpgroups against plain loops, with the layouts of the PTX ISA (9.7.15.5) written out; and what a
/// kernel does wrong with them.
#include "gpu/emulator/tensor_sums.hpp"
#include "tests/gpu/emulator/emulator_test.hpp"

#include <bit>

namespace tree_attn::emulated {
namespace {

constexpr int kBoxes = 2, kBoxElements = 64 * 64, kSums = 64 * 64;
using Words = std::vector<std::uint16_t>;

/// Puts a box [rows][64] into shared memory, swizzled: 16 bytes number u of row r lie at number u ^ (r mod 8).
template <class T>
void put_box(Shared<T> box, const std::uint16_t* from, int n_rows) {
  for (int i = static_cast<int>(threadIdx.x); i < 64 * n_rows; i += static_cast<int>(blockDim.x)) {
    const int row = i / 64, column = i % 64;
    box[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8] = T{load_once(from + i)};
  }
}
/// Row and column of a sum: warp w has rows from 16 w on.
int row_of(int i) { return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8; }
int column_of(int j, int i) { return 8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }

/// c <- c + a b over kBoxes boxes of each. Not transposed, a box of a has 64 of its rows and 64 of k, and one of b 8 n of
/// its columns; transposed, a box of a has 64 of k and the 64 rows.
template <class T, int n, bool kIsTransposed>
void multiply(const std::uint16_t* a, const std::uint16_t* b, float* c) {
  Arena arena;
  const Shared<T> of_a = arena.take<T>(kBoxes * kBoxElements, 1024), of_b = arena.take<T>(kBoxes * 512 * n, 1024);
  for (int box = 0; box < kBoxes; ++box) {
    put_box<T>(of_a + box * kBoxElements, a + box * kBoxElements, 64);
    put_box<T>(of_b + box * 512 * n, b + box * 512 * n, 8 * n);
  }
  async_proxy_fence();
  __syncthreads();
  float sums[n][4];
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < 4; ++i) sums[j][i] = c[64 * row_of(i) + column_of(j, i)];
  wgmma_fence(sums);
  for (int box = 0; box < kBoxes; ++box) {
    const BoxMatrix first = box_matrix(of_a + box * kBoxElements), second = box_matrix(of_b + box * 512 * n);
    wgmma_64xNx16<T, 4, kIsTransposed>(
        sums, [&](int i) { return first + i * (kIsTransposed ? 2048 : 32); }, [&](int i) { return second + 32 * i; });
    wgmma_commit();
  }
  wgmma_wait<0>(sums);
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < 4; ++i) c[64 * row_of(i) + column_of(j, i)] = sums[j][i];
}

/// Elements with exponents from 2^-7 to 1, of either sign.
template <class T>
Words elements(int n, std::uint32_t seed) {
  Words all;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i) {
    const std::uint32_t die = (i + seed) * 0x9E3779B9 ^ (i * i + seed) * 0x85EBCA6B >> 7;
    const float x = std::ldexp(1.0f + static_cast<float>(die >> 12 & 0x3FF) / 1024, -static_cast<int>(die >> 27 & 7));
    all.push_back(narrow<T>((die & 1) != 0 ? -x : x).bits);
  }
  return all;
}

/// The products, one element of c after the other, by the function of sums of an instruction.
template <class T, int n, bool kIsTransposed>
std::vector<float> expected(const Words& a, const Words& b, std::vector<float> c) {
  const auto at = [](const Words& words, int i) { return widen(T{words[static_cast<std::size_t>(i)]}); };
  for (int tile = 0; tile < 4 * n; ++tile) {
    const int row = tile / n * 16, column = tile % n * 8;
    float sums[16][8];
    for (int i = 0; i < 128; ++i) sums[i / 8][i % 8] = c[static_cast<std::size_t>(64 * (row + i / 8) + column + i % 8)];
    for (int k = 0; k < 64 * kBoxes; k += 16) {
      const int box = k / 64;
      Factors<16> of_a;
      Factors<8> of_b;
      for (int i = 0; i < 16; ++i) {
        for (int r = 0; r < 16; ++r)
          of_a.value[r][i] = at(a, kIsTransposed ? 64 * (k + i) + row + r : box * 4096 + 64 * (row + r) + k % 64 + i);
        for (int r = 0; r < 8; ++r) of_b.value[i][r] = at(b, box * 512 * n + 64 * (column + r) + k % 64 + i);
      }
      of_a.find_exponents(kSmallestExponent<T>), of_b.find_exponents(kSmallestExponent<T>);
      add_products(sums, of_a, of_b, tensor_cores_of(9));
    }
    for (int i = 0; i < 128; ++i) c[static_cast<std::size_t>(64 * (row + i / 8) + column + i % 8)] = sums[i / 8][i % 8];
  }
  return c;
}

template <class T, int n, bool kIsTransposed>
void check_products() {
  const Words a = elements<T>(kBoxes * kBoxElements, 1), b = elements<T>(kBoxes * 512 * n, 2);
  std::vector<float> c(kSums);
  for (std::size_t i = 0; i < kSums; ++i) c[i] = static_cast<float>(i % 17) / 7 - 1;
  DeviceBuffer<std::uint16_t> a_there(kBoxes * kBoxElements), b_there(kBoxes * 512 * n);
  DeviceBuffer<float> c_there(kSums);
  a_there.upload(a), b_there.upload(b), c_there.upload(c);
  launch(multiply<T, n, kIsTransposed>, {.block = {128}, .shared_bytes = kBoxes * (8192 + 1024 * n)}, {}, a_there.data(),
         b_there.data(), c_there.data());
  const std::vector<float> got = c_there.download(), right = expected<T, n, kIsTransposed>(a, b, c);
  int n_different = 0;
  for (std::size_t i = 0; i < kSums; ++i)
    n_different += std::bit_cast<std::uint32_t>(got[i]) != std::bit_cast<std::uint32_t>(right[i]);
  CAPTURE(n);
  CAPTURE(kIsTransposed);
  CHECK(n_different == 0);
  CHECK(got != c);
}

TEST_CASE("wgmma: every shape, type and side has the bits of its products one by one") {
  const auto check_type = []<class T>(T) {
    check_products<T, 2, false>(), check_products<T, 4, false>(), check_products<T, 8, false>();
    check_products<T, 2, true>(), check_products<T, 4, true>(), check_products<T, 8, true>();
  };
  check_type(BFloat16{}), check_type(Half{});
}

/// c <- c + a b with a [64, 16] in registers, row after row in `a`, and 16 rows of b [16, 8 n], 64 of them to a box.
template <class T, int n>
void multiply_registers(const std::uint16_t* a, const std::uint16_t* b, float* c) {
  Arena arena;
  const Shared<T> of_b = arena.take<T>(n / 8 * kBoxElements, 1024);
  for (int box = 0; box < n / 8; ++box) put_box<T>(of_b + box * kBoxElements, b + box * kBoxElements, 64);
  async_proxy_fence();
  __syncthreads();
  std::uint32_t registers[2][4];
  for (int i = 0; i < 4; ++i) {
    const int first = row_of(i % 2 * 2) * 16 + column_of(i / 2, 0);
    registers[0][i] = pack(T{a[first]}, T{a[first + 1]});
    registers[1][i] = registers[0][i] ^ 0x80008000;
  }
  float sums[n][4];
  for (int i = 0; i < 4 * n; ++i) sums[i / 4][i % 4] = c[8 * n * row_of(i % 4) + column_of(i / 4, i % 4)];
  wgmma_fence(sums);
  wgmma_of_registers_64xNx16<T>(sums, registers, [&](int i) { return box_matrix(of_b) + 2048 * (3 * i); });
  wgmma_commit();
  wgmma_wait<0>(sums);
  for (int i = 0; i < 4 * n; ++i) c[8 * n * row_of(i % 4) + column_of(i / 4, i % 4)] = sums[i / 4][i % 4];
}
template <class T, int n>
void check_registers() {
  const Words a = elements<T>(1024, 3), b = elements<T>(n / 8 * kBoxElements, 4);
  std::vector<float> c(64 * 8 * n);
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i % 13) / 7 - 1;
  DeviceBuffer<std::uint16_t> a_there(1024), b_there(n / 8 * kBoxElements);
  DeviceBuffer<float> c_there(64 * 8 * n);
  a_there.upload(a), b_there.upload(b), c_there.upload(c);
  launch(multiply_registers<T, n>, {.block = {128}, .shared_bytes = n * 1024}, {}, a_there.data(), b_there.data(),
         c_there.data());
  int n_different = 0;
  const std::vector<float> got = c_there.download();
  const auto at = [](const Words& words, int i) { return widen(T{words[static_cast<std::size_t>(i)]}); };
  for (int tile = 0; tile < 4 * n; ++tile) {
    const int row = tile / n * 16, column = tile % n * 8;
    float sums[16][8];
    for (int i = 0; i < 128; ++i) sums[i / 8][i % 8] = c[static_cast<std::size_t>(8 * n * (row + i / 8) + column + i % 8)];
    for (const int first : {0, 48}) {
      Factors<16> of_a;
      Factors<8> of_b;
      for (int k = 0; k < 16; ++k) {
        for (int r = 0; r < 16; ++r) of_a.value[r][k] = first == 0 ? at(a, 16 * (row + r) + k) : -at(a, 16 * (row + r) + k);
        for (int r = 0; r < 8; ++r)
          of_b.value[k][r] = at(b, column / 64 * kBoxElements + 64 * (first + k) + column % 64 + r);
      }
      of_a.find_exponents(kSmallestExponent<T>), of_b.find_exponents(kSmallestExponent<T>);
      add_products(sums, of_a, of_b, tensor_cores_of(9));
    }
    for (int i = 0; i < 128; ++i)
      n_different += std::bit_cast<std::uint32_t>(sums[i / 8][i % 8]) !=
                     std::bit_cast<std::uint32_t>(got[static_cast<std::size_t>(8 * n * (row + i / 8) + column + i % 8)]);
  }
  CAPTURE(n);
  CHECK(n_different == 0);
  CHECK(got != c);
}

TEST_CASE("wgmma: an operand in registers has the bits of its products one by one") {
  check_registers<BFloat16, 8>(), check_registers<BFloat16, 16>(), check_registers<Half, 8>(), check_registers<Half, 16>();
}

/// The inverse of load_matrices_x4_transposed().
void store_and_load(int* n_different) {
  Arena arena;
  const Shared<Bytes16> rows = arena.take<Bytes16>(32);
  const std::uint32_t lane = threadIdx.x;
  std::uint32_t given[4], got[1][4];
  for (std::uint32_t m = 0; m < 4; ++m) given[m] = lane << 16 | m << 8 | (lane + m);
  store_matrices_x4_transposed(rows + lane, given);
  __syncwarp();
  load_matrices_x4_transposed(got, [&](int) { return rows + lane; });
  for (int m = 0; m < 4; ++m) n_different[4 * lane + static_cast<std::uint32_t>(m)] = got[0][m] != given[m];
}

TEST_CASE("wgmma: stmatrix is the inverse of ldmatrix") {
  DeviceBuffer<int> different(128);
  launch(store_and_load, {.block = {32}, .shared_bytes = 512}, {}, different.data());
  CHECK(different.download() == std::vector<int>(128, 0));
}

/// Two chains in groups of their own: the first one is waited for while the second goes on.
/// @param overwrites whether row 8 of an operand is written before the wait
void two_groups(float* out, bool overwrites) {
  Arena arena;
  const Shared<Half> a = arena.take<Half>(kBoxElements, 1024), b = arena.take<Half>(1024, 1024);
  for (int i = static_cast<int>(threadIdx.x); i < kBoxElements; i += 128) a[i] = Half{0x3C00};
  for (int i = static_cast<int>(threadIdx.x); i < 1024; i += 128) b[i] = Half{0x3C00};
  async_proxy_fence();
  __syncthreads();
  const BoxMatrix first = box_matrix(a), second = box_matrix(b);
  float c[2][2][4] = {};
  wgmma_fence(c);
  for (int chain = 0; chain < 2; ++chain) {
    wgmma_64xNx16<Half, 2>(
        c[chain], [&](int i) { return first + 32 * i; }, [&](int i) { return second + 32 * i; });
    wgmma_commit();
  }
  if (overwrites && threadIdx.x < 64) a[8 * 64 + static_cast<int>(threadIdx.x)] = Half{0x4000};
  wgmma_wait<1>(c[0]);
  out[threadIdx.x] = c[0][1][3];
  const float early = c[1][1][3];
  wgmma_wait<0>(c[1]);
  out[128 + threadIdx.x] = c[1][1][3], out[256 + threadIdx.x] = early;
}

TEST_CASE("wgmma: a wait ends all groups but the last ones") {
  DeviceBuffer<float> out(384);
  const Launch config{.block = {128}, .shared_bytes = 8192 + 2048};
  CHECK(error_of(two_groups, config, out.data(), false) == "");
  const std::vector<float> got = out.download();
  for (std::size_t i = 0; i < 256; ++i) CHECK(got[i] == 32);
  for (std::size_t i = 256; i < 384; ++i) CHECK(got[i] != got[i]);
#if !defined(TREE_ATTN_EMULATOR_THREAD)  // ThreadSanitizer may end the test
  // Until then the products may read their operands.
  const std::string error = error_of(two_groups, config, out.data(), true);
  CHECK((error != "" || out.download()[0] != 32));
#endif
}

enum class Wrong {
  kNothing,
  kRowOff,
  kColumnOff,
  kTransposedOff,
  kPastEnd,
  kNoFenceOfProxies,
  kNoFence,
  kWrittenAfterFence,
  kOtherSums,
  kWrittenBeforeWait,
  kWaitTooEarly,
  kNotCommitted,
  kNoWait,
  kNotNamed,
  kFenceBeforeWait,
  kDifferent,
};
void do_wrong(Wrong wrong) {
  Arena arena;
  const Shared<Half> a = arena.take<Half>(kBoxElements, 1024), b = arena.take<Half>(2048, 1024);
  for (int i = static_cast<int>(threadIdx.x); i < kBoxElements; i += 128) a[i] = Half{0x3C00};
  for (int i = static_cast<int>(threadIdx.x); i < 2048; i += 128) b[i] = Half{0x3C00};
  if (wrong != Wrong::kNoFenceOfProxies) async_proxy_fence();
  __syncthreads();
  float c[4][4] = {}, other[4][4] = {};
  if (wrong != Wrong::kNoFence && wrong != Wrong::kOtherSums) wgmma_fence(c);
  if (wrong == Wrong::kOtherSums) wgmma_fence(other);
  if (wrong == Wrong::kWrittenAfterFence) c[3][3] = 1;
  const int past = wrong == Wrong::kRowOff      ? 128
                   : wrong == Wrong::kColumnOff ? 16
                   : wrong == Wrong::kPastEnd   ? 1024
                                                : 0,
            of_thread = wrong == Wrong::kDifferent && threadIdx.x == 77 ? 32 : 0;
  const BoxMatrix first = box_matrix(a) + (past + of_thread), second = box_matrix(b);
  if (wrong == Wrong::kTransposedOff) {
    wgmma_64xNx16<Half, 1, true>(
        c, [&](int) { return first + 32; }, [&](int) { return second; });
  } else {
    wgmma_64xNx16<Half, 1>(
        c, [&](int) { return first; }, [&](int) { return second; });
  }
  if (wrong != Wrong::kNotCommitted) wgmma_commit();
  if (wrong == Wrong::kNoWait) return;
  if (wrong == Wrong::kWrittenBeforeWait) c[0][0] = 2;
  if (wrong == Wrong::kWaitTooEarly)
    wgmma_wait<1>(c);
  else if (wrong == Wrong::kNotNamed)
    wgmma_wait<0>(other);
  else
    wgmma_wait<0>(c);
  if (wrong == Wrong::kFenceBeforeWait)
    wgmma_64xNx16<Half, 1>(
        c, [&](int) { return first; }, [&](int) { return second; });
}

TEST_CASE("wgmma: what a kernel does wrong is refused") {
  const auto error = [](Wrong wrong, unsigned n_threads = 128) {
    return error_of(do_wrong, {.block = {n_threads}, .shared_bytes = 8192 + 4096}, wrong);
  };
  CHECK(error(Wrong::kNothing) == "");
  CHECK(has(error(Wrong::kRowOff), "a begins 128 bytes past a multiple of 1024, and not 0, 32, 64 or 96"));
  CHECK(has(error(Wrong::kColumnOff), "a begins 16 bytes past a multiple of 1024"));
  CHECK(has(error(Wrong::kTransposedOff), "a begins 32 bytes past a multiple of 1024, and not there"));
  CHECK(has(error(Wrong::kPastEnd), "the 64 rows of a are not, or not wholly, in one piece"));
#if defined(TREE_ATTN_EMULATOR_SHADOW)
  CHECK(has(error(Wrong::kNoFenceOfProxies), "no async_proxy_fence() lies between"));
#endif
  CHECK(has(error(Wrong::kNoFence), "no wgmma_fence() has named these sums"));
  CHECK(has(error(Wrong::kOtherSums), "no wgmma_fence() has named these sums"));
  CHECK(has(error(Wrong::kFenceBeforeWait), "no wgmma_fence() has named these sums"));
  CHECK(has(error(Wrong::kWrittenAfterFence), "these sums were written after wgmma_fence()"));
  CHECK(has(error(Wrong::kWrittenBeforeWait), "a sum was written before wgmma_wait()"));
  CHECK(has(error(Wrong::kWaitTooEarly), "are still under way, in one of 1 groups or in none"));
  CHECK(has(error(Wrong::kNotCommitted), "are still under way"));
  CHECK(has(error(Wrong::kNoWait), "the block ends before wgmma_wait()"));
  CHECK(has(error(Wrong::kNotNamed), "does not name the sums of"));
  CHECK(has(error(Wrong::kDifferent), "threads of a warpgroup ask for different matrices"));
  CHECK(has(error(Wrong::kNothing, 96), "the block has no four warps from warp 0 on"));
  const SettingsScope scope({.major = 8});
  CHECK(has(error(Wrong::kNothing), "compute capability 8 has none"));
}

}  // namespace
}  // namespace tree_attn::emulated
