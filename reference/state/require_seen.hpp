// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The check of what the queries of a call see, for the oracle and the decoders (section 5).
#pragma once

#include "reference/state/mask.hpp"
#include "reference/state/seen.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tree_attn {

/// Throws std::invalid_argument unless the rule has no negative number, there are no learned sinks or one for each head, and
/// as require_mask(). @param axes b, n_h, l
inline void require_seen(const char* function, const SeenRule& rule, std::size_t n_learned, const Mask& mask, double softcap,
                         const std::array<std::int64_t, 3>& axes, std::int64_t n_keys) {
  require(rule.window >= 0 && rule.sinks >= 0, function, ": a window of ", rule.window, " keys and ", rule.sinks,
          " sinks; neither is negative");
  require(n_learned == 0 || static_cast<std::int64_t>(n_learned) == axes[1], function, ": ", n_learned,
          " learned sinks for ", axes[1], " heads");
  require_mask(function, mask, softcap, axes, n_keys);
}

}  // namespace tree_attn
