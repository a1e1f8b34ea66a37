// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One exchange between the devices of a node inside the launch that combines: which device stores what where
/// (section 5.3, Alg. 3). Its proofs are in docs/III.4-one-launch.md.
///
/// In step t every device stores the states of its range into the windows of all devices, its own among them, and merges
/// what has come into its own. A state of 2 + d_v floats travels in packets of three floats and the number t, and a packet
/// arrives as a whole. A receiver that finds t in a packet has its floats: there is no flag, no fence, no barrier between
/// devices, and nothing to clear.
///
/// **Slots.** A window has two halves; step t uses half t mod 2. In a half every subtree of every device's range has a slot
/// for each row, so no two devices store to the same packets. A device whose range is empty has one slot per row too, and
/// sends one packet to it.
///
/// **Conditions.** The proofs that a slot is free when a packet is stored to it, and that no wait lasts forever, need that
/// - every device sends at least one packet per row and step, also one without keys;
/// - a kernel that may begin before the one before it has ended calls wait_for_previous_launch() before it sends;
/// - a kernel receives all packets of its step before it ends;
/// - a thread block sends all that it has to send before it waits for the first time, and all blocks of a launch are on the
///   device at once (Launch::is_cooperative).
///
/// A device that hangs, or is never started, is what the time limit is for. The host of a rank that fails ends the waits of
/// the other ranks of its process, by a word in host memory (Peers::failed).
///
/// **Queries.** Steps of other numbers of rows use the same windows. What a step uses lies in the half of its parity, which
/// has room for the most. All rows of a step have one number: where another number of rows begins, the host sets the
/// counters of all rows.
///
/// **Limits.** Every device receives and merges the states of all rows, which is best while they are few, and kernels reach
/// the devices of their node only: several nodes and more than 128 KiB of states of a device are for `two-level`.
///
/// **Steps** are counted in device memory, one counter per row, so that a graph may be replayed. They count from 1, windows
/// start with zeros, and after 2^32 steps they wrap: by then every slot holds a step of the last few.
#pragma once

#include "gpu/engine/params.hpp"
#include "gpu/types/packet.hpp"
#include "reference/state/key_range.hpp"
#include "reference/state/state.hpp"
#include "reference/state/subtree.hpp"

#include <cstdint>

namespace tree_attn {

/// Most devices that exchange.
inline constexpr int kMaxPeers = 16;

/// The first wait that gave up, in memory of the device that waited.
struct GaveUp {
  unsigned n = 0;  ///< waits that gave up; no thread waits on if it is not 0
  unsigned step = 0, source = 0, row = 0;
  unsigned peer_failed = 0;  ///< 1: a host has ended it, see Peers::failed
};

/// All devices as one of them sees them, in the order of their ranges. Passed to the kernel by value.
struct Peers {
  int n = 1, me = 0;
  std::int64_t n_rows = 0, n_packets = 0;  ///< query rows; packets of a state of 2 + d_v floats
  std::int64_t half = 0;                   ///< packets of half a window, which has room for the most rows
  Packet* window[kMaxPeers] = {};          ///< [2][slots of all devices][rows][n_packets]
  KeyRange range[kMaxPeers] = {};          ///< of the canonical tree, whole leaves; neighbours touch, and some may be empty
  int first_slot[kMaxPeers + 1] = {};      ///< slots per row of the devices before each; the last one: of all
  unsigned* steps = nullptr;               ///< [n_rows], own memory: steps done
  GaveUp* gave_up = nullptr;               ///< own memory
  std::uint64_t limit_ns = 0;              ///< how long one wait may take; 0: forever
  const unsigned* failed = nullptr;        ///< host memory: not 0 once a rank has failed, which ends all waits; may be null

  /// Lays out the slots for these ranges, with room for so many rows. Steps may have fewer. @pre at most kMaxPeers
  template <class Ranges>
  static Peers of(const Ranges& ranges, int me, std::int64_t n_rows, std::int64_t d_v) {
    Peers peers;
    peers.n = 0, peers.me = me, peers.n_rows = n_rows, peers.n_packets = (state_size(d_v) + 2) / 3;
    for (const KeyRange& of_device : ranges) {
      const KeyRange each = peers.range[peers.n] = whole_leaves(of_device);
      const int n = n_subtrees(each.begin, each.end);
      peers.first_slot[peers.n + 1] = peers.first_slot[peers.n] + (n > 0 ? n : 1);
      ++peers.n;
    }
    peers.half = peers.first_slot[peers.n] * n_rows * peers.n_packets;
    return peers;
  }

  /// The range of all devices.
  TREE_ATTN_HOST_DEVICE KeyRange range_of_all() const { return {range[0].begin, range[n - 1].end}; }

  /// Slots per row of a device: its subtrees, at least one.
  TREE_ATTN_HOST_DEVICE int n_slots(int device) const { return first_slot[device + 1] - first_slot[device]; }
  /// Packets of a window.
  std::int64_t n_window() const { return 2 * half; }
  /// Offset of the packets of a row in every window: those of the subtrees of a device, one after the other.
  TREE_ATTN_HOST_DEVICE std::int64_t offset(unsigned step, int device, std::int64_t row) const {
    return static_cast<std::int64_t>(step & 1) * half + (first_slot[device] * n_rows + row * n_slots(device)) * n_packets;
  }
  /// Packets that this device stores into the window of each other in a step.
  TREE_ATTN_HOST_DEVICE std::int64_t n_sent() const { return n_rows * (range[me].empty() ? 1 : n_slots(me) * n_packets); }
};

}  // namespace tree_attn
