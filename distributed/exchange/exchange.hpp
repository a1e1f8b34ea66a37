// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Communication schedules: the reduction trees of section 5.3 as lists of steps.
///
/// A schedule is a function of the number of members and of the index of one of them, and returns the steps of that member.
/// It does not depend on what is sent or reduced; plans are built from it, a notebook simulates it. Operands keep the order
/// of the members (the lower index is the left operand), and only adjacent ranges are merged, so every schedule reduces a
/// forest of states to the same bits.
#pragma once

#include "reference/state/require.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <vector>

namespace tree_attn {

/// A range of members [begin, end).
struct MemberRange {
  int begin = 0, end = 0;
  bool operator==(const MemberRange&) const = default;
};

/// One step of one member: at most one message each way, with the same peer.
struct ExchangeStep {
  int peer = 0;           ///< the other member
  bool sends = false;     ///< this member sends what it holds
  bool receives = false;  ///< the peer sends what it holds
  bool finished = false;  ///< the received message is the result of butterfly(), not an operand
  MemberRange theirs{};   ///< members whose contributions the received operand covers

  /// Tests whether the operand of the peer is the left one.
  bool peer_is_left(int me) const { return peer < me; }
};

/// Throws std::out_of_range unless 0 <= me < size.
/// @param function that has both as arguments
inline void require_member(const char* function, int size, int me) {
  require<std::out_of_range>(me >= 0 && me < size, function, ": member ", me, " of ", size);
}

/// AllReduce by recursive doubling: floor(log2 size) exchanges after which every member holds the result.
///
/// With m + r members, m the largest power of two, the first 2r members pair up: before the doubling the even member of a
/// pair sends its operand to the odd one, and after the doubling it receives the result.
/// @throws std::out_of_range unless 0 <= me < size, as the function below does
/// @paper{thm_1, Thm. 1}
inline std::vector<ExchangeStep> butterfly(int size, int me) {
  require_member("butterfly", size, me);
  const int m = static_cast<int>(std::bit_floor(static_cast<unsigned>(size))), extra = size - m;
  std::vector<ExchangeStep> steps;

  // Fold the r extra members into their right neighbours.
  if (me < 2 * extra && me % 2 == 0) {
    steps.push_back({.peer = me + 1, .sends = true});
    steps.push_back({.peer = me + 1, .receives = true, .finished = true, .theirs = {0, size}});
    return steps;
  }
  if (me < 2 * extra) steps.push_back({.peer = me - 1, .receives = true, .theirs = {me - 1, me}});

  // Double: player j represents member(j) and the member folded into it; aligned blocks of 2^i players hold the same
  // operand.
  const auto member = [extra](int j) { return j < extra ? 2 * j + 1 : j + extra; };
  const auto first = [extra](int j) { return j < extra ? 2 * j : j + extra; };
  const int player = me < 2 * extra ? me / 2 : me - extra;
  for (int block = 1; block < m; block *= 2) {
    const int other = player ^ block;
    const int start = other / block * block;
    steps.push_back(
        {.peer = member(other), .sends = true, .receives = true, .theirs = {first(start), first(start + block)}});
  }

  // Send the result back to the folded member.
  if (me < 2 * extra) steps.push_back({.peer = me - 1, .sends = true});
  return steps;
}

/// Reduce to member 0 along a binomial tree: ceil(log2 size) rounds, size - 1 messages. A broadcast from member 0 has the
/// same steps in reverse order and direction.
inline std::vector<ExchangeStep> reduce_to_first(int size, int me) {
  require_member("reduce_to_first", size, me);
  std::vector<ExchangeStep> steps;
  for (int distance = 1; distance < size; distance *= 2) {
    if (me & distance) {
      steps.push_back({.peer = me - distance, .sends = true});
      break;
    }
    if (me + distance < size) {
      steps.push_back(
          {.peer = me + distance, .receives = true, .theirs = {me + distance, std::min(me + 2 * distance, size)}});
    }
  }
  return steps;
}

}  // namespace tree_attn
