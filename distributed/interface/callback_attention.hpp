// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Attention over functions of the program that carry messages.
#pragma once

#include "distributed/interface/attention.hpp"
#include "distributed/transport/callback_ranks.hpp"

#include <memory>
#include <utility>

namespace tree_attn {

/// Attention over Callbacks. Collective; the destructor is not. Objects that shall share Callbacks are opened over one
/// Messages of their CallbackRanks.
/// @param timeout seconds that one wait may take without progress, may be infinite
/// @throws as CallbackRanks and Attention
inline Attention open_attention(std::unique_ptr<Callbacks> callbacks, int rank, int size, const AttentionShape& shape,
                                const AttentionSetup& setup = {}, double timeout = 60) {
  return {std::make_unique<const CallbackRanks>(std::move(callbacks), rank, size, timeout), shape, setup};
}

}  // namespace tree_attn
