// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One exchange between the devices of a node inside the decode kernel: which device stores what where (section 5.3,
/// Alg. 3). Its proofs are in docs/III.3-one-launch.md.
///
/// In step t every device stores the states of its range into the windows of all devices, its own among them, and merges
/// what has come into its own. A state of 2 + d_v floats travels in packets of three floats and the number t, and a packet
/// arrives as a whole. A receiver that finds t in a packet has its floats: there is no flag, no fence, no barrier between
/// devices, and nothing to clear.
///
/// **Slots.** A window has two halves; step t uses half t mod 2. In a half every subtree of every device's range has a slot
/// for each row, so no two devices store to the same place. A device whose range is empty has one slot per row too, and
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
/// **Owners.** Every device receives the states of all rows, which is too much if there are many. Beyond kMostSharedBytes
/// every row has an owner: device r mod n owns row r. States are sent to the owner alone, in the same packets; it merges
/// them in the same order, so no bit differs, finishes the row, and sends it to all, in a second part of the windows. A
/// block first does this for all rows that it has joined and that its device owns, and only then waits for those of others.
/// Finished rows need one place: none of step t + 1 is finished before every device has ended step t.
///
/// **Queries.** Steps of other numbers of rows use the same windows. What a step uses lies in the half of its parity, and
/// finished rows after both halves, whatever the number of rows; both have room for the most. All rows of a step have one
/// number: where another number of rows begins, the host sets the counters of all rows.
///
/// **Several nodes.** Kernels reach the devices of their node only. Where states of other nodes are still to come, a row is
/// not finished: the states of all subtrees of the node's range, which the merge has left, are the result. Every device has
/// them for all rows, and an owner sends them in place of the finished row.
///
/// **Steps** are counted in device memory, one counter per row, so that a graph may be replayed. They count from 1, windows
/// start with zeros, and after 2^32 steps they wrap: by then every slot holds a step of the last few.
#pragma once

#include "tree_attn/gpu/engine/params.hpp"
#include "tree_attn/gpu/platform/packet.hpp"
#include "tree_attn/reference/state/key_range.hpp"
#include "tree_attn/reference/state/state.hpp"
#include "tree_attn/reference/state/subtree.hpp"

#include <cstdint>

namespace tree_attn {

/// Most devices that exchange.
inline constexpr int kMaxPeers = 16;

/// States of one device, in bytes, beyond which rows have owners.
inline constexpr std::int64_t kMostSharedBytes = 128 * 1024;

/// The first wait that gave up, in memory of the device that waited.
struct GaveUp {
  unsigned n = 0;  ///< waits that gave up; no thread waits on if it is not 0
  unsigned step = 0, source = 0, row = 0;
  unsigned peer_failed = 0;  ///< 1: a host has ended it, see Peers::failed
};

/// All devices as one of them sees them, in the order of their ranges. Passed to the kernel by value.
struct Peers {
  int n = 1, me = 0;
  bool has_owners = false;                 ///< whether a row is merged by one device instead of all
  std::int64_t n_rows = 0, n_packets = 0;  ///< query rows; packets of a state of 2 + d_v floats
  std::int64_t n_result = 0;               ///< packets of a finished row, z and lse; or of its states of the node
  std::int64_t half = 0, n_results = 0;    ///< packets of half a window, and of the finished rows after both halves
  Packet* window[kMaxPeers] = {};          ///< [2][slots of all devices][rows][n_packets], then [n_rows][n_result]
  KeyRange range[kMaxPeers] = {};          ///< of the canonical tree; neighbours touch, and some may be empty
  int first_slot[kMaxPeers + 1] = {};      ///< slots per row of the devices before each; the last one: of all
  unsigned* steps = nullptr;               ///< [n_rows], own memory: steps done
  GaveUp* gave_up = nullptr;               ///< own memory
  std::uint64_t limit_ns = 0;              ///< how long one wait may take; 0: forever
  const unsigned* failed = nullptr;        ///< host memory: not 0 once a rank has failed, which ends all waits; may be null

