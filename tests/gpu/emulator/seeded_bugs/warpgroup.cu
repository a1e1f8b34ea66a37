// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Products of a warpgroup, as a kernel for many rows takes them: operands that threads bring, round after round.
#include "gpu/platform/device.hpp"
#include "gpu/platform/launch.hpp"
#include "reference/tensor/dtype.hpp"
#include "tests/gpu/emulator/seeded_bugs/seeded_bugs.hpp"

#include <cstdint>
#include <vector>

namespace tree_attn::TREE_ATTN_PLATFORM {
namespace {

constexpr int kRounds = 3, kThreads = 128, kLong = 64 * 64, kShort = 16 * 64, kRound = kLong + kShort;

/// c [64, 16] = the sum over the rounds of a [64, 64] b [64, 16], in whole numbers.
__global__ void multiply(Bug bug, const std::uint16_t* in, float* out) {
  Arena arena;
  const Shared<BFloat16> a = arena.take<BFloat16>(kLong, 1024), b = arena.take<BFloat16>(kShort, 1024);
  const int thread = static_cast<int>(threadIdx.x);
  float c[2][4] = {}, early = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = thread; i < kRound; i += kThreads) {
      const int row = i % kLong / 64, at = row * 64 + (i / 8 % 8 ^ row % 8) * 8 + i % 8;
      (i < kLong ? a : b)[at] = BFloat16{load_once(in + round * kRound + i)};
    }
    if (bug != Bug::kNoFenceOfProxies) async_proxy_fence();
    __syncthreads();
    const BoxMatrix first = box_matrix(a) + (bug == Bug::kMatrixOneRowOff && round > 0 ? 128 : 0), second = box_matrix(b);
    if (bug != Bug::kNoFenceOfSums || round == 0) wgmma_fence(c);
    wgmma_64xNx16<BFloat16, 4>(
        c, [&](int i) { return first + 32 * i; }, [&](int i) { return second + 32 * i; });
    wgmma_commit();
    if (bug == Bug::kSumBeforeWait) early += c[1][2];
    if (bug == Bug::kOperandBeforeWait) a[thread] = BFloat16{0x4040};
    if (bug == Bug::kGroupTooEarly && round > 0) {
      wgmma_wait<1>(c);
    } else {
      wgmma_wait<0>(c);
    }
    __syncthreads();
  }
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < 4; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8, column = 8 * j + thread % 4 * 2 + i % 2;
      store_fresh(out + 16 * row + column, c[j][i] + 0 * early);
    }
  }
}

}  // namespace

bool warpgroup_is_right(Bug bug) {
  std::vector<std::uint16_t> elements;
  const auto element = [](int round, int i) { return static_cast<float>((i * 7 + i / 64 + round) % 9 - 4); };
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kRound; ++i) elements.push_back(narrow<BFloat16>(element(round, i)).bits);
  }
  DeviceBuffer<std::uint16_t> in(kRounds * kRound, MemoryUse::Input);
  DeviceBuffer<float> out(64 * 16);
  in.upload(elements);
  launch(multiply, {.block = {kThreads}, .shared_bytes = kRound * 2}, Stream{}, bug, in.data(), out.data());
  const std::vector<float> got = out.download();
  for (int i = 0; i < 64 * 16; ++i) {
    float sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (int k = 0; k < 64; ++k) sum += element(round, i / 16 * 64 + k) * element(round, kLong + i % 16 * 64 + k);
    }
    if (got[static_cast<std::size_t>(i)] != sum) return false;
  }
  return true;
}

}  // namespace tree_attn::TREE_ATTN_PLATFORM
