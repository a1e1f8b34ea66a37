// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bugs that kernels really have, each put into a kernel that is otherwise right; and which mode must see it.
///
/// An emulator that never complains is worth nothing until it has been shown bugs. Small kernels with the shape of the
/// real ones hold them, switched by a parameter: pipeline (asynchronous copies, shuffles, last-block merge), cluster (bulk
/// copies, mbarriers, distributed shared memory), warp_ring (tensor maps, copies per warp, launches that overlap), exchange
/// (streams, two devices, windows) and one_shot (the protocol of the one-shot kernel, three devices).
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
  kPlainCounter,
  kRelaxedCounter,
  kCountBeforeBarrier,
  kCounterTooLong,
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
  // warp_ring
  kNoSyncwarpAfterInit,
  kNoProxyFence,
  kNoSyncwarpBeforeRefill,
  kBoxMisaligned,
  kBoxTooFewBytes,
  kBoxOfAnotherType,
  kMapPastEnd,
  kNotSwizzled,
  kRowsPastLength,
  kNoWaitForLaunch,
  kWriteBeforeWait,
  // exchange
  kMissingEvent,
  kNeverSignalled,
  kMoreBlocksThanFit,
  kFarStoreOutsideWindow,
  kRelaxedSignal,
  kNoSyncwarpBeforeSignal,
  kNoWaitForPeer,
  // one_shot
  kSendBeforeWait,
  kOneHalf,
  kStepNotAdvanced,
  kPacketInPieces,
  kNoWaitForPacket,
  kWaitBeforeLastSend,
  kSilentEmptyRank,
  kMoreWaitingBlocksThanFit,
};

/// The kernels that have them.
enum Kernel { kPipeline, kCluster, kWarpRing, kExchange, kOneShot };

/// Modes of the emulator, as bits.
enum Mode : unsigned { kPlain = 1, kShadow = 2, kAddress = 4, kThread = 8, kAll = 15 };

struct SeededBug {
  Bug bug;
  const char* name;
  Kernel kernel;     ///< that has it
  unsigned seen_by;  ///< modes that must catch it: an error, a report or a wrong result
};

