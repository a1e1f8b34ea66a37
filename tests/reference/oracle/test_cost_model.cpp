// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The paper's counts of memory and traffic, compared with its own figures and with counting.
#include "reference/oracle/cost_model.hpp"
#include "tests/support/message.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace tree_attn;

/// @tested{eq_8, eq. (8)}
/// @tested{eq_9, eq. (9)}
TEST_CASE("cost model: peak memory, and the gap in Fig. 4, which doubles with d") {
  const CostShape s{.b = 3, .t = 100, .d = 64, .n_h = 4, .p = 8};
  CHECK(ring_peak_memory(s) == 4 * 3 * 100 * 64 + 2 * 3 * 64);
  CHECK(tree_peak_memory(s) == 2 * 3 * 100 * 64 + 2 * 3 * 64 + 2 * 3 * 4);
  // Two GPUs, 128000 keys, BF16: 524 MB at d = 2048, 1040 MB at 4096.
  const auto gap_mb = [](std::int64_t d) {
    const CostShape two_gpus{.t = 64000, .d = d, .n_h = 16, .p = 2};
    return to_bytes(static_cast<double>(ring_peak_memory(two_gpus) - tree_peak_memory(two_gpus)), 2) / 1e6;
  };
  CHECK(gap_mb(2048) == doctest::Approx(524).epsilon(0.01));
  CHECK(gap_mb(4096) == doctest::Approx(1040).epsilon(0.01));
}

/// @tested{eq_10, eq. (10)}
/// @tested{eq_11, eq. (11)}
TEST_CASE("cost model: the ring sends keys and values p times") {
  const CostShape s{.b = 2, .t = 10, .d = 8, .n_h = 2, .p = 4};
  CHECK(ring_hop_volume(s) == 2 * 2 * 10 * 8);
  CHECK(ring_volume(s) == 4 * ring_hop_volume(s));
}

/// @tested{eq_12, eq. (12)}
TEST_CASE("cost model: an AllReduce of numel elements sends 2 (p-1)/p numel from each device, as counted in a ring") {
  for (const std::int64_t p : {1, 2, 4, 8}) {
    // Reduce-scatter, then all-gather: p - 1 rounds each, in which every device sends one chunk of numel / p.
    const std::int64_t numel = 240;
    std::int64_t sent = 0;
    for (int phase = 0; phase < 2; ++phase) {
      for (std::int64_t round = 1; round < p; ++round) sent += numel / p;
    }
    CHECK(all_reduce_volume(p, numel) == static_cast<double>(sent));
  }
  CHECK_INVALID(all_reduce_volume(0, 1), "all_reduce_volume: 0 devices");
}

/// @tested{eq_13, eq. (13)}
/// @tested{eq_14, eq. (14)}
TEST_CASE("cost model: the tree sends numerator, denominator and max, independent of the sequence length") {
  // The paper's attention block: 16 heads of 128, one query. n has 2048 elements, D and m have 16 each.
  CostShape s{.b = 1, .t = 80000, .d = 2048, .n_h = 16, .p = 8};
  CHECK(tree_numel(s) == 2048 + 16 + 16);
  CHECK(tree_volume(s) == 2 * 7 / 8.0 * 2080);
  const double before = tree_volume(s);
  s.t *= 1000;
  CHECK(tree_volume(s) == before);
  s.p = 1;
  CHECK(tree_volume(s) == 0);
}
