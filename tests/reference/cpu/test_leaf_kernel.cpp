// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The loops over leaves, in every build that this processor runs: conversions, merges, and the end of memory. Their
/// bits are compared with the plain decode by test_plain.cpp.
#include "reference/cpu/leaf_kernel.hpp"
#include "reference/tensor/convert.hpp"
#include "tests/support/same_bits.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tree_attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("leaf: every 16- and 8-bit element is widened as widen() does, by every build, in whole pairs and in the last") {
  const float k = 0;  // s = 0: a weight of 1
  for (const DType dtype : {DType::F16, DType::BF16, DType::F8_E4M3}) {
    const std::int64_t size = static_cast<std::int64_t>(bytes_of(dtype)), n_all = std::int64_t{1} << 8 * size;
    std::vector<std::byte> all(static_cast<std::size_t>(n_all * size));
    for (std::int64_t i = 0; i < n_all; ++i) std::memcpy(all.data() + i * size, &i, static_cast<std::size_t>(size));
    for (const std::int64_t most : {256, 255, 200, 31}) {
      if (size == 2 && most > 255) continue;
      for (std::int64_t first = 0; first < n_all; first += most) {
        const std::int64_t d_v = std::min(most, n_all - first);
        std::vector<float> want(static_cast<std::size_t>(d_v));
        load(all.data() + first * size, dtype, d_v, want.data());
        const LeafRows leaf{reinterpret_cast<const std::byte*>(&k), all.data() + first * size, 0, 0};
        for (const LeafKernel* kernel : leaf_kernels()) {
          for (const std::int64_t n_queries : {1, 2}) {
            std::vector<float> packed(64, 0), workspace(static_cast<std::size_t>(workspace_floats(1, 2, 1, d_v))),
                states(600);
            kernel->states({&leaf, 1, 1, DType::F32, dtype, 1, d_v, n_queries, packed.data(), 1.0f}, workspace.data(),
                           states.data());
            INFO(kernel->name << ", " << name_of(dtype) << ", " << d_v << " elements from " << first << " on");
            REQUIRE(same_numbers(want, std::span(states).subspan(kValues, want.size())));
          }
        }
      }
    }
  }
}

TEST_CASE("leaf: every build merges and divides states with the bits of merge() and finish()") {
  std::mt19937 random(7100);
  const auto draw = [&](float scale) {
    constexpr float kOdd[] = {0, -0.0f, kInf, -kInf, kNaN, 1e-40f, 3e38f, -3e38f};
    const auto kind = random() % 24;
    return kind < 8 ? kOdd[kind] : scale * std::uniform_real_distribution<float>(-1, 1)(random);
  };
  constexpr std::int64_t kRows = 9;
  for (const std::int64_t d_v : {0, 1, 15, 16, 33, 128}) {
    const std::int64_t size = state_size(d_v);
    std::vector<float> left(static_cast<std::size_t>(kRows * size)), right = left;
    for (std::vector<float>* states : {&left, &right}) {
      for (float& element : *states) element = draw(100);
      for (std::int64_t r = 0; r < kRows; ++r) {
        float* const state = states->data() + r * size;
        state[kShift] = static_cast<float>(static_cast<int>(random() % 400) - 200);
        state[kSum] = r % 3 == 0 ? draw(1) : 1 + static_cast<float>(random() % 1000);
        if (random() % 4 == 0) set_empty(state, d_v);
      }
    }
    // One element more than there are states, to see that it stays.
    std::vector<float> merged = left, z(static_cast<std::size_t>(kRows * d_v + 1), 7), lse(kRows + 1, 7);
    for (std::int64_t r = 0; r < kRows; ++r) {
      merge(merged.data() + r * size, right.data() + r * size, d_v);
      lse[static_cast<std::size_t>(r)] = finish(merged.data() + r * size, z.data() + r * d_v, d_v);
    }
    for (std::vector<float>* states : {&left, &right, &merged}) states->push_back(7);
    for (const LeafKernel* kernel : leaf_kernels()) {
      CAPTURE(kernel->name);
      CAPTURE(d_v);
      std::vector<float> got(merged.size(), 7), got_z(z.size(), 7), got_lse(lse.size(), 7);
      kernel->finish_states(merged.data(), kRows, d_v, got_z.data(), got_lse.data());
      CHECK((same_numbers(got_z, z) && same_numbers(got_lse, lse)));
      // Merged into memory of its own and into either operand, and divided at once, whichever operand is the left one.
      std::vector<float> in_left = left, in_right = right;
      kernel->merge_states(left.data(), right.data(), got.data(), kRows, d_v);
      kernel->merge_states(left.data(), in_right.data(), in_right.data(), kRows, d_v);
      kernel->merge_states(in_left.data(), right.data(), in_left.data(), kRows, d_v);
      for (const std::vector<float>& each : {got, in_left, in_right}) CHECK(same_numbers(each, merged));
      for (const auto& [first, second] : {std::pair(&left, &right), std::pair(&right, &left)}) {
        std::ranges::fill(got_z, 7.0f), std::ranges::fill(got_lse, 7.0f);
        kernel->finish_merged(first->data(), second->data(), kRows, d_v, got_z.data(), got_lse.data());
        CHECK((same_numbers(got_z, z) && same_numbers(got_lse, lse)));
      }
    }
  }
}

TEST_CASE("leaf: no element after the last row is read") {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::int64_t kLength = 70, kRow = 4 * kLength;
  // Rows that end where memory ends.
  void* const memory = ::mmap(nullptr, 9 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  REQUIRE(::mprotect(memory, 8 * page, PROT_READ | PROT_WRITE) == 0);
  const std::byte* const end = static_cast<std::byte*>(memory) + 8 * page;
  for (const LeafKernel* kernel : leaf_kernels()) {
    for (const std::int64_t n : {1, 20, 64, 100}) {
      for (const std::int64_t n_queries : {1, 4}) {
        std::vector<LeafRows> leaves;
        for (std::int64_t a = 0; a < n; a += kLeafKeys)
          leaves.push_back({end - (n - a) * kRow, end - (n - a) * kRow, kRow, kRow});
        std::vector<float> packed(static_cast<std::size_t>(n_queries * packed_size(kLength)), 0),
            workspace(static_cast<std::size_t>(workspace_floats(std::ssize(leaves), n_queries, kLength, kLength))),
            states(static_cast<std::size_t>(n_queries * state_size(kLength)));
        kernel->states(
            {leaves.data(), std::ssize(leaves), n, DType::F32, DType::F32, kLength, kLength, n_queries, packed.data(), 1.0f},
            workspace.data(), states.data());
        CHECK(states[kSum] == static_cast<float>(n));  // keys and values of 0, which weigh 1 each
      }
    }
  }
  ::munmap(memory, 9 * page);
}

}  // namespace tree_attn::test
