// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Hint of a copy to the L2 cache about the lines that it reads.
#pragma once

namespace tree_attn {

/// Results do not depend on it.
enum class CacheHint {
  Normal,
  EvictFirst,  ///< read once: these lines leave L2 before others, such as code, queries and states
};

}  // namespace tree_attn
