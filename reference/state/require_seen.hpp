// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The check of what the queries of a call see, for the oracle and the decoders (section 5).
#pragma once

#include "reference/state/mask.hpp"
#include "reference/state/require.hpp"
#include "reference/state/seen.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tree_attn {

/// Throws std::invalid_argument unless the rule has no negative number, there are no learned sinks or one for each head, the
/// mask, if there is one, has these axes, with `n_keys` or more, and the cap is 0 (none) or a number from 2^-60 to 2^60.
/// @param axes b, n_h, l
inline void require_seen(const char* function, const SeenRule& rule, std::size_t n_learned, const Mask& mask, double softcap,
                         const std::array<std::int64_t, 3>& axes, std::int64_t n_keys) {
  require(rule.window >= 0 && rule.sinks >= 0, function, ": a window of ", rule.window, " keys and ", rule.sinks,
          " sinks; neither is negative");
  require(n_learned == 0 || static_cast<std::int64_t>(n_learned) == axes[1], function, ": ", n_learned,
          " learned sinks for ", axes[1], " heads");
  const auto& [b, n_h, l] = axes;
  const auto& n = mask.shape;
  require(mask.data == nullptr || ((n[0] == 1 || n[0] == b) && (n[1] == 1 || n[1] == n_h) && n[2] == l && n[3] >= n_keys),
          function, ": the mask is [", n[0], ", ", n[1], ", ", n[2], ", ", n[3], "] instead of [", b, " or 1, ", n_h,
          " or 1, ", l, ", ", n_keys, "]");
  require(is_soft_cap(softcap), function, ": a soft cap of ", softcap, ", which is not 0 (none) or 2^-60 to 2^60");
}

}  // namespace tree_attn
