// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The collectives of the decoders, executed from schedules: AllReduce of numbers, of forests, gathers (section 5).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "distributed/transport/schedule.hpp"
#include "distributed/transport/transport.hpp"
#include "reference/state/forest.hpp"
#include "reference/state/run.hpp"

namespace tree_attn {

/// left <- op(left, right), element for element or state for state; the left operand stands further left in the row.
using ReduceOp = std::function<void(std::span<float> left, std::span<const float> right)>;

/// AllReduce over all ranks by recursive doubling; every rank ends with the same bits, because both sides of an exchange
/// evaluate op(left, right) on the same two operands in the same order.
/// @param[in,out] numbers this rank's contribution, then the result; the same length on every rank
void all_reduce(Transport& transport, std::span<float> numbers, const ReduceOp& op);

/// Reduces forests along a schedule over `group` (ranks in row order), this rank included.
/// @param forest this rank's part, then what the schedule leaves it with
/// @param runs positions of every member of the group
/// @param steps a schedule of schedule.hpp for this rank's place in the group
void reduce_forest(Transport& transport, std::span<const int> group, std::span<const Run> runs, std::span<const ScheduleStep> steps,
                   Forest<float>& forest);

/// AllGather of the ranks' forests in ceil(log2 p) rounds (Bruck), for any p, and their merge in row order.
Forest<float> all_gather_forest(Transport& transport, std::span<const Run> runs, const Forest<float>& mine);

/// The same with p - 1 hops around a ring: each rank hands on what it last received.
Forest<float> ring_gather_forest(Transport& transport, std::span<const Run> runs, const Forest<float>& mine);

/// Hands `numbers` of the group's first member to all members along a binomial tree.
void broadcast(Transport& transport, std::span<const int> group, std::span<float> numbers);

/// Merges forests, one per place, in row order, and counts the steps.
Forest<float> join(Transport& transport, std::span<const Forest<float>> forests);

}  // namespace tree_attn