  /// Lays out the slots for these ranges. @pre at most kMaxPeers
  /// @param leaves_states whether the states of the node are the result, and not finished rows
  template <class Ranges>
  static Peers of(const Ranges& ranges, int me, std::int64_t n_rows, std::int64_t d_v, bool leaves_states = false) {
    Peers peers;
    peers.n = 0, peers.me = me, peers.n_rows = n_rows;
    peers.n_packets = (state_size(d_v) + 2) / 3, peers.n_result = (d_v + 1 + 2) / 3;
    for (const KeyRange& each : ranges) {
      peers.range[peers.n] = each;
      const int n = n_subtrees(each.begin, each.end);
      peers.first_slot[peers.n + 1] = peers.first_slot[peers.n] + (n > 0 ? n : 1);
      peers.has_owners = peers.has_owners || n * n_rows * state_size(d_v) * 4 > kMostSharedBytes;
      ++peers.n;
    }
    if (leaves_states) {
      const KeyRange node = peers.range_of_all();
      peers.n_result = n_subtrees(node.begin, node.end) * peers.n_packets;
    }
    peers.half = peers.first_slot[peers.n] * peers.n_slot_rows() * peers.n_packets;
    peers.n_results = peers.has_owners ? n_rows * peers.n_result : 0;
    return peers;
  }
  /// Makes room in the windows for steps of 1 to most_queries queries. @param rows_of_query of every query @pre as of()
  template <class Ranges>
  void fit(const Ranges& ranges, std::int64_t rows_of_query, std::int64_t most_queries, std::int64_t d_v,
           bool leaves_states) {
    half = n_results = 0;
    for (std::int64_t l = 1; l <= most_queries; ++l) {
      const Peers of_l = of(ranges, me, rows_of_query * l, d_v, leaves_states);
      half = half < of_l.half ? of_l.half : half;
      n_results = n_results < of_l.n_results ? of_l.n_results : n_results;
    }
  }

  /// The range of the node.
  TREE_ATTN_HOST_DEVICE KeyRange range_of_all() const { return {range[0].begin, range[n - 1].end}; }

  /// Slots per row of a device: its subtrees, at least one.
  TREE_ATTN_HOST_DEVICE int n_slots(int device) const { return first_slot[device + 1] - first_slot[device]; }
  /// Rows for which a window has slots: all, or those that a device owns at most.
  TREE_ATTN_HOST_DEVICE std::int64_t n_slot_rows() const { return has_owners ? Count(n_rows + n - 1) / Count(n) : n_rows; }
  /// Packets of a window.
  std::int64_t n_window() const { return 2 * half + n_results; }
  /// The device that merges a row for all, and whether this device merges it.
  TREE_ATTN_HOST_DEVICE int owner(std::int64_t row) const { return static_cast<int>(Count(row) % Count(n)); }
  TREE_ATTN_HOST_DEVICE bool merges(std::int64_t row) const { return !has_owners || owner(row) == me; }
  /// Where the packets of a row lie in every window, or in that of its owner: those of the subtrees of a device, one after
  /// the other.
  TREE_ATTN_HOST_DEVICE std::int64_t offset(unsigned step, int device, std::int64_t row) const {
    return static_cast<std::int64_t>(step & 1) * half +
           (first_slot[device] * n_slot_rows() + (has_owners ? Count(row) / Count(n) : row) * n_slots(device)) * n_packets;
  }
  /// Where the packets of a finished row, or of its states of the node, lie in every window.
  TREE_ATTN_HOST_DEVICE std::int64_t result_offset(std::int64_t row) const { return 2 * half + row * n_result; }
  /// Rows that a device owns.
  TREE_ATTN_HOST_DEVICE std::int64_t n_owned(int device) const { return (n_rows + n - 1 - device) / n; }
  /// Packets that this device stores into the window of another in a step.
  TREE_ATTN_HOST_DEVICE std::int64_t n_sent(int to) const {
    const std::int64_t of_row = range[me].empty() ? 1 : n_slots(me) * n_packets;
    return has_owners ? n_owned(to) * of_row + n_owned(me) * n_result : n_rows * of_row;
  }
};

}  // namespace tree_attn
