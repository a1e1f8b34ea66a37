// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shadow mode: which thread wrote and read which shared memory last, and what is known to have happened before what.
#pragma once

#include "gpu/emulator/thread.hpp"

namespace tree_attn::emulated::runtime::shadow {

#if !defined(TREE_ATTN_EMULATOR_SHADOW)

/// The other modes record nothing.
inline void begin_cluster(Cluster&) {}
inline void synchronise(Thread* const*, int) {}
inline void arrive(PhaseBarrier&) {}
inline void complete(PhaseBarrier&) {}
inline void pass(PhaseBarrier&) {}
inline void fence_proxies() {}
inline void check_fenced(const std::byte*, std::size_t, const char*, const Line&) {}
inline void issue(const std::byte*, std::size_t, const Line&) {}
inline void land(const std::byte*, std::size_t, const Line&) {}
inline void deliver(const BulkCopy&) {}
inline void end_block(Block&) {}
inline void access(const std::byte*, std::size_t, bool, const Line&) {}

#else

/// Empty records for a cluster that begins.
void begin_cluster(Cluster& cluster);
/// All that any of these threads did so far comes before what all of them do from here on.
void synchronise(Thread* const* threads, int n);
/// An arrival at an mbarrier, the end of a phase, the end of a wait.
void arrive(PhaseBarrier& barrier);
void complete(PhaseBarrier& barrier);
void pass(PhaseBarrier& barrier);
/// All writes that the running thread knows of come before the bulk copies that know of this fence.
void fence_proxies();
/// A bulk copy to these bytes begins, or products of a warpgroup take them; `does` says which. Both are another proxy of
/// memory than loads, stores and cp.async: order alone does not keep an earlier write of a thread from arriving later, a
/// fence between the two does, in the thread that wrote, in the one that starts the copy, or in one between them.
void check_fenced(const std::byte* at, std::size_t n_bytes, const char* does, const Line& line);
/// A copy to these bytes begins: no thread may touch them until it has arrived.
void issue(const std::byte* to, std::size_t n_bytes, const Line& line);
/// It has arrived: for the running thread; or for the threads that wait at an mbarrier.
void land(const std::byte* to, std::size_t n_bytes, const Line& line);
void deliver(const BulkCopy& copy);
/// A block ends: other blocks must be done with its memory.
void end_block(Block& block);
/// The running thread reads or writes shared memory.
void access(const std::byte* at, std::size_t n_bytes, bool writes, const Line& line);

#endif

}  // namespace tree_attn::emulated::runtime::shadow
