// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Input of one decode step: the queries, and the positions that each of them sees (section 5).
#pragma once

#include "reference/state/mask.hpp"
#include "reference/state/seen.hpp"
#include "reference/tensor/view.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tree_attn {

/// One decode step. It refers to memory of the caller.
struct Step {
  TensorView q;                           ///< queries [b, n_h, l, d_h], on the device of the cache or the host
  std::span<const std::int64_t> lengths;  ///< keys in use per batch entry [b], over the whole sequence and not over a shard
  SeenRule rule{};                        ///< which of them a query sees
  std::span<const float> sink{};          ///< a learned natural logit of every head [n_h], see add_sink(); empty: none
  Mask mask{};                            ///< of all positions, see mask.hpp
  double softcap = 0;                     ///< c of the scores c tanh(s / c), which come before the mask; 0: none
  /// Stream of the device of q in whose order the step reads and writes, so that the host need not wait: a handle as
  /// DeviceStream has it. None: the step comes after the default stream, and the caller waits.
  std::optional<void*> stream{};

  /// Keys of the longest batch entry; 0 without entries.
  std::int64_t longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }
  /// Keys that query j of a batch entry sees, that any of its queries sees, and that all of them see.
  Seen seen(std::int64_t entry, std::int64_t j) const { return rule.of(length(entry), q.shape[2], j); }
  Seen seen_by_any(std::int64_t entry) const { return rule.of_any(length(entry), q.shape[2]); }
  Seen seen_by_all(std::int64_t entry) const { return rule.of_all(length(entry), q.shape[2]); }
  /// The learned sink of row (i n_h + h) l + j. @pre there are any
  float sink_of(std::int64_t row) const { return sink[static_cast<std::size_t>(row / q.shape[2] % q.shape[1])]; }
  bool sees_all() const { return rule.window == 0 && (!rule.causal || q.shape[2] <= 1); }  ///< every query, all keys

 private:
  std::int64_t length(std::int64_t entry) const { return lengths[static_cast<std::size_t>(entry)]; }
};

}  // namespace tree_attn
