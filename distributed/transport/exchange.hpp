// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Who talks to whom, and when: the reduction trees of section 5.3 as plain lists of steps.
///
/// An exchange is written for `size` members in an order, and gives the steps of one of them. It knows
/// nothing of messages or of what is reduced: transports execute it, tests walk it. Merging keeps that order (the
/// member on the left is always the left operand) and joins neighbouring ranges only, so a forest of states can be reduced
/// by any of them without changing a bit of the result.
#pragma once

#include <algorithm>
#include <bit>
#include <utility>
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
  bool sends = false;     ///< what this member holds goes to the peer
  bool receives = false;  ///< what the peer holds comes here
  bool finished = false;  ///< what is received is the result, not a part to be merged
  MemberRange theirs{};   ///< whose contributions the received part covers

  /// Whether the peer's part is the left operand of the merge.
  bool peer_is_left(int me) const { return peer < me; }
};

/// Largest power of two <= n, for n >= 1.
inline int floor_power_of_two(int n) { return 1 << (std::bit_width(static_cast<unsigned>(n)) - 1); }

/// AllReduce by recursive doubling: floor(log2 size) exchanges after which every member holds the result.
///
/// With r members more than a power of two m, the first 2r pair up, even hands to odd, before the doubling and gets the
/// result back behind it.
/// @paper{thm_1, Thm. 1}
inline std::vector<ExchangeStep> butterfly(int size, int me) {
  const int m = floor_power_of_two(size), extra = size - m;
  std::vector<ExchangeStep> steps;

  // Fold the members that are too many into their right neighbours.
  if (me < 2 * extra && me % 2 == 0) {
    steps.push_back({.peer = me + 1, .sends = true});
    steps.push_back({.peer = me + 1, .receives = true, .finished = true, .theirs = {0, size}});
    return steps;
  }
  if (me < 2 * extra) steps.push_back({.peer = me - 1, .receives = true, .theirs = {me - 1, me}});

  // Double: player j stands for member(j) and the members folded into it; blocks of 2^i players hold the same range.
  const auto member = [extra](int j) { return j < extra ? 2 * j + 1 : j + extra; };
  const auto first = [extra](int j) { return j < extra ? 2 * j : j + extra; };
  const int player = me < 2 * extra ? me / 2 : me - extra;
  for (int block = 1; block < m; block *= 2) {
    const int other = player ^ block;
    const int start = other / block * block;
    steps.push_back(
        {.peer = member(other), .sends = true, .receives = true, .theirs = {first(start), first(start + block)}});
  }

  // Hand the result back to the folded member.
  if (me < 2 * extra) steps.push_back({.peer = me - 1, .sends = true});
  return steps;
}

/// Reduce to member 0 along a binomial tree: ceil(log2 size) rounds, size - 1 messages.
inline std::vector<ExchangeStep> reduce_to_first(int size, int me) {
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

/// Broadcast from member 0 along the same binomial tree, backwards.
inline std::vector<ExchangeStep> broadcast_from_first(int size, int me) {
  std::vector<ExchangeStep> steps = reduce_to_first(size, me);
  std::vector<ExchangeStep> reversed(steps.rbegin(), steps.rend());
  for (ExchangeStep& step : reversed) {
    step.finished = step.sends;  // what was sent up as a part comes down as the result
    std::swap(step.sends, step.receives);
    step.theirs = step.receives ? MemberRange{0, size} : MemberRange{};
  }
  return reversed;
}

}  // namespace tree_attn