/// A catch is certain, given the seeds. What a mode may also see by luck is not listed.
inline constexpr SeededBug kSeededBugs[] = {
    {Bug::kMissingBarrier, "no __syncthreads after the wait for a copy", kPipeline, kAll},
    {Bug::kWeakWait, "a wait that leaves the needed group pending", kPipeline, kAll},
    {Bug::kMissingWait, "no wait for a copy at all", kPipeline, kAll},
    {Bug::kStageTooEarly, "a stage refilled before all threads have read it", kPipeline, kAll},
    {Bug::kMisalignedCopy, "a copy to an address that is no multiple of 16", kPipeline, kAll},
    {Bug::kCopyPastEnd, "a copy that starts 16 bytes too far", kPipeline, kAll},
    {Bug::kLoadPastEnd, "a plain load one element past the end", kPipeline, kAddress},
    {Bug::kSharedPastEnd, "a store one element past the end of a piece of shared memory", kPipeline, kAll},
    {Bug::kMissingSyncwarp, "no __syncwarp between a lane's store and its neighbour's load", kPipeline, kAll},
    {Bug::kAbsentLane, "a shuffle from a lane outside its mask", kPipeline, kAll},
    {Bug::kDivergentBarrier, "two __syncthreads, one for each branch", kPipeline, kAll},
    {Bug::kEarlyReturn, "a thread that returns before a barrier", kPipeline, kAll},
    {Bug::kUnsetFlag, "a flag in shared memory that only the last block sets", kPipeline, kShadow},
    {Bug::kPlainCounter, "a counter of blocks that is not atomic", kPipeline, kThread},
    {Bug::kRelaxedCounter, "a counter of blocks that is atomic, without release and acquire", kPipeline, kThread},
    {Bug::kCountBeforeBarrier, "a block that is counted before all of its threads have written", kPipeline, kThread},
    {Bug::kCounterTooLong, "a counter that wraps one block too late", kPipeline, kAll},
    {Bug::kEntryNotWritten, "a sum that the last block reads and this launch has not written, where the launch before did",
     kPipeline, kAll},
    {Bug::kEntryTooMany, "one sum too many, read and by chance not used", kPipeline, kShadow},
    {Bug::kReadOnlyLoad, "a read-only load of what another block has written", kPipeline, kAll},
    {Bug::kNoWait, "no wait for a bulk copy", kCluster, kAll},
    {Bug::kNoWaitForEmpty, "a producer that does not wait until a stage is free", kCluster, kAll},
    {Bug::kWrongParity, "a wait for the other phase", kCluster, kAll},
    {Bug::kCountTooLarge, "an mbarrier that expects one arrival too many", kCluster, kAll},
    {Bug::kCountTooSmall, "an mbarrier that expects one arrival too few", kCluster, kAll},
    {Bug::kTooFewBytes, "an mbarrier that expects fewer bytes than are copied", kCluster, kAll},
    {Bug::kNoFenceInit, "no fence between barrier_init and the first bulk copy", kCluster, kAll},
    {Bug::kNoBarrierAfterInit, "no __syncthreads after barrier_init", kCluster, kAll},
    {Bug::kMisalignedBulk, "a bulk copy from an address that is no multiple of 16", kCluster, kAll},
    {Bug::kBulkPastEnd, "a bulk copy that starts 16 bytes too far", kCluster, kAll},
    {Bug::kNoClusterBarrierBeforeRead, "no cluster barrier before another block's memory is read", kCluster, kAll},
    {Bug::kNoClusterBarrierBeforeExit, "no cluster barrier before a block whose memory is read ends", kCluster,
     kShadow | kThread},
    {Bug::kNoSyncwarpAfterInit, "no __syncwarp after the barrier_init of a warp", kWarpRing, kAll},
    {Bug::kNoProxyFence, "a bulk copy over what a warp has written, without async_proxy_fence", kWarpRing, kShadow},
    {Bug::kNoSyncwarpBeforeRefill, "a stage of a warp refilled without a __syncwarp", kWarpRing, kAll},
    {Bug::kBoxMisaligned, "a box at an address that is no multiple of 1024", kWarpRing, kAll},
    {Bug::kBoxTooFewBytes, "an mbarrier that expects the rows inside the array and not the box", kWarpRing, kAll},
    {Bug::kBoxOfAnotherType, "a box of an array that holds another type", kWarpRing, kAll},
    {Bug::kMapPastEnd, "a tensor map of one position more than the buffer has", kWarpRing, kAll},
    {Bug::kNotSwizzled, "a box that is read as if it were not swizzled", kWarpRing, kAll},
    {Bug::kRowsPastLength, "rows of a box past the length of the sequence, summed as the others", kWarpRing, kAll},
    {Bug::kNoWaitForLaunch, "an overlapping launch that reads what the one before it writes", kWarpRing, kAll},
    {Bug::kWriteBeforeWait, "an overlapping launch that writes the workspace of the one before it", kWarpRing, kAll},
    {Bug::kMissingEvent, "a stream that reads what another writes, without an event", kExchange, kAll},
    {Bug::kNeverSignalled, "a wait for a signal that one block of the other device does not send", kExchange, kAll},
    {Bug::kMoreBlocksThanFit, "more blocks that wait for each other than the device holds", kExchange, kAll},
    {Bug::kFarStoreOutsideWindow, "a store into memory of another device that is no window", kExchange, kAll},
    {Bug::kRelaxedSignal, "a signal to another device that does not release the data before it", kExchange, kAll},
    {Bug::kNoSyncwarpBeforeSignal, "no __syncwarp between the stores of a warp and the signal of one lane", kExchange, kAll},
    {Bug::kNoWaitForPeer, "no wait for the signal of the other device", kExchange, kAll},
    {Bug::kSendBeforeWait, "an overlapping launch that sends before the launch before it has ended", kOneShot, kAll},
    {Bug::kOneHalf, "a window with one half, which the next step overwrites", kOneShot, kAll},
    {Bug::kStepNotAdvanced, "a step that is not counted", kOneShot, kAll},
    {Bug::kPacketInPieces, "a packet whose step is sent before its data", kOneShot, kAll},
    {Bug::kNoWaitForPacket, "no wait for a packet", kOneShot, kAll},
    {Bug::kWaitBeforeLastSend, "a block that waits before it has sent everything", kOneShot, kAll},
    {Bug::kSilentEmptyRank, "a device without keys that sends nothing, so that none waits for it", kOneShot, kAll},
    {Bug::kMoreWaitingBlocksThanFit, "more blocks that receive than the device holds", kOneShot, kAll},
};

/// Runs the kernel that has this bug. @returns whether the result is right
/// @throws DeviceError
bool is_right(Bug bug, Kernel kernel);

}  // namespace tree_attn::emulated
