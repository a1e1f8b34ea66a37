// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bugs that kernels really have, each put into a kernel that is otherwise right; and which mode must see it.
///
/// An emulator that never complains is worth nothing until it has been shown bugs. Two small kernels with the shape of the
/// real ones hold them, switched by a parameter: pipeline (asynchronous copies, shuffles, last-block merge) and cluster
/// (bulk copies, mbarriers, distributed shared memory).
#pragma once

namespace tree_attn::emulated {

enum class Bug {
  kNone,
  // pipeline
  kMissingBarrier,
  kWeakWait,
  kMissingWait,
  kStageTooEarly,
  kMisalignedCopy,
  kCopyPastEnd,
  kLoadPastEnd,
  kSharedPastEnd,
  kMissingSyncwarp,
  kAbsentLane,
  kDivergentBarrier,
  kEarlyReturn,
  kUnsetFlag,
  kNoFenceBefore,
  kNoFenceBehind,
  kPlainCounter,
  kEntryNotWritten,
  kEntryTooMany,
  kReadOnlyLoad,
  // cluster
  kNoWait,
  kNoWaitForEmpty,
  kWrongParity,
  kCountTooLarge,
  kCountTooSmall,
  kTooFewBytes,
  kNoFenceInit,
  kNoBarrierAfterInit,
  kMisalignedBulk,
  kBulkPastEnd,
  kNoClusterBarrierBeforeRead,
  kNoClusterBarrierBeforeExit,
};

/// Modes of the emulator, as bits.
enum Mode : unsigned { kPlain = 1, kShadow = 2, kAddress = 4, kThread = 8, kAll = 15 };

struct SeededBug {
  Bug bug;
  const char* name;
  bool in_cluster;   ///< which of the two kernels
  unsigned seen_by;  ///< modes that must catch it: an error, a report or a wrong result
};

/// A catch is certain, given the seeds. What a mode may also see by luck is not listed.
inline constexpr SeededBug kSeededBugs[] = {
    {Bug::kMissingBarrier, "no __syncthreads behind the wait for a copy", false, kAll},
    {Bug::kWeakWait, "a wait that lets the wanted group be pending", false, kAll},
    {Bug::kMissingWait, "no wait for a copy at all", false, kAll},
    {Bug::kStageTooEarly, "a stage refilled before everybody has read it", false, kAll},
    {Bug::kMisalignedCopy, "a copy to an address that is no multiple of 16", false, kAll},
    {Bug::kCopyPastEnd, "a copy that starts 16 bytes too far", false, kAll},
    {Bug::kLoadPastEnd, "a plain load one number past the end", false, kAddress},
    {Bug::kSharedPastEnd, "a store one number past the end of a piece of shared memory", false, kAll},
    {Bug::kMissingSyncwarp, "no __syncwarp between a lane's store and its neighbour's load", false, kAll},
    {Bug::kAbsentLane, "a shuffle that asks a lane outside its mask", false, kAll},
    {Bug::kDivergentBarrier, "two __syncthreads, one for each branch", false, kAll},
    {Bug::kEarlyReturn, "a thread that returns before a barrier", false, kAll},
    {Bug::kUnsetFlag, "a flag in shared memory that only the last block sets", false, kShadow},
    {Bug::kNoFenceBefore, "no fence between the results of a block and its count", false, kThread},
    {Bug::kNoFenceBehind, "no fence between the last count and the results of the others", false, kThread},
    {Bug::kPlainCounter, "a counter of blocks that is not atomic", false, kThread},
    {Bug::kEntryNotWritten, "a sum that the last block reads and this launch has not written, where the launch before did",
     false, kAll},
    {Bug::kEntryTooMany, "a sum more than there are, looked at and by luck not used", false, kShadow},
    {Bug::kReadOnlyLoad, "a load for memory that no kernel writes, of what another block has written", false, kAll},
    {Bug::kNoWait, "no wait for a bulk copy", true, kAll},
    {Bug::kNoWaitForEmpty, "a producer that does not wait until a stage is free", true, kAll},
    {Bug::kWrongParity, "a wait for the other phase", true, kAll},
    {Bug::kCountTooLarge, "an mbarrier that awaits one arrival too many", true, kAll},
    {Bug::kCountTooSmall, "an mbarrier that awaits one arrival too few", true, kAll},
    {Bug::kTooFewBytes, "an mbarrier that awaits fewer bytes than are copied", true, kAll},
    {Bug::kNoFenceInit, "no fence between barrier_init and the first bulk copy", true, kAll},
    {Bug::kNoBarrierAfterInit, "no __syncthreads behind barrier_init", true, kAll},
    {Bug::kMisalignedBulk, "a bulk copy from an address that is no multiple of 16", true, kAll},
    {Bug::kBulkPastEnd, "a bulk copy that starts 16 bytes too far", true, kAll},
    {Bug::kNoClusterBarrierBeforeRead, "no cluster barrier before another block's memory is read", true, kAll},
    {Bug::kNoClusterBarrierBeforeExit, "no cluster barrier before a block whose memory is read ends", true,
     kShadow | kThread},
};

/// Runs the kernel that has this bug. @returns whether the result is right
/// @throws DeviceError
bool is_right(Bug bug, bool in_cluster);

}  // namespace tree_attn::emulated
