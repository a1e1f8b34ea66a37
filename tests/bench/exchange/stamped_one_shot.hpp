// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The exchange of `one-shot` with stamps: when a block has combined, sent and merged, and when each state has
/// arrived (section 5.3).
#pragma once

#include "gpu/engine/launch.hpp"
#include "gpu/engine/params.hpp"
#include "gpu/engine/peers.hpp"
#include "gpu/platform/launch.hpp"

#include <cstdint>

namespace tree_attn::TREE_ATTN_PLATFORM {

/// Stages of a block, of which its first thread notes the time.
enum ExchangeStage : int {
  kCombined,       ///< the first state of the own range is combined
  kSent,           ///< the packets of all rows are stored
  kMerged,         ///< the states of all ranks are merged, and the rows finished
  kExchangeStages  ///< number of stages
};

/// Peers that note when states arrive.
struct StampedPeers : Peers {
  std::uint64_t* arrivals = nullptr;  ///< [2][first_slot[n]][n_rows], in the order of a window
  /// States in one half of a window.
  TREE_ATTN_HOST_DEVICE std::int64_t n_states() const { return first_slot[n] * n_rows; }
};

/// Plans `one-shot` for BF16.
LaunchPlan plan_stamped_one_shot(const DecodeParams& params);
/// Queues it with stamps. Its output has the same bits.
/// @param plan of these parameters @param[out] stamps [rows][kExchangeStages], nanoseconds of a clock that all blocks share;
/// those of the blocks of the launch are written
/// @pre the parameters end with a leaf
void run_stamped_one_shot(const DecodeParams& params, const StampedPeers& peers, const DeviceOutput& result,
                          const LaunchPlan& plan, const Workspace& workspace, std::uint64_t* stamps, Stream stream);

}  // namespace tree_attn::TREE_ATTN_PLATFORM
