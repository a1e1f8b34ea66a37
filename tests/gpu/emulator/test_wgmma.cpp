// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of warpgroups: what a wait ends, and what a kernel does wrong with them.
#include "tests/gpu/emulator/emulator_test.hpp"

namespace tree_attn::emulated {
namespace {

constexpr int kBoxElements = 64 * 64;

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
