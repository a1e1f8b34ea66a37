// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory and traffic of tree and ring attention in the paper's counting (eq. (8)-(14), section 6).
///
/// All functions count elements, in the paper's letters; to_bytes() converts elements to bytes. The counters of distributed/
/// measure the same quantities during a run, and its tests compare them with these formulas.
#pragma once

#include "reference/state/require.hpp"

#include <cstddef>
#include <cstdint>

namespace tree_attn {

/// The parameters of the formulas. The paper has one query, and as many key/value heads as query heads.
struct CostShape {
  std::int64_t b = 1;    ///< batch
  std::int64_t t = 0;    ///< keys on each device, N / p
  std::int64_t d = 0;    ///< embedding dimension, n_h * d_h
  std::int64_t n_h = 1;  ///< heads
  std::int64_t p = 1;    ///< devices
};

/// Elements in bytes: 2 per element for BF16, 4 for F32.
constexpr double to_bytes(double n_elements, std::size_t bytes_per_element) {
  return n_elements * static_cast<double>(bytes_per_element);
}

/// Peak memory of ring attention on one device, 4btd + 2bd elements: its own keys and values, those received from the
/// neighbour, the query and the output.
/// @paper{eq_8, eq. (8)}
constexpr std::int64_t ring_peak_memory(const CostShape& s) { return 4 * s.b * s.t * s.d + 2 * s.b * s.d; }

/// Peak memory of tree decoding on one device, 2btd + 2bd + 2bn_h elements: its own keys and values, query and numerator,
/// and the denominator and max of every head.
/// @paper{eq_9, eq. (9)}
constexpr std::int64_t tree_peak_memory(const CostShape& s) { return 2 * s.b * s.t * s.d + 2 * s.b * s.d + 2 * s.b * s.n_h; }

/// Elements that one device sends in one hop of the ring: its keys and its values, 2btd.
/// @paper{eq_11, eq. (11)}
constexpr std::int64_t ring_hop_volume(const CostShape& s) { return 2 * s.b * s.t * s.d; }

/// Elements that all p devices together send in one step of the ring, 2btd x p. The ring takes p - 1 steps.
/// @paper{eq_10, eq. (10)}
constexpr std::int64_t ring_volume(const CostShape& s) { return ring_hop_volume(s) * s.p; }

/// Elements that each device sends in an AllReduce of `numel` elements: 2 (p-1)/p x numel, the minimum.
/// @param p devices
/// @param numel elements to reduce
/// @throws std::invalid_argument if p < 1
/// @paper{eq_12, eq. (12)}
constexpr double all_reduce_volume(std::int64_t p, std::int64_t numel) {
  require(p >= 1, "all_reduce_volume: ", p, " devices");
  return 2.0 * static_cast<double>(p - 1) / static_cast<double>(p) * static_cast<double>(numel);
}

/// Elements of a numerator n, a denominator D and a max m: bd + 2bn_h.
/// @paper{eq_13, eq. (13)}
constexpr std::int64_t tree_numel(const CostShape& s) { return s.b * s.d + 2 * s.b * s.n_h; }

/// Elements that each device sends in tree decoding: 2 (p-1)/p (bd + 2bn_h), independent of the sequence length.
/// @paper{eq_14, eq. (14)}
constexpr double tree_volume(const CostShape& s) { return all_reduce_volume(s.p, tree_numel(s)); }

}  // namespace tree_attn
