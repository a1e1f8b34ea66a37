// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A model of a GPU: the time of a decode without its keys and values (section 6).
#pragma once

#include "reference/data/workload.hpp"
#include "reference/decode/backend.hpp"

#include <functional>
#include <memory>

namespace tree_attn::test {

/// Rate at which the model backend reads keys and values by default, in bytes per second: nine tenths of an H100's memory.
inline constexpr double kModelBytesPerSecond = 3e12;
/// A model of a GPU: a decode takes as long as reading the keys and values in use at a given rate, and nothing is read.
/// Caches take no memory, so communication can be measured at the scale of a cluster without the GPUs.
///
/// The state of a subtree is a function of the subtree and of the number of its keys in use, and merging rounds. So two
/// algorithms agree in bits on the same shards exactly if they merge in the same order. Other shards give other bits.
/// @throws std::invalid_argument unless bytes_per_second > 0
/// @returns one object per rate, for the life of the program
const Backend& model_backend(double bytes_per_second = kModelBytesPerSecond);

/// A workload of axes alone: queries are zeros, and so is the one row that all views of keys and values show. whole() throws
/// std::logic_error.
std::unique_ptr<Workload> make_axes(const WorkloadShape& shape, int steps);

/// Returns after `seconds`; immediately if they are not positive. Messages advance meanwhile.
///
/// A sleep lasts about 50 us longer than requested, as much as a decode step, so the thread polls the clock. The simulated
/// program has a pass_time() of its own, which sleeps: the simulator sets its clock.
/// @param progress called from time to time to advance messages; may be empty
void pass_time(double seconds, const std::function<void()>& progress = {});

}  // namespace tree_attn::test
