// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bugs that kernels really have, each put into a kernel that is otherwise right; and which mode must see it.
///
/// An emulator that never complains is worth nothing until it has been shown bugs. Small kernels with the shape of the
/// real ones hold them, switched by a parameter: pipeline (asynchronous copies, shuffles, last-block merge) and one_shot
/// (the protocol of the one-shot kernel, three devices). Bugs of bulk copies and mbarriers are mutants of the library
/// kernels (tests/mutants). Rules that one call breaks by itself, such as an address that is not aligned, and those of
/// products of warpgroups have their tests in tests/gpu/emulator.
#pragma once

namespace tree_attn::emulated {

enum class Bug {
  kNone,
  // pipeline
  kMissingBarrier,
  kWeakWait,
  kStageTooEarly,
  kLoadPastEnd,
  kMissingSyncwarp,
  kAbsentLane,
  kPlainCounter,
  kRelaxedCounter,
  kCountBeforeBarrier,
  // one_shot
  kSendBeforeWait,
  kOneHalf,
  kStepNotAdvanced,
  kPacketInPieces,
  kNoWaitForPacket,
  kWaitBeforeLastSend,
  kSilentEmptyRank,
};

/// Run the kernels with a bug. @returns whether the result is right @throws DeviceError
bool pipeline_is_right(Bug bug);
bool one_shot_is_right(Bug bug);

/// Modes of the emulator, as bits.
enum Mode : unsigned { kPlain = 1, kShadow = 2, kAddress = 4, kThread = 8, kAll = 15 };

struct SeededBug {
  Bug bug;
  const char* name;
  bool (*is_right)(Bug);
  unsigned seen_by;  ///< modes that must catch it: an error, a report or a wrong result
};

/// A catch is certain, given the seeds. What a mode may also see by luck is not listed.
inline constexpr SeededBug kSeededBugs[] = {
    {Bug::kMissingBarrier, "no __syncthreads after the wait for a copy", pipeline_is_right, kAll},
    {Bug::kWeakWait, "a wait that leaves the needed group pending", pipeline_is_right, kAll},
    {Bug::kStageTooEarly, "a stage refilled before all threads have read it", pipeline_is_right, kAll},
    {Bug::kLoadPastEnd, "a plain load one element past the end", pipeline_is_right, kAddress},
    {Bug::kMissingSyncwarp, "no __syncwarp between a lane's store and its neighbour's load", pipeline_is_right, kAll},
    {Bug::kAbsentLane, "a shuffle from a lane outside its mask", pipeline_is_right, kAll},
    {Bug::kPlainCounter, "a counter of blocks that is not atomic", pipeline_is_right, kThread},
    {Bug::kRelaxedCounter, "a counter of blocks that is atomic, without release and acquire", pipeline_is_right, kThread},
    {Bug::kCountBeforeBarrier, "a block that is counted before all of its threads have written", pipeline_is_right, kThread},
    {Bug::kSendBeforeWait, "an overlapping launch that sends before the launch before it has ended", one_shot_is_right,
     kAll},
    {Bug::kOneHalf, "a window with one half, which the next step overwrites", one_shot_is_right, kAll},
    {Bug::kStepNotAdvanced, "a step that is not counted", one_shot_is_right, kAll},
    {Bug::kPacketInPieces, "a packet whose step is sent before its data", one_shot_is_right, kAll},
    {Bug::kNoWaitForPacket, "no wait for a packet", one_shot_is_right, kAll},
    {Bug::kWaitBeforeLastSend, "a block that waits before it has sent everything", one_shot_is_right, kAll},
    {Bug::kSilentEmptyRank, "a device without keys that sends nothing, so that none waits for it", one_shot_is_right, kAll},
};

}  // namespace tree_attn::emulated
